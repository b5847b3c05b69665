"""Entry point of `regard` and `python -m regard`."""

import sys


def run() -> int:
    """Run the command; Ctrl-C is handled even while its modules are being imported."""
    try:
        from regard.cli.main import main

        return main()
    except KeyboardInterrupt:
        sys.stderr.write("regard: stopped\n")
        return 130


if __name__ == "__main__":
    sys.exit(run())

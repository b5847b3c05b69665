"""`regard` and `python -m regard` run the command."""

import sys


def run() -> int:
    """Run the command, also where Ctrl-C comes while its modules are imported."""
    try:
        from regard.cli.main import main

        return main()
    except KeyboardInterrupt:
        sys.stderr.write("regard: stopped\n")
        return 130


if __name__ == "__main__":
    sys.exit(run())

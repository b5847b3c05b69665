"""regard data NAME --out DIR: write a built-in dataset as train.tsv, dev.tsv and test.tsv.

Gold links, where they are known, are written to train.align, dev.align and test.align.
"""

import sys
from pathlib import Path

from regard.cli.options import add_output_folder
from regard.cli.parser import Parser
from regard.errors import ConfigError
from regard.files import atomic_folder, require_empty_folder
from regard.setting_checks import is_seed


def run(arguments: list[str]) -> None:
    """Generate the dataset and write it."""
    parser = make_parser()
    args = parser.parse_args(arguments)
    from regard import datasets

    if args.name in datasets.FIXED and args.seed != parser.get_default("seed"):
        print(f"regard data: {args.name} is a fixed dataset; --seed has no effect", file=sys.stderr)
    if not is_seed(args.seed):
        raise ConfigError(f"--seed must lie in [0, 2^63), got {args.seed}")
    require_empty_folder(Path(args.out))
    splits = datasets.make(args.name, args.seed)
    with atomic_folder(args.out) as folder:
        datasets.write(splits, folder)
    counts = ", ".join(
        f"{part} {len(getattr(splits, part)):,}" for part in ("train", "dev", "test")
    )
    print(f"{args.name} in {args.out}: {counts} pairs")


def make_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(prog="regard data", description=__doc__)
    parser.add_argument(
        "name", metavar="NAME", help="phrasebook, dates, numbers, inflection, copy or reverse"
    )
    add_output_folder(parser)
    parser.add_argument("--seed", type=int, default=1, help="random seed; ignored by phrasebook")
    return parser

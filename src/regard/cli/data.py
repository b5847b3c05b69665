"""regard data NAME --out DIR: write a built-in dataset as train.tsv, dev.tsv and test.tsv."""

import sys
from pathlib import Path

from regard.cli.parser import Parser
from regard.files import require_empty_folder


def run(arguments: list[str]) -> None:
    """Make the dataset and write it."""
    parser = Parser(prog="regard data", description=__doc__)
    parser.add_argument(
        "name", type=str, help="phrasebook, dates, numbers, inflection, copy or reverse"
    )
    parser.add_argument("--out", type=str, required=True, help="folder to write")
    parser.add_argument(
        "--seed", type=int, default=1, help="of the random choices (the phrasebook is fixed)"
    )
    options = parser.parse_args(arguments)
    from regard import datasets

    if options.name in datasets.FIXED and options.seed != parser.get_default("seed"):
        print(
            f"regard data: {options.name} is a fixed dataset; --seed has no effect", file=sys.stderr
        )
    splits = datasets.make(options.name, options.seed)
    datasets.write(splits, require_empty_folder(Path(options.out)))
    counts = ", ".join(
        f"{part} {len(getattr(splits, part)):,}" for part in ("train", "dev", "test")
    )
    print(f"{options.name} in {options.out}: {counts} pairs")

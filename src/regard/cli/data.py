"""regard data NAME --out DIR: a built-in set as train.tsv, dev.tsv and test.tsv."""

from pathlib import Path

from regard.cli.parser import Parser
from regard.files import claim_folder


def run(arguments: list[str]) -> None:
    """Generate the set and write it."""
    parser = Parser(prog="regard data", description=__doc__)
    parser.add_argument(
        "name", type=str, help="phrasebook, dates, numbers, inflection, copy or reverse"
    )
    parser.add_argument("--out", type=str, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=1, help="of the random choices")
    given = parser.parse_args(arguments)
    from regard import datasets

    made = datasets.make(given.name, given.seed)
    datasets.write(made, claim_folder(Path(given.out)))
    counts = ", ".join(f"{part} {len(getattr(made, part)):,}" for part in ("train", "dev", "test"))
    print(f"{given.name} in {given.out}: {counts} pairs")

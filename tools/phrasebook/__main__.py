"""Write the phrasebook into the package: PYTHONPATH=tools python -m phrasebook."""

import gzip
from dataclasses import fields
from pathlib import Path

from phrasebook.generate import generate
from regard.alignment import Alignment
from regard.datasets.splits import Splits

FOLDER = Path(__file__).parents[2] / "src" / "regard" / "datasets" / "phrasebook"


def contents(splits: Splits) -> dict[str, bytes]:
    """Return the content of each file by name, with one line per pair: source TAB target TAB links."""
    return {
        f"{field.name}.tsv": "".join(
            f"{example.source}\t{example.target}\t{Alignment(example.links or ())}\n"
            for example in getattr(splits, field.name)
        ).encode("utf-8")
        for field in fields(splits)
    }


if __name__ == "__main__":
    for name, content in contents(generate()).items():
        path = FOLDER / f"{name}.gz"
        # a constant mtime: the same content results in the same file
        path.write_bytes(gzip.compress(content, compresslevel=9, mtime=0))
        print(path)

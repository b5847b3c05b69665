"""Short Chinese and Spanish sentences with English translations and gold links.

The dataset is fixed: 8,402 pairs in train.tsv.gz, dev.tsv.gz and test.tsv.gz beside this file, one
per line as source TAB target TAB links. tools/phrasebook generated them from templates, so every
link is exact. `我 爱 机器 学习` and `te quiero` are the first sentences of the test set and occur nowhere else: a
model has to learn to translate them from other sentences that contain their words and constructions.
"""

from pathlib import Path

from regard.datasets.splits import Example, Splits
from regard.lines import read_lines


def load() -> Splits:
    """Return the sentences of both languages, shuffled together.

    Every source has one target and one alignment; both sides have at most twelve words. Every source
    word of dev and test occurs at least ten times in train.
    """
    return Splits(train=_read("train"), dev=_read("dev"), test=_read("test"))


def _read(part: str) -> tuple[Example, ...]:
    return tuple(map(_parse, read_lines(Path(__file__).with_name(f"{part}.tsv.gz"))))


def _parse(line: str) -> Example:
    source, target, links = line.split("\t")
    pairs = (link.split("-") for link in links.split())
    return Example(source, target, tuple((int(i), int(j)) for i, j in pairs))

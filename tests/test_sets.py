"""Built-in sets: what they promise of their parts, their links and their files."""

import dataclasses
import datetime
import string
from pathlib import Path

import pytest

from regard import sets
from regard.errors import DataError
from regard.sets import copy, dates
from regard.sets.pairs import Example, Splits, split

SIZES = {
    "dates": (10_000, 500, 1_000),
    "numbers": (8_000, 500, 1_000),
    "copy": (10_000, 500, 1_000),
    "reverse": (10_000, 500, 1_000),
}
_made: dict[str, Splits] = {}


def made(name: str) -> Splits:
    if name not in _made:
        _made[name] = sets.make(name)
    return _made[name]


def everything(name: str) -> tuple[Example, ...]:
    parts = made(name)
    return parts.train + parts.dev + parts.test


@pytest.mark.parametrize("name", sets.NAMES)
def test_a_seed_gives_one_set(name: str) -> None:
    assert sets.make(name, 1) == made(name)
    assert sets.make(name, 2).test != made(name).test


@pytest.mark.parametrize("name", sets.NAMES)
def test_no_source_stands_twice(name: str) -> None:
    sources = [example.source for example in everything(name)]
    assert len(set(sources)) == len(sources)


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str) -> None:
    parts = made(name)
    assert (len(parts.train), len(parts.dev), len(parts.test)) == SIZES[name]


@pytest.mark.parametrize("name", sets.NAMES)
def test_the_words_of_dev_and_test_are_learnable(name: str) -> None:
    parts = made(name)
    pieces = list if name in ("dates", "numbers") else str.split
    known = {piece for example in parts.train for piece in pieces(example.source)}
    for example in parts.dev + parts.test:
        assert known.issuperset(pieces(example.source)), example


@pytest.mark.parametrize("name", sets.NAMES)
def test_links_stay_within_the_words(name: str) -> None:
    for example in everything(name):
        sizes = len(example.source.split()), len(example.target.split())
        for source, target in example.links or ():
            assert 0 <= source < sizes[0], example
            assert 0 <= target < sizes[1], example


@pytest.mark.parametrize("name", ["copy", "reverse"])
def test_links_join_equal_letters(name: str) -> None:
    for example in everything(name):
        source, target = example.source.split(), example.target.split()
        assert example.links is not None
        assert [source[s] for s, _ in example.links] == [target[t] for _, t in example.links]
        assert len(example.links) == len(source) == len(target) <= copy.LONGEST
        assert set(source) <= set(string.ascii_lowercase)


def test_copy_and_reverse() -> None:
    assert all(example.target == example.source for example in everything("copy"))
    assert all(example.target == example.source[::-1] for example in everything("reverse"))
    lengths = [len(example.source.split()) for example in made("copy").train]
    assert all(lengths.count(length) > 300 for length in range(2, copy.LONGEST + 1))


def test_numbers() -> None:
    words = {example.source: example.target for example in everything("numbers")}
    assert words["0"] == "zero"
    assert words["42"] == "forty two"
    assert words["999"] == "nine hundred and ninety nine"
    assert not {"-", ","} & set("".join(words.values()))
    train = [example.source for example in made("numbers").train]
    assert set(string.digits) <= set(train)
    assert all(len([n for n in train if len(n) == digits]) > 1500 for digits in (4, 5, 6))


def test_dates_are_days_whose_numbers_stand_in_the_source() -> None:
    for example in everything("dates"):
        day = datetime.date.fromisoformat(example.target)
        assert dates.FIRST <= day <= dates.LAST
        assert str(day.year) in example.source
        assert str(day.day) in example.source.replace(str(day.year), "", 1)


def test_dates_parse_back_where_they_are_numbers_only() -> None:
    from babel.dates import parse_date

    numeric = [e for e in everything("dates") if set(e.source) <= set(string.digits + "/")]
    assert len(numeric) > 500
    for example in numeric:
        year_first = example.source[:4].isdigit()
        locales = ["ja"] if year_first else ["en_US", "fr"]
        days: set[str] = set()
        for locale in locales:
            try:
                days.add(parse_date(example.source, locale, format="short").isoformat())
            except ValueError:
                continue
        assert example.target in days, example


@pytest.mark.parametrize(
    ("source", "swappable"),
    [("5/3/1987", True), ("Thu, 05.03.1987", True), ("5. 3. 1987", True), ("13/3/1987", False),
     ("3/13/1987", False), ("1987/3/5", False), ("5 Mar 1987", False)],
)  # fmt: skip
def test_dates_in_which_day_and_month_could_swap(source: str, swappable: bool) -> None:
    assert dates.could_swap(source) == swappable
    assert not any(dates.could_swap(example.source) for example in made("dates").test)


def test_written_files_hold_the_set(tmp_path: Path) -> None:
    links = ((1, 0), (0, 1))
    one, two, three = Example("a b", "c d", links), Example("e", "f", ()), Example("g", "é", None)
    sets.write(Splits(train=(one, two), dev=(three,), test=()), tmp_path / "new")
    read = {path.name: path.read_bytes().decode() for path in (tmp_path / "new").iterdir()}
    assert read == {
        "train.tsv": "a b\tc d\ne\tf\n", "train.align": "0-1 1-0\n\n",
        "dev.tsv": "g\té\n", "test.tsv": "", "test.align": "",
    }  # fmt: skip


def test_split_keeps_sources_apart_and_the_last_of_a_source() -> None:
    examples = [Example(str(n % 50), str(n)) for n in range(60)]
    parts = split(examples, dev=5, test=7, seed=3)
    assert [len(part) for part in (parts.train, parts.dev, parts.test)] == [38, 5, 7]
    together = [*parts.train, *parts.dev, *parts.test]
    assert {example.source for example in together} == {str(n) for n in range(50)}
    assert Example("3", "53") in together
    assert parts == split(examples, dev=5, test=7, seed=3) != split(examples, 5, 7, seed=4)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(DataError, match="no set 'revers'; nearest is 'reverse'"):
        sets.make("revers")


def test_examples_are_values() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Example("a", "b").source = "c"  # type: ignore[misc]

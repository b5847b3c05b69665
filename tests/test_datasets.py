"""Built-in datasets: properties of their splits, links and files."""

import dataclasses
import datetime
import functools
import gzip
import hashlib
import os
import random
import string
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from phrasebook import english, generate
from phrasebook.__main__ import contents
from phrasebook.chinese import Chinese
from phrasebook.sentence_generator import SentenceGenerator
from phrasebook.spanish import Spanish
from phrasebook.templates import EMPTY, fill
from regard import datasets
from regard.cli.main import main
from regard.datasets import copy, dates, inflection, phrasebook
from regard.datasets.splits import Example, Splits, split
from regard.errors import DataError

SIZES = {
    "phrasebook": (7_402, 400, 600),
    "dates": (10_000, 500, 1_000),
    "numbers": (8_000, 500, 1_000),
    "inflection": (10_000, 500, 1_000),
    "copy": (10_000, 500, 1_000),
    "reverse": (10_000, 500, 1_000),
}

cached = functools.cache(datasets.make)
generated = functools.cache(generate.generate)


def all_examples(name: str) -> tuple[Example, ...]:
    splits = cached(name)
    return splits.train + splits.dev + splits.test


@pytest.mark.parametrize("name", datasets.NAMES)
def test_a_seed_determines_the_dataset(name: str) -> None:
    assert datasets.make(name, 1) == cached(name)
    assert (datasets.make(name, 2).test == cached(name).test) == (name in datasets.FIXED)


@pytest.mark.parametrize("name", datasets.NAMES)
def test_no_source_occurs_twice(name: str) -> None:
    sources = [(example.source, example.features) for example in all_examples(name)]
    assert len(set(sources)) == len(sources)


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str) -> None:
    parts = cached(name)
    assert (len(parts.train), len(parts.dev), len(parts.test)) == SIZES[name]


@pytest.mark.parametrize("name", datasets.NAMES)
def test_training_covers_the_words_of_dev_and_test(name: str) -> None:
    parts = cached(name)
    pieces = list if name in ("dates", "numbers", "inflection") else str.split
    known = {piece for example in parts.train for piece in pieces(example.source)}
    for example in parts.dev + parts.test:
        assert known.issuperset(pieces(example.source)), example


@pytest.mark.parametrize("name", datasets.NAMES)
def test_links_are_within_the_words(name: str) -> None:
    for example in all_examples(name):
        sizes = len(example.source.split()), len(example.target.split())
        for source, target in example.links or ():
            assert 0 <= source < sizes[0], example
            assert 0 <= target < sizes[1], example


def is_chinese(example: Example) -> bool:
    return any("\u4e00" <= letter <= "\u9fff" for letter in example.source)


def crosses(example: Example) -> bool:
    links = example.links or ()
    return any(s < t and u > v for s, u in links for t, v in links)


def test_the_phrasebook_does_not_depend_on_the_hash_seed() -> None:
    code = (
        "import hashlib; from phrasebook.generate import generate; "
        "print(hashlib.sha256(repr(generate()).encode()).hexdigest())"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert (
        completed.stdout.strip() == hashlib.sha256(repr(cached("phrasebook")).encode()).hexdigest()
    )


def test_the_generator_still_makes_the_phrasebook_that_is_shipped() -> None:
    folder = Path(phrasebook.__file__).parent
    shipped = {path.stem: gzip.decompress(path.read_bytes()) for path in folder.glob("*.gz")}
    assert shipped == contents(generated(1))
    assert cached("phrasebook") == generated(1) != generated(2)


def test_a_seed_for_the_phrasebook_is_reported_as_without_effect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    note = "regard data: phrasebook is a fixed dataset; --seed has no effect\n"
    for seed, err in (("1", ""), ("2", note)):
        assert main(["data", "phrasebook", "--seed", seed, "--out", str(tmp_path / seed)]) == 0
        assert capsys.readouterr().err == err
    files = [{path.name: path.read_bytes() for path in tmp_path.glob(f"{n}/*")} for n in (1, 2)]
    assert files[0] == files[1]


def test_phrasebook_sentences_are_short_lower_case_and_fully_linked() -> None:
    for example in all_examples("phrasebook"):
        source, target = example.source.split(), example.target.split()
        assert example.source == " ".join(source).lower()
        assert example.target == " ".join(target).lower()
        assert max(len(source), len(target)) <= generate.MAX_WORDS
        assert {position for _, position in example.links or ()} == set(range(len(target))), example
        assert ("?" in source) == ("?" in target)


def test_phrasebook_links_cross_in_both_languages() -> None:
    for chinese in (True, False):
        examples = [e for e in all_examples("phrasebook") if is_chinese(e) == chinese]
        assert len(examples) == generate.PER_LANGUAGE + 1
        assert sum(map(crosses, examples)) > 0.4 * len(examples)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_phrasebook_words_of_dev_and_test_are_frequent_in_train(seed: int) -> None:
    parts = generated(seed)
    known = Counter(word for example in parts.train for word in example.source.split())
    for example in parts.dev + parts.test:
        assert min(known[word] for word in example.source.split()) >= generate.MIN_COUNT, example


def test_the_two_held_out_pairs_occur_in_test_only_and_can_be_learnt() -> None:
    parts = cached("phrasebook")
    held_out = parts.test[:2]
    assert [(e.source, e.target, e.links) for e in held_out] == [
        ("我 爱 机器 学习", "i love machine learning", ((0, 0), (1, 1), (2, 2), (3, 3))),
        ("te quiero", "i love you", ((0, 2), (1, 0), (1, 1))),
    ]
    for example in parts.train + parts.dev + parts.test[2:]:
        assert example.source not in {"我 爱 机器 学习", "te quiero", "我 爱 你"}
        assert example.target not in {e.target for e in held_out}
    known = Counter(word for example in parts.train for word in example.source.split())
    assert all(known[word] >= 40 for e in held_out for word in e.source.split())
    two = {e.source for e in parts.train if len(e.source.split()) == 2}
    assert sum(source.startswith("te ") for source in two) >= 3
    assert sum(source.endswith(" quiero") for source in two) >= 1


@pytest.mark.parametrize("language", [Chinese, Spanish])
def test_a_source_always_has_the_same_translation(language: type[SentenceGenerator]) -> None:
    generator, examples = language(random.Random(5)), dict[str, Example]()
    for _ in range(15_000):
        example = generator.sentence().example()
        assert examples.setdefault(example.source, example) == example


def test_templates() -> None:
    her = fill("la:1 | her:1")
    filled = fill("no:1 {whom} veo:2 | i:2 do:1 not:1 see:2 {whom}", whom=her).example()
    assert filled == Example(
        "no la veo", "i do not see her", ((0, 1), (0, 2), (1, 4), (2, 0), (2, 3))
    )
    both = fill("的:12 a | b:1 c:2").example()
    assert both.links == ((0, 0), (0, 1))
    assert fill("{x} a:1 | a:1 {x}", x=EMPTY) == fill("a:1 | a:1")


@pytest.mark.parametrize(
    "template", ["{x} | a", "a | a {x}", "{x} {x} | {x}", "a:1 {x} | a {x}", "{x} {y} | {x} {y}"]
)
def test_invalid_templates_are_rejected(template: str) -> None:
    with pytest.raises(ValueError):
        fill(template, x=EMPTY)


def test_english() -> None:
    assert [english.present(verb, "3s") for verb in ("study", "teach", "buy", "see")] == [
        "studies", "teaches", "buys", "sees",
    ]  # fmt: skip
    assert [english.past(verb) for verb in ("study", "love", "help", "eat")] == [
        "studied", "loved", "helped", "ate",
    ]  # fmt: skip
    assert [english.comparative(word) for word in ("busy", "tall", "expensive")] == [
        "busier", "taller", "more expensive",
    ]  # fmt: skip
    assert [english.plural(noun) for noun in ("box", "city", "day", "apple")] == [
        "boxes", "cities", "days", "apples",
    ]  # fmt: skip
    assert [english.be(person) for person in ("1s", "2s", "3s", "3p")] == ["am", "are", "is", "are"]
    assert (english.article("egg"), english.article("big")) == ("an", "a")


@pytest.mark.parametrize("name", ["copy", "reverse"])
def test_links_connect_equal_letters(name: str) -> None:
    for example in all_examples(name):
        source, target = example.source.split(), example.target.split()
        assert example.links is not None
        assert [source[s] for s, _ in example.links] == [target[t] for _, t in example.links]
        assert len(example.links) == len(source) == len(target) <= copy.MAX_LETTERS
        assert set(source) <= set(string.ascii_lowercase)


def test_copy_and_reverse() -> None:
    assert all(example.target == example.source for example in all_examples("copy"))
    assert all(example.target == example.source[::-1] for example in all_examples("reverse"))
    lengths = [len(example.source.split()) for example in cached("copy").train]
    assert all(lengths.count(length) > 300 for length in range(2, copy.MAX_LETTERS + 1))


def test_numbers() -> None:
    words = {example.source: example.target for example in all_examples("numbers")}
    assert words["0"] == "zero"
    assert words["42"] == "forty two"
    assert words["999"] == "nine hundred and ninety nine"
    assert not {"-", ","} & set("".join(words.values()))
    train = [example.source for example in cached("numbers").train]
    assert set(string.digits) <= set(train)
    assert all(len([n for n in train if len(n) == digits]) > 1500 for digits in (4, 5, 6))


def test_dates_contain_the_numbers_of_the_day() -> None:
    for example in all_examples("dates"):
        day = datetime.date.fromisoformat(example.target)
        assert dates.FIRST <= day <= dates.LAST
        assert str(day.year) in example.source
        assert str(day.day) in example.source.replace(str(day.year), "", 1)


def test_numeric_dates_parse_back() -> None:
    from babel.dates import parse_date

    numeric = [e for e in all_examples("dates") if set(e.source) <= set(string.digits + "/")]
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
    ("source", "ambiguous"),
    [("5/3/1987", True), ("Thu, 05.03.1987", True), ("5. 3. 1987", True), ("13/3/1987", False),
     ("3/13/1987", False), ("1987/3/5", False), ("5 Mar 1987", False)],
)  # fmt: skip
def test_ambiguous_dates(source: str, ambiguous: bool) -> None:
    assert dates.is_ambiguous(source) == ambiguous
    assert not any(dates.is_ambiguous(example.source) for example in cached("dates").test)


def test_written_files_contain_the_dataset(tmp_path: Path) -> None:
    links = ((1, 0), (0, 1))
    first, second, third = (
        Example("a b", "c d", links),
        Example("e", "f", ()),
        Example("g", "é", None),
    )
    datasets.write(Splits(train=(first, second), dev=(third,), test=()), tmp_path / "new")
    read = {path.name: path.read_bytes().decode() for path in (tmp_path / "new").iterdir()}
    assert read == {
        "train.tsv": "a b\tc d\ne\tf\n", "train.align": "0-1 1-0\n\n",
        "dev.tsv": "g\té\n", "test.tsv": "", "test.align": "",
    }  # fmt: skip


def test_split_separates_sources_and_keeps_the_last_of_a_source() -> None:
    examples = [Example(str(n % 50), str(n)) for n in range(60)]
    parts = split(examples, dev=5, test=7, seed=3)
    assert [len(part) for part in (parts.train, parts.dev, parts.test)] == [38, 5, 7]
    split_examples = [*parts.train, *parts.dev, *parts.test]
    assert {example.source for example in split_examples} == {str(n) for n in range(50)}
    assert Example("3", "53") in split_examples
    assert parts == split(examples, dev=5, test=7, seed=3) != split(examples, 5, 7, seed=4)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(DataError, match=r"no dataset 'revers'; did you mean reverse\?"):
        datasets.make("revers")


def test_examples_are_immutable() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Example("a", "b").source = "c"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("lemma", "tense", "person", "form"),
    [
        ("tocar", "V;IND;PST;PFV", 0, "toqué"),
        ("llegar", "V;SBJV;PRS", 3, "lleguemos"),
        ("cazar", "V;SBJV;PRS", 0, "cace"),
        ("mecer", "V;IND;PRS", 0, "mezo"),
        ("rugir", "V;SBJV;PRS", 5, "rujan"),
        ("comer", "V;IND;PST;IPFV", 3, "comíamos"),
        ("vivir", "V;IND;PRS", 4, "vivís"),
        ("hablar", "V;COND", 1, "hablarías"),
        ("hablar", "V;IND;FUT", 0, "hablaré"),
        ("defender", "V;IND;PRS", 2, "defiende"),
        ("defender", "V;IND;PRS", 3, "defendemos"),
    ],
)
def test_verbs_are_inflected_and_spelled_as_in_spanish(
    lemma: str, tense: str, person: int, form: str
) -> None:
    assert inflection.inflect(lemma, tense, person) == form


def test_features_are_written_to_the_third_column(tmp_path: Path) -> None:
    datasets.write(cached("inflection"), str(tmp_path))
    line = (tmp_path / "dev.tsv").read_text(encoding="utf-8").splitlines()[0]
    lemma, form, features = line.split("\t")
    assert cached("inflection").dev[0] == Example(lemma, form, features=features)
    assert features.startswith("V;")

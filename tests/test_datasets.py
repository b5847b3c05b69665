"""Built-in sets: what they promise of their parts, their links and their files."""

import dataclasses
import datetime
import hashlib
import os
import random
import string
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from regard import datasets
from regard.datasets import copy, dates, english, inflection, phrasebook
from regard.datasets.chinese import Chinese
from regard.datasets.pairs import Example, Splits, split
from regard.datasets.spanish import Spanish
from regard.datasets.speaker import Speaker
from regard.datasets.weaving import NOTHING, weave
from regard.errors import DataError

SIZES = {
    "phrasebook": (7_402, 400, 600),
    "dates": (10_000, 500, 1_000),
    "numbers": (8_000, 500, 1_000),
    "inflection": (10_000, 500, 1_000),
    "copy": (10_000, 500, 1_000),
    "reverse": (10_000, 500, 1_000),
}
_made: dict[str, Splits] = {}


def made(name: str) -> Splits:
    if name not in _made:
        _made[name] = datasets.make(name)
    return _made[name]


def everything(name: str) -> tuple[Example, ...]:
    parts = made(name)
    return parts.train + parts.dev + parts.test


@pytest.mark.parametrize("name", datasets.NAMES)
def test_a_seed_gives_one_set(name: str) -> None:
    assert datasets.make(name, 1) == made(name)
    assert datasets.make(name, 2).test != made(name).test


@pytest.mark.parametrize("name", datasets.NAMES)
def test_no_source_stands_twice(name: str) -> None:
    sources = [example.source for example in everything(name)]
    assert len(set(sources)) == len(sources)


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str) -> None:
    parts = made(name)
    assert (len(parts.train), len(parts.dev), len(parts.test)) == SIZES[name]


@pytest.mark.parametrize("name", datasets.NAMES)
def test_the_words_of_dev_and_test_are_learnable(name: str) -> None:
    parts = made(name)
    pieces = list if name in ("dates", "numbers", "inflection") else str.split
    known = {piece for example in parts.train for piece in pieces(example.source)}
    for example in parts.dev + parts.test:
        assert known.issuperset(pieces(example.source)), example


@pytest.mark.parametrize("name", datasets.NAMES)
def test_links_stay_within_the_words(name: str) -> None:
    for example in everything(name):
        sizes = len(example.source.split()), len(example.target.split())
        for source, target in example.links or ():
            assert 0 <= source < sizes[0], example
            assert 0 <= target < sizes[1], example


def is_chinese(example: Example) -> bool:
    return any("\u4e00" <= letter <= "\u9fff" for letter in example.source)


def crosses(example: Example) -> bool:
    links = example.links or ()
    return any(s < t and u > v for s, u in links for t, v in links)


def test_the_phrasebook_does_not_depend_on_the_order_of_hashes() -> None:
    code = "import hashlib; from regard import datasets; print(hashlib.sha256(repr(datasets.make('phrasebook')).encode()).hexdigest())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": "77"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == hashlib.sha256(repr(made("phrasebook")).encode()).hexdigest()


def test_phrasebook_sentences_are_short_plain_and_linked_throughout() -> None:
    for example in everything("phrasebook"):
        source, target = example.source.split(), example.target.split()
        assert example.source == " ".join(source).lower()
        assert example.target == " ".join(target).lower()
        assert max(len(source), len(target)) <= phrasebook.LONGEST
        assert {place for _, place in example.links or ()} == set(range(len(target))), example
        assert ("?" in source) == ("?" in target)


def test_phrasebook_links_cross_in_both_languages() -> None:
    for wanted in (True, False):
        examples = [e for e in everything("phrasebook") if is_chinese(e) == wanted]
        assert len(examples) == phrasebook.PER_LANGUAGE + 1
        assert sum(map(crosses, examples)) > 0.4 * len(examples)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_phrasebook_words_of_dev_and_test_are_frequent_in_train(seed: int) -> None:
    parts = datasets.make("phrasebook", seed)
    known = Counter(word for example in parts.train for word in example.source.split())
    for example in parts.dev + parts.test:
        assert min(known[word] for word in example.source.split()) >= phrasebook.FREQUENT, example


def test_the_famous_pairs_stand_in_test_only_and_can_be_learnt() -> None:
    parts = made("phrasebook")
    famous = parts.test[:2]
    assert [(e.source, e.target, e.links) for e in famous] == [
        ("我 爱 机器 学习", "i love machine learning", ((0, 0), (1, 1), (2, 2), (3, 3))),
        ("te quiero", "i love you", ((0, 2), (1, 0), (1, 1))),
    ]
    for example in parts.train + parts.dev + parts.test[2:]:
        assert example.source not in {"我 爱 机器 学习", "te quiero", "我 爱 你"}
        assert example.target not in {e.target for e in famous}
    known = Counter(word for example in parts.train for word in example.source.split())
    assert all(known[word] >= 40 for e in famous for word in e.source.split())
    two = {e.source for e in parts.train if len(e.source.split()) == 2}
    assert sum(source.startswith("te ") for source in two) >= 3
    assert sum(source.endswith(" quiero") for source in two) >= 1


@pytest.mark.parametrize("language", [Chinese, Spanish])
def test_a_phrase_has_one_translation_however_it_came_about(language: type[Speaker]) -> None:
    speaker, found = language(random.Random(5)), dict[str, Example]()
    for _ in range(15_000):
        example = speaker.sentence().example()
        assert found.setdefault(example.source, example) == example


def test_weaving() -> None:
    her = weave("la:1 | her:1")
    woven = weave("no:1 {whom} veo:2 | i:2 do:1 not:1 see:2 {whom}", whom=her).example()
    assert woven == Example(
        "no la veo", "i do not see her", ((0, 1), (0, 2), (1, 4), (2, 0), (2, 3))
    )
    both = weave("的:12 a | b:1 c:2").example()
    assert both.links == ((0, 0), (0, 1))
    assert weave("{x} a:1 | a:1 {x}", x=NOTHING) == weave("a:1 | a:1")


@pytest.mark.parametrize(
    "template", ["{x} | a", "a | a {x}", "{x} {x} | {x}", "a:1 {x} | a {x}", "{x} {y} | {x} {y}"]
)
def test_weaving_refuses_what_does_not_fit(template: str) -> None:
    with pytest.raises(ValueError):
        weave(template, x=NOTHING)


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
    datasets.write(Splits(train=(one, two), dev=(three,), test=()), tmp_path / "new")
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
        datasets.make("revers")


def test_examples_are_values() -> None:
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
def test_verbs_are_bent_and_spelled_as_in_spanish(
    lemma: str, tense: str, person: int, form: str
) -> None:
    assert inflection.inflect(lemma, tense, person) == form


def test_features_are_written_to_the_third_column(tmp_path: Path) -> None:
    datasets.write(made("inflection"), tmp_path)
    line = (tmp_path / "dev.tsv").read_text(encoding="utf-8").splitlines()[0]
    lemma, form, features = line.split("\t")
    assert made("inflection").dev[0] == Example(f"{lemma}\t{features}", form)
    assert features.startswith("V;")

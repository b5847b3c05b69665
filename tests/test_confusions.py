"""Confusions of tokens: counts, examples, insertions and deletions."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.config import TextConfig
from regard.confusions import (
    Confusion,
    ConfusionExample,
    confusion_table,
    confusions,
    token_splitter,
)
from regard.metrics import per
from regard.text import Tokenizer
from regard.text_table import text_table

tokens = st.lists(st.sampled_from(["a", "b", "c"]), max_size=6)


def test_substitutions_insertions_and_deletions_are_counted_with_examples() -> None:
    outputs = ["AA T", "AA D", "AA", "K AA T S"]
    references = [["AA D"], ["AA T", "AA D"], ["AA T"], ["K AA T"]]
    sources = ["ad", "at", "at2", "cat"]
    assert confusions(sources, outputs, references, str.split) == [
        Confusion(None, "S", 1, (ConfusionExample("cat", "K AA T S", "K AA T"),)),
        Confusion("D", "T", 1, (ConfusionExample("ad", "AA T", "AA D"),)),
        Confusion("T", None, 1, (ConfusionExample("at2", "AA", "AA T"),)),
    ]


def test_the_most_frequent_confusion_comes_first_with_two_examples() -> None:
    outputs, references = ["b", "b", "c b", "d"], [["a"], ["a"], ["c a"], ["a"]]
    first, second = confusions("1234", outputs, references, str.split)
    assert (first.expected, first.written, first.count) == ("a", "b", 3)
    assert [example.source for example in first.examples] == ["1", "2"]
    assert second.count == 1
    assert confusions("1234", outputs, references, str.split, 1) == [first]
    assert confusions("1234", outputs, references, str.split, 0) == []
    assert first.to_dict()["examples"][0] == {"source": "1", "output": "b", "reference": "a"}


def test_the_closest_reference_is_compared() -> None:
    found = confusions(["s"], ["a b c"], [["x y z", "a b", "a b d d"]], str.split)
    assert [(part.expected, part.written) for part in found] == [(None, "c")]


@given(st.lists(st.tuples(tokens, tokens), min_size=1, max_size=6))
def test_the_counts_sum_to_the_edits_and_explain_the_outputs(
    pairs: list[tuple[list[str], list[str]]],
) -> None:
    outputs, references = (
        [" ".join(side) for side in column] for column in zip(*pairs, strict=True)
    )
    found = confusions(outputs, outputs, [[text] for text in references], str.split)
    edits = sum(part.count for part in found)
    length = max(1, sum(len(reference) for _, reference in pairs))
    assert 100 * edits / length == pytest.approx(
        per(outputs, [[text] for text in references]).value
    )
    # replacing the expected tokens with the written ones turns the references into the outputs
    counts: Counter[str | None] = Counter()
    for part in found:
        counts[part.written] += part.count
        counts[part.expected] -= part.count
    for output, reference in pairs:
        counts.subtract(output)
        counts.update(reference)
    assert not any(counts[token] for token in "abc")


@pytest.mark.parametrize(
    ("unit", "text", "expected"),
    [
        ("char", "a b", ["a", " ", "b"]),
        ("char", "a \u00a0b ", ["a", " ", "b"]),
        ("whitespace", "AA1 K", ["AA1", "K"]),
        ("word", "Well, yes.", ["well", ",", "yes", "."]),
        ("bpe", "Well, yes.", ["well", ",", "yes", "."]),
    ],
)
def test_texts_are_split_into_the_tokens_of_the_target(
    unit: str, text: str, expected: list[str]
) -> None:
    tokenizer = Tokenizer.train([text] * 3, TextConfig(unit=unit))
    split = token_splitter(tokenizer, lowercase=unit in ("word", "bpe"))
    assert split(text) == expected


def test_the_joiner_of_words_is_a_character_of_other_tokens() -> None:
    tokenizer = Tokenizer.train(["l e z\u203f a m i"], TextConfig(unit="whitespace"))
    split = token_splitter(tokenizer)
    (found,) = confusions(["les amis"], ["l e z a m i"], [["l e z\u203f a m i"]], split)
    assert (found.expected, found.written) == ("z\u203f", "z")
    assert split("\u203f\u203f") == ["\u203f\u203f"]
    words = Tokenizer.train(["a"], TextConfig(unit="word"))
    assert token_splitter(words)("a \u203f\u203f") == ["a", *["\u203f"] * 2]


def test_wide_characters_keep_the_columns_of_the_table() -> None:
    heading, rule, *rows = text_table([("a", "b"), ("我爱", "1"), ("x", "20")]).splitlines()
    assert (heading, rule) == ("a      b", "--------")
    assert rows == ["我爱   1", "x     20"]


def test_control_characters_and_scripts_from_right_to_left_change_no_cell() -> None:
    _, _, row = text_table([("a", "b"), ("x\x1b[31m\n", "1")]).splitlines()
    assert row == r"x\x1b[31m\n  1"
    _, _, row = text_table([("a", "b", "c"), ("שלום", "ספר", "1")], left=(0, 1)).splitlines()
    isolated = ["\u2068שלום\u2069\u200e", "\u2068ספר\u2069\u200e"]
    assert row == "  ".join([*isolated, "1"])


@pytest.mark.parametrize("unit", ["char", "word", "whitespace"])
def test_an_unknown_token_is_one_token(unit):
    tokenizer = Tokenizer.train(["the cat sat"], TextConfig(unit=unit))
    split = token_splitter(tokenizer)
    spaces = [" "] if unit == "char" else []
    assert split("<unk> the") == ["<unk>", *spaces, *split("the")]


def test_the_table_marks_spaces_and_missing_tokens() -> None:
    found = confusions(["s", "t"], ["ab", ""], [["a b"], ["c"]], list)
    lines = confusion_table(found).splitlines()
    assert lines[0].split() == [
        "expected",
        "written",
        "count",
        "example:",
        "output",
        "(reference)",
    ]
    assert lines[2].split() == ["␣", "–", "1", "ab", "(a", "b)"]
    assert lines[3].split() == ["c", "–", "1", "–", "(c)"]

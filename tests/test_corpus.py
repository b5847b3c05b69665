import dataclasses
import json
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from regard.batching import Example
from regard.config import Config, DataConfig, TextConfig, TrainingConfig
from regard.corpus import Corpus, make_corpus
from regard.errors import ConfigError, DataError
from regard.pairs import PairLike
from regard.text import EOS, UNK, Tokenizer, unknown_tokens_message

PAIRS = [("ab", "A B"), ("ba", "B A"), ("aab", "A A B"), ("ab", "A B B")]
DEV = [("ab", "A B"), ("bb", "B B"), ("ab", "B")]
UNITS: dict[str, Any] = {"source": TextConfig(unit="char"), "target": TextConfig(unit="whitespace")}


def corpus(
    pairs: Sequence[PairLike] | None = PAIRS,
    dev: list[tuple[str, str]] | None = DEV,
    seed: int = 1,
    **data: Any,
) -> Corpus:
    training = TrainingConfig(seed=seed)
    return make_corpus(Config(data=DataConfig(**data), training=training, **UNITS), pairs, dev)


def test_pairs_become_examples_and_dev_sources_their_references() -> None:
    result = corpus()
    assert [result.source.decode(example.source) for example in result.train] == [
        source for source, _ in PAIRS
    ]
    assert all(example.source[-1] == EOS for example in result.train)
    assert [result.target.decode(example.target) for example in result.train] == [
        target for _, target in PAIRS
    ]
    assert result.dev_sources == [("ab", None), ("bb", None)]
    assert result.dev_references == [["A B", "B"], ["B B"]]
    assert result.max_target_length == 3


def test_a_source_with_features_contains_no_tab() -> None:
    pairs: list[Any] = [("ab", "A", "V"), ("a\tb", "A", "V"), ("b", "B", "V")]
    with pytest.raises(DataError, match="pair 2 has a TAB in its source"):
        corpus(pairs, pairs[:1], features_column=3)
    result = corpus(pairs, pairs[:1], features_column=3, bad_lines="skip")
    assert len(result.train) == 2
    without = [pair[:2] for pair in pairs]
    assert len(corpus(without, without[:1]).train) == 3  # without features, a TAB is text


def test_files_and_lists_give_the_same_corpus(tmp_path: Path) -> None:
    for name, pairs in (("train", PAIRS), ("dev", DEV)):
        (tmp_path / name).write_text("".join(f"{s}\t{t}\n" for s, t in pairs))
    data = DataConfig(train=str(tmp_path / "train"), dev=str(tmp_path / "dev"))
    read = make_corpus(Config(data=data, **UNITS), None, None)
    listed = corpus()
    assert (read.train, read.dev, read.source) == (listed.train, listed.dev, listed.source)
    assert read.fingerprint() == listed.fingerprint()


def test_the_fingerprint_depends_on_the_pairs() -> None:
    # stored in the checkpoints of earlier versions
    assert corpus(PAIRS[:3]).fingerprint() == "e40ea14981201fe5"
    assert corpus(PAIRS[:3]).fingerprint() != corpus(PAIRS).fingerprint()
    assert corpus(PAIRS[::-1]).fingerprint() != corpus(PAIRS).fingerprint()


def test_training_pairs_are_required() -> None:
    with pytest.raises(ConfigError, match=r"there are no training pairs: set data\.train"):
        corpus(None)
    with pytest.raises(
        DataError, match=r"train contains no pair; expected pairs \(source, target\)"
    ):
        corpus([])
    with pytest.raises(DataError, match="dev contains no pair"):
        corpus(dev=[])


def test_bad_lines_stop_by_default() -> None:
    with pytest.raises(
        DataError,
        match=r"train: 2 of 6 pairs cannot be used: pair 5 has an empty target; pair 6 is empty; "
        r"correct them, or skip them with --data\.bad_lines skip",
    ):
        corpus([*PAIRS, ("x", ""), (" ", "")])
    with pytest.raises(DataError, match="dev: 1 of 4 pairs"):
        corpus(dev=[*DEV, ("", "x")])


def test_skipped_lines_are_counted_in_the_notes() -> None:
    result = corpus([("x", ""), *PAIRS], bad_lines="skip")
    assert "train: 1 pair skipped (pair 1 has an empty target)" in result.notes
    assert len(result.train) == len(PAIRS)
    many = corpus([("x", "")] * 7 + PAIRS, bad_lines="skip")
    (note,) = (note for note in many.notes if "7 pairs skipped" in note)
    assert note.endswith("pair 5 has an empty target; …)")


def test_nothing_left_after_skipping_is_an_error() -> None:
    with pytest.raises(DataError, match="contains no pair"):
        corpus([("x", "")], bad_lines="skip")


@pytest.mark.parametrize("long", [("abababa", "A"), ("a", "A B A B A B A")])
def test_a_line_that_is_too_long_is_bad(long: tuple[str, str]) -> None:
    side = "source" if len(long[0]) > 1 else "target"
    reason = rf"pair 3 has a {side} of 7 tokens, above the limit of 6"
    pairs = [*PAIRS[:2], long, *PAIRS[2:]]
    with pytest.raises(DataError, match=rf"1 of 5 .*{reason}; raise data\.max_length"):
        corpus(pairs, max_length=6)
    result = corpus(pairs, max_length=6, bad_lines="skip")
    assert f"train: 1 pair skipped ({reason})" in result.notes
    assert len(result.train) == 4
    assert len(corpus(pairs, max_length=7).train) == 5


def test_long_lines_are_reported_by_number_after_skipped_lines() -> None:
    result = corpus([("", ""), ("", ""), ("a" * 9, "A"), *PAIRS], max_length=6, bad_lines="skip")
    assert (
        "train: 1 pair skipped (pair 3 has a source of 9 tokens, above the limit of 6)"
        in result.notes
    )


def test_a_corpus_of_long_lines_only_is_an_error() -> None:
    with pytest.raises(DataError, match=r"every pair is longer than data\.max_length 1"):
        corpus([("ab", "A")], max_length=1, bad_lines="skip")


def test_extra_columns_are_noted_once(tmp_path: Path) -> None:
    path = tmp_path / "f.tsv"
    path.write_text("ab\tA B\tx\nba\tB A\ty\tz\nbb\tB B\n")
    notes = corpus(None, DEV, train=str(path)).notes
    column_notes = [note for note in notes if "further columns" in note]
    assert column_notes == [
        "train: further columns ignored on 2 lines (--data.features_column reads features)"
    ]


def test_without_dev_pairs_sources_are_held_out() -> None:
    pairs = [(f"{'ab' * (n % 9)}{'b' * n}a", str(copy)) for n in range(100) for copy in (1, 2)]
    result = corpus(pairs, None)
    train = {result.source.decode(example.source) for example in result.train}
    assert len(result.dev_sources) == 5
    assert train.isdisjoint(source for source, _ in result.dev_sources)
    assert all(references == ["1", "2"] for references in result.dev_references)
    assert len(result.train) + len(result.dev) == 200
    assert "dev: 10 pairs held out from the training pairs" in result.notes
    assert corpus(pairs, None).dev_sources == result.dev_sources
    assert corpus(pairs, None, seed=2).dev_sources != result.dev_sources


def test_the_part_without_a_pair_of_valid_length_is_named() -> None:
    messages: set[str] = set()
    for seed in range(8):
        with pytest.raises(DataError) as caught:
            corpus([("aaaaa", "A"), ("b", "B")], None, max_length=4, bad_lines="skip", seed=seed)
        messages.add(str(caught.value))
    problem = "every pair is longer than data.max_length 4; raise it"
    parts = "train (pairs that are not held out)", "train (held-out pairs)"
    assert messages == {f"{part}: {problem}" for part in parts}


def test_sources_that_a_tokenizer_may_read_alike_are_held_out_together(tmp_path: Path) -> None:
    variants = ("ΰté {}", "Υ\u0308\u0301té {}", "ΰte\u0301 {}", " ΰTÉ  {} ", "ΰté{}")
    pairs = [(variant.format(n), f"t{n}") for variant in variants for n in range(60)]
    table = tmp_path / "f.jsonl"
    lines = (json.dumps({"source": source, "target": target}) for source, target in pairs)
    table.write_text("\n".join(lines), encoding="utf-8")
    for result in (corpus(pairs, None), corpus(None, None, train=str(table))):
        held_out = {target for targets in result.dev_references for target in targets}
        train = {result.target.decode(result.train[n].target) for n in range(len(result.train))}
        assert (len(held_out), len(train), len(result.dev)) == (3, 57, 15)
        assert held_out.isdisjoint(train)


def test_sources_with_the_same_features_are_held_out_together() -> None:
    pairs = [(f"a{n}", "t", features) for n in range(60) for features in ("V;PST", "V | PST")]
    sources = [source for source, _ in corpus(pairs, None, features_column=3).dev_sources]
    assert (len(sources), len({*sources})) == (6, 3)


def test_other_sources_are_held_out_as_before() -> None:
    pairs = [(f"{'Ab' * (n % 9)}{'b' * n}", str(n)) for n in range(1, 60)]
    sources = sorted(source for source, _ in pairs)
    random.Random(3).shuffle(sources)  # the rule of the first runs, which can still be resumed
    assert {source for source, _ in corpus(pairs, None, seed=3).dev_sources} == {*sources[:2]}


@pytest.mark.parametrize("index", [0, 7, 11])
def test_lines_keep_their_numbers_when_sources_are_held_out(index: int) -> None:
    pairs = [("ab" * n + "a", "A") for n in range(1, 13)]
    pairs[index] = ("a" * 99, "A")
    with pytest.raises(DataError, match=f"pair {index + 1} has a source of 99 tokens"):
        corpus(pairs, None, max_length=50)


def test_one_source_cannot_be_held_out() -> None:
    with pytest.raises(
        DataError, match=r"only one source, .*; give validation pairs \(data\.dev, "
    ):
        corpus([("ab", "A"), ("ab", "B")], None)


def test_the_vocabulary_contains_only_training_tokens() -> None:
    result = corpus(dev=[("axa", "A"), ("x", "B Y")])
    assert "dev: source tokens not in the vocabulary: 2 ('x' 2x)" in result.notes
    assert "dev: target tokens not in the vocabulary: 1 ('Y' 1x)" in result.notes
    assert result.dev[0].source.count(UNK) == 1


def test_unknown_tokens_of_skipped_lines_do_not_count() -> None:
    result = corpus(dev=[*DEV, ("axa" * 9, "A")], max_length=9, bad_lines="skip")
    assert not any("not in the vocabulary" in note for note in result.notes)


def test_existing_tokenizers_are_reused() -> None:
    tokenizers = tuple(Tokenizer.train(["xyzab"], TextConfig(unit="char")) for _ in range(2))
    result = make_corpus(Config(), PAIRS, DEV, tokenizers)  # type: ignore[arg-type]
    assert (result.source, result.target) == tokenizers
    assert "source: unit char, vocabulary of 9" in result.notes


def test_the_chosen_unit_is_noted_and_resolved() -> None:
    config = Config(source=TextConfig(lowercase=True))
    result = make_corpus(config, PAIRS, DEV)
    assert any(note.startswith("source: unit char (chosen from the data)") for note in result.notes)
    resolved = result.config
    assert (resolved.source.unit, resolved.target.unit) == (result.source.unit, result.target.unit)
    assert resolved.source.lowercase
    assert "auto" not in (resolved.source.unit, resolved.target.unit)


def test_unknown_tokens_are_reported_without_joiners() -> None:
    message = unknown_tokens_message(Counter({"‿.": 2, ".": 1, "‿": 1}))
    assert message == "tokens not in the vocabulary: 4 ('.' 3x, '‿' 1x)"


def test_the_note_says_where_the_pairs_are_from() -> None:
    notes = corpus([("a", "b"), ("c", "d")], [("a", "b")]).notes
    assert "train: 2 pairs given in memory" in notes
    assert "dev: 1 pair given in memory" in notes


def test_dev_sources_that_are_in_the_training_pairs_are_counted() -> None:
    message = "do not measure performance on unseen data"
    train = [("a", "A"), ("b", "B"), ("c", "C")]
    notes = corpus(train, [("a", "x"), ("b", "B"), ("b", "x"), ("d", "D")]).notes
    assert (
        f"dev: 2 of 3 distinct sources are in the training pairs; results for them {message}"
        in notes
    )
    notes = corpus(train, [("c", "x"), ("d", "D")]).notes
    assert (
        f"dev: 1 of 2 distinct sources is in the training pairs; results for it {message}" in notes
    )
    for dev in ([("d", "D")], None):
        assert not any(message in note for note in corpus(train, dev).notes)


def test_the_fingerprint_depends_on_the_tokens_to_copy() -> None:
    train = [Example([5], [5], copies=[copy]) for copy in (5, 6)]
    prints = {dataclasses.replace(corpus(), train=[example]).fingerprint() for example in train}
    assert len(prints) == 2


def test_pairs_in_memory_need_the_features_that_the_settings_name() -> None:
    with pytest.raises(DataError, match=r"1 of 2 pairs .*: pair 2 has no column 3 with features"):
        corpus([("a", "A", "V"), ("b", "B")], features_column=3)

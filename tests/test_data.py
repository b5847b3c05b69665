import random
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data import Example, Pair, bucket, collate, epoch, pad, pairs_from, read_pairs
from regard.errors import DataError
from regard.text import BOS, EOS, PAD

lengths = st.integers(1, 30)
sizes = st.lists(st.tuples(lengths, lengths), max_size=60)
ids = st.lists(st.integers(4, 99), max_size=9)
examples = st.lists(
    st.builds(Example, ids.map(lambda row: [*row, EOS]), ids, st.just(())), max_size=40
)


def numbered(count: int) -> list[Example]:
    """Examples of several lengths that can be told apart."""
    return [Example([*[4 + n] * (1 + n % 5), EOS], [4 + n] * (n % 7)) for n in range(count)]


def sources(batches: Sequence[torch.Tensor]) -> list[int]:
    return [int(row[0]) for batch in batches for row in batch]


def test_a_tsv_file_gives_pairs_with_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "f.tsv"
    path.write_text("a b\tA\n\nc\tC\textra\tmore\nd\u2028e\tD\x85E\n", encoding="utf-8", newline="")
    found = read_pairs(str(path))
    assert found.pairs == [Pair("a b", "A"), Pair("c", "C"), Pair("d\u2028e", "D\x85E")]
    assert found.numbers == [1, 3, 4]
    assert found.extra_columns == 1
    assert found.bad == [(2, "is empty")]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        (" \t ", "is empty"),
        ("only", "has no second column (TAB)"),
        ("only spaces here", "has no second column (TAB)"),
        ("\tA", "has an empty source"),
        (" \tA", "has an empty source"),
        ("a\t", "has an empty target"),
        ("a\t \tthird", "has an empty target"),
    ],
)
def test_a_bad_line_is_listed_with_its_reason(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "f.tsv"
    path.write_text(f"x\ty\n{line}\nz\tw\n")
    found = read_pairs(str(path))
    assert found.bad == [(2, reason)]
    assert [pair.source for pair in found.pairs] == ["x", "z"]
    with pytest.raises(DataError, match=r"f\.tsv: 1 of 3 lines cannot be used: line 2 .*; mend it"):
        found.require_good("mend it")


def test_a_long_list_of_bad_lines_is_cut() -> None:
    found = pairs_from([("", "x")] * 1234)
    with pytest.raises(
        DataError, match=r"1,234 of 1,234 .* line 20 has an empty source; and 1,214"
    ):
        found.require_good("mend them")


def test_good_pairs_are_good() -> None:
    pairs_from([("a", "b")]).require_good("")


def test_parallel_files_are_put_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "f.src").write_text("a\tx\nb\n\n")
    (tmp_path / "f.tgt").write_text("A\n\nC\n")
    found = read_pairs(f"{tmp_path / 'f.src'},{tmp_path / 'f.tgt'}")
    assert found.pairs == [Pair("a\tx", "A")]
    assert found.bad == [(2, "has an empty target"), (3, "has an empty source")]


def test_parallel_files_must_be_equally_long(tmp_path: Path) -> None:
    (tmp_path / "f.src").write_text("a\nb\n")
    (tmp_path / "f.tgt").write_text("A\n")
    with pytest.raises(DataError, match=r"f\.src has 2 lines and .*f\.tgt 1; parallel files need"):
        read_pairs(f"{tmp_path / 'f.src'},{tmp_path / 'f.tgt'}")


def test_a_tsv_file_may_have_a_comma_in_its_name(tmp_path: Path) -> None:
    (tmp_path / "a,b.tsv").write_text("a\tA\n")
    assert read_pairs(str(tmp_path / "a,b.tsv")).pairs == [Pair("a", "A")]


@given(sizes=sizes, bound=st.integers(1, 200), seed=st.none() | st.integers(0, 9))
def test_buckets_hold_every_example_once_within_the_bound(
    sizes: list[tuple[int, int]], bound: int, seed: int | None
) -> None:
    batches = bucket(sizes, bound, None if seed is None else random.Random(seed))
    assert sorted(index for batch in batches for index in batch) == list(range(len(sizes)))
    for batch in batches:
        assert batch
        widest = max(sizes[i][0] for i in batch) + max(sizes[i][1] for i in batch)
        assert len(batch) == 1 or len(batch) * widest <= bound


def test_examples_of_one_size_fill_their_batches() -> None:
    assert [len(batch) for batch in bucket([(3, 2)] * 25, 50)] == [10, 10, 5]


def test_without_a_generator_short_examples_come_first() -> None:
    assert bucket([(9, 1), (2, 3), (2, 1)], 1) == [[2], [1], [0]]


@given(examples=examples.filter(len))
def test_a_batch_is_its_examples_and_padding(examples: list[Example]) -> None:
    batch = collate(examples)
    assert batch.source.shape == (len(examples), max(len(e.source) for e in examples))
    assert batch.inputs.shape == batch.targets.shape
    assert batch.inputs.shape[1] == max(len(e.target) for e in examples) + 1
    assert batch.target_tokens == sum(len(e.target) + 1 for e in examples)
    for row, (source, target, _) in enumerate(examples):
        assert batch.lengths[row] == len(source)
        for tensor, real in (
            (batch.source, source),
            (batch.inputs, [BOS, *target]),
            (batch.targets, [*target, EOS]),
        ):
            assert tensor[row, : len(real)].tolist() == real
            assert (tensor[row, len(real) :] == PAD).all()


def test_nothing_pads_to_nothing() -> None:
    assert pad([]).numel() == 0
    assert pad([[], [5]]).tolist() == [[PAD], [5]]


@given(count=st.integers(0, 50), bound=st.integers(1, 80), number=st.integers(0, 5))
def test_an_epoch_holds_every_example_once(count: int, bound: int, number: int) -> None:
    batches = [batch.source for batch in epoch(numbered(count), bound, 1, number)]
    assert sorted(sources(batches)) == [4 + n for n in range(count)]


@given(seed=st.integers(0, 99), number=st.integers(0, 9), skip=st.integers(0, 30))
def test_an_epoch_can_be_taken_up_where_it_was_left(seed: int, number: int, skip: int) -> None:
    whole = list(epoch(numbered(40), 40, seed, number))
    rest = list(epoch(numbered(40), 40, seed, number, skip))
    assert len(rest) == max(0, len(whole) - skip)
    for left, right in zip(rest, whole[skip:], strict=True):
        assert left.copies is right.copies is None
        assert all(torch.equal(a, b) for a, b in zip(left[:4], right[:4], strict=True))


def test_the_order_changes_with_the_epoch_and_the_seed() -> None:
    orders = [
        tuple(sources([batch.source for batch in epoch(numbered(40), 40, seed, number)]))
        for seed, number in ((1, 0), (1, 1), (2, 0), (1, 11), (11, 1))
    ]
    assert len(set(orders)) == 5


def test_features_go_with_the_source_wherever_their_column_stands(tmp_path: Path) -> None:
    last, middle, first = (tmp_path / name for name in ("last.tsv", "middle.tsv", "first.tsv"))
    last.write_text("run\tran\tV;PST\nsee\tsaw\tV;PST\textra\n", encoding="utf-8")
    middle.write_text("run\tV;PST\tran\n", encoding="utf-8")
    first.write_text("V;PST\trun\tran\n", encoding="utf-8")
    found = read_pairs(str(last), features_column=3)
    assert found.pairs == [Pair("run\tV;PST", "ran"), Pair("see\tV;PST", "saw")]
    assert found.extra_columns == 1
    assert read_pairs(str(middle), features_column=2).pairs == [Pair("run\tV;PST", "ran")]
    assert read_pairs(str(first), features_column=1).pairs == [Pair("run\tV;PST", "ran")]


def test_lines_without_their_features_are_bad(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("run\tran\tV\nsee\tsaw\n\n\tx\tV\nsee\t\tV\ngo\tgo\t\n", encoding="utf-8")
    found = read_pairs(str(path), features_column=3)
    assert found.pairs == [Pair("run\tV", "ran"), Pair("go\t", "go")]
    assert found.numbers == [1, 6]
    assert [tuple(bad) for bad in found.bad] == [
        (2, "has no column 3 with features"),
        (3, "is empty"),
        (4, "has features and no source"),
        (5, "has an empty target"),
    ]


def test_parallel_files_have_no_columns(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="parallel files have no columns, so features_column 3"):
        read_pairs(f"{tmp_path / 'a'},{tmp_path / 'b'}", features_column=3)

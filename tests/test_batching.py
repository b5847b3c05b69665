import random
from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st

from regard.batching import Example, bucket, collate, epoch, pad
from regard.text import BOS, EOS, PAD

lengths = st.integers(1, 30)
sizes = st.lists(st.tuples(lengths, lengths), max_size=60)
ids = st.lists(st.integers(4, 99), max_size=9)
examples = st.lists(
    st.builds(Example, ids.map(lambda row: [*row, EOS]), ids, st.just(()), st.none()), max_size=40
)


def numbered(count: int) -> list[Example]:
    """Return distinct examples of several lengths."""
    return [Example([*[4 + n] * (1 + n % 5), EOS], [4 + n] * (n % 7)) for n in range(count)]


def first_ids(batches: Iterable[Sequence[Example]]) -> list[int]:
    return [example.source[0] for batch in batches for example in batch]


@given(sizes=sizes, bound=st.integers(1, 200), seed=st.none() | st.integers(0, 9))
def test_buckets_hold_every_example_once_within_the_bound(
    sizes: list[tuple[int, int]], bound: int, seed: int | None
) -> None:
    batches = bucket(sizes, bound, None if seed is None else random.Random(seed))
    assert sorted(index for batch in batches for index in batch) == list(range(len(sizes)))
    for batch in batches:
        assert len(batch)
        widest = max(sizes[i][0] for i in batch) + max(sizes[i][1] for i in batch)
        assert len(batch) == 1 or len(batch) * widest <= bound


def test_examples_of_equal_size_fill_their_batches() -> None:
    assert [len(batch) for batch in bucket([(3, 2)] * 25, 50)] == [10, 10, 5]


def test_without_a_generator_batches_are_sorted_by_size() -> None:
    assert [batch.tolist() for batch in bucket([(9, 1), (2, 3), (2, 1)], 1)] == [[2], [1], [0]]


@given(examples=examples.filter(len))
def test_a_batch_holds_its_examples_and_padding(examples: list[Example]) -> None:
    batch = collate(examples)
    assert batch.source.shape == (len(examples), max(len(e.source) for e in examples))
    assert batch.inputs.shape == batch.targets.shape
    assert batch.inputs.shape[1] == max(len(e.target) for e in examples) + 1
    assert batch.target_tokens == sum(len(e.target) + 1 for e in examples)
    for row, (source, target, *_) in enumerate(examples):
        assert batch.lengths[row] == len(source)
        for tensor, real in (
            (batch.source, source),
            (batch.inputs, [BOS, *target]),
            (batch.targets, [*target, EOS]),
        ):
            assert tensor[row, : len(real)].tolist() == real
            assert (tensor[row, len(real) :] == PAD).all()


def test_padding_no_rows_gives_an_empty_tensor() -> None:
    assert pad([]).numel() == 0
    assert pad([[], [5]]).tolist() == [[PAD], [5]]


@given(count=st.integers(0, 50), bound=st.integers(1, 80), number=st.integers(0, 5))
def test_an_epoch_holds_every_example_once(count: int, bound: int, number: int) -> None:
    assert sorted(first_ids(epoch(numbered(count), bound, 1, number))) == [
        4 + n for n in range(count)
    ]


@given(seed=st.integers(0, 99), number=st.integers(0, 9), skip=st.integers(0, 30))
def test_an_epoch_resumes_after_skipped_batches(seed: int, number: int, skip: int) -> None:
    full_epoch = list(epoch(numbered(40), 40, seed, number))
    resumed = list(epoch(numbered(40), 40, seed, number, skip))
    assert len(resumed) == max(0, len(full_epoch) - skip)
    assert resumed == full_epoch[skip:]


def test_the_order_changes_with_the_epoch_and_the_seed() -> None:
    orders = [
        tuple(first_ids(epoch(numbered(40), 40, seed, number)))
        for seed, number in ((1, 0), (1, 1), (2, 0), (1, 11), (11, 1))
    ]
    assert len(set(orders)) == 5

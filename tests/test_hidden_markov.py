"""Hidden Markov models for alignment, compared with an enumeration of all alignments."""

import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard import hidden_markov
from regard.hidden_markov import HiddenMarkovAligner, HiddenMarkovModel

NULL, SPAN = 0.2, 7
Counted = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _model(types: int, seed: int) -> HiddenMarkovModel:
    generator = torch.Generator().manual_seed(seed)
    model = HiddenMarkovModel(types, types)
    table = torch.rand(types, types, generator=generator, dtype=torch.float64)
    model.table = table / table.sum(1, keepdim=True)
    model.jumps = torch.rand(2 * SPAN + 1, generator=generator, dtype=torch.float64)
    return model


def _enumerate(model: HiddenMarkovModel, source: list[int], target: list[int]) -> Counted:
    """Return the posteriors of words and of the null token, and the expected jumps, by definition."""
    assert model.jumps is not None
    jumps = model.jumps

    def jump(before: int, after: int) -> int:
        return min(max(after - before, -SPAN), SPAN) + SPAN

    def move(before: int, after: int) -> torch.Tensor:
        total = sum(jumps[jump(before, position)] for position in range(len(source)))
        return jumps[jump(before, after)] / total

    weights = torch.zeros(len(target), len(source), dtype=torch.float64)
    null, counts = torch.zeros(len(target)).double(), torch.zeros(2, 2 * SPAN + 1).double()
    states = [*itertools.product(range(len(source)), (False, True))]
    for path in itertools.product(states, repeat=len(target)):
        probability, before = torch.ones(()).double(), -1
        for (position, is_null), token in zip(path, target, strict=True):
            if is_null:  # the position is kept; before the first token, it is drawn
                kept = move(-1, position) if before < 0 else float(position == before)
                probability = probability * NULL * model.table[0, token] * kept
            else:
                emitted = model.table[source[position], token]
                probability = probability * (1 - NULL) * move(before, position) * emitted
            before = position
        before = -1
        for t, (position, is_null) in enumerate(path):
            if is_null:
                null[t] += probability
            else:
                weights[t, position] += probability
                counts[0, jump(before, position)] += probability
                for place in range(len(source)):
                    counts[1, jump(before, place)] += probability
            before = position
    total = weights[0].sum() + null[0]
    return weights / total, null / total, counts / total


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(0, 99))  # fmt: skip
def test_the_posteriors_are_those_of_all_alignments(
    source: list[int], target: list[int], seed: int
) -> None:
    model = _model(5, seed)
    found = model.posteriors(torch.tensor([source]), torch.tensor([target]))
    weights, null, counts = _enumerate(model, source, target)
    torch.testing.assert_close(found.weights[0], weights)
    torch.testing.assert_close(found.null[0], null)
    torch.testing.assert_close(found.jumps, counts)


def test_with_uniform_jumps_the_posteriors_are_those_of_model_1() -> None:
    model = _model(5, 0)
    model.jumps = None
    source, target = [1, 3, 4], [2, 2]
    found = model.posteriors(torch.tensor([source]), torch.tensor([target]))
    words = (1 - NULL) / 3 * model.table[source][:, target].T
    null = NULL * model.table[0, target]
    total = words.sum(1) + null
    torch.testing.assert_close(found.weights[0], words / total[:, None])
    torch.testing.assert_close(found.null[0], null / total)


def test_a_batch_equals_its_items() -> None:
    model = _model(9, 1)
    source, target = torch.randint(1, 9, (6, 5)), torch.randint(1, 9, (6, 4))
    together = model.posteriors(source, target)
    alone = [model.posteriors(source[k : k + 1], target[k : k + 1]) for k in range(6)]
    torch.testing.assert_close(together.weights, torch.cat([each.weights for each in alone]))
    torch.testing.assert_close(together.null, torch.cat([each.null for each in alone]))
    torch.testing.assert_close(together.jumps, sum(each.jumps for each in alone))


@pytest.mark.parametrize("shuffled", [False, True])
def test_a_dictionary_is_found_in_any_word_order(shuffled: bool) -> None:
    rng = random.Random(0)
    sources = [[rng.randrange(30) for _ in range(rng.randint(2, 7))] for _ in range(300)]
    orders = [rng.sample(range(len(ids)), len(ids)) if shuffled else range(len(ids)) for ids in sources]  # fmt: skip
    targets = [[100 + ids[i] for i in order] for ids, order in zip(sources, orders, strict=True)]
    rounds: list[int] = []
    aligner = HiddenMarkovAligner(sources, targets, rounds.append)
    assert sum(rounds) == sum(hidden_markov.ROUNDS)
    right = total = 0
    for weights, ids, order in zip(aligner.weights(sources, targets), sources, orders, strict=True):
        assert weights.shape == (len(ids), len(ids))
        found = weights.argmax(1).tolist()
        right += sum(ids[i] == ids[j] for i, j in zip(found, order, strict=True))
        total += len(ids)
    assert right / total > 0.99


def test_empty_sides_have_no_weights_and_unknown_tokens_have_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hidden_markov, "_TYPES", 2)
    sources, targets = [[1, 2], [], [3, 1, 1]], [[4, 5], [4], [6, 4, 4]]
    aligner = HiddenMarkovAligner(sources, targets)
    shapes = [weights.shape for weights in aligner.weights(sources, targets)]
    assert shapes == [(2, 2), (1, 0), (3, 3)]
    (unseen,) = aligner.weights([[1, 9]], [[4, 8]])
    assert np.isfinite(unseen).all()
    assert (unseen > 0).any(1).all()
    assert aligner.weights([], []) == []
    assert HiddenMarkovAligner([], []).weights([], []) == []


def test_long_jumps_are_not_learned_from_long_sentences() -> None:
    rng = random.Random(1)
    sources = [
        rng.choices(range(6), k=40) for _ in range(100)
    ]  # each token occurs about seven times
    aligner = HiddenMarkovAligner(sources, sources)
    right = sum(
        int((found.argmax(1) == np.arange(40)).sum()) for found in aligner.weights(sources, sources)
    )
    assert right / 4000 > 0.99


def test_pairs_may_be_longer_than_those_of_training() -> None:
    rng = random.Random(3)
    sources = [rng.choices(range(8), k=rng.randint(1, 4)) for _ in range(400)]
    aligner = HiddenMarkovAligner(sources, sources)
    longer = rng.choices(range(8), k=20)  # with jumps that no training pair has room for
    (weights,) = aligner.weights([longer], [longer])
    assert weights.argmax(1).tolist() == [*range(20)]

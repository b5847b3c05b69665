"""Reranking: right-to-left models rescore the outputs of a search."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from regard.decoders.posterior import values_per_position
from regard.hypotheses import Hypothesis, length_normalization
from regard.inference import InferenceModel
from regard.model_folder import TrainedModel
from regard.request import PreparedRequest
from regard.search import forced_decode

_LOWEST = -1e4
"""Lower bound on the log-probability of an output, which a model that copies may exclude; finite, so that outputs
that it excludes have an order."""
_MOST_VALUES = 1 << 22
"""Number of log-probabilities of tokens, and of values at source positions, that a member computes at once; 16 MiB
in float32."""


class _Row(NamedTuple):
    """One output to score."""

    source: int
    output: Hypothesis


class Reranker:
    """The right-to-left members of an ensemble, which score the outputs that the other members find.

        log p(y | x) = 1/M (S log p_S(y | x) + R log p_R(y | x)),   M = S + R

    p_S is the distribution of the S members that search, and p_R that of the R right-to-left members
    (Sennrich et al. 2016, arXiv:1606.02891).
    """

    def __init__(self, ensemble: TrainedModel, device: torch.device) -> None:
        assert ensemble.reranker is not None
        trained = ensemble.reranker
        self.device = device
        self._share = len(trained.members or (trained,)) / len(ensemble.members)
        self._inference = InferenceModel(trained.model)
        members = [member.model.decoder for member in trained.members or (trained,)]
        self._values_per_position = values_per_position(members)

    @torch.inference_mode()
    def rerank(
        self,
        batch: PreparedRequest,
        outputs: Sequence[Sequence[Hypothesis]],
        length_penalty: float,
        on_step: Callable[[], None] | None = None,
    ) -> list[list[Hypothesis]]:
        """Return the outputs for each source with their scores by all members, best first.

        Scores are divided by the length penalty as in the search; `on_step` is called several times.
        """
        model, _ = self._inference.prepared()
        memory = batch.encode(model, self.device)
        rescored: list[list[Hypothesis]] = [[] for _ in outputs]
        positions = max((source.length for source in batch.sources), default=0)
        values = model.decoder.vocabulary + positions * self._values_per_position
        for rows in _chunks(outputs, values):
            if on_step is not None:
                on_step()
            selected = memory.select(torch.tensor([row.source for row in rows], device=self.device))
            targets = [row.output.ids[::-1] for row in rows]
            found = forced_decode(model.decoder, selected, targets, need_weights=False)
            for (source, output), reverse in zip(rows, found, strict=True):
                log_prob = (1 - self._share) * output.log_prob
                log_prob += self._share * max(reverse.log_prob, _LOWEST)
                score = log_prob / length_normalization(len(output.ids) + 1, length_penalty)
                rescored[source].append(output._replace(score=score, log_prob=log_prob))
        return [sorted(each, key=lambda output: -output.score) for each in rescored]


def _chunks(outputs: Sequence[Sequence[Hypothesis]], values: int) -> Iterator[list[_Row]]:
    """Yield the outputs by length, in parts of bounded size with at most as many outputs as sources.

    Args:
        outputs: the outputs of each source.
        values: number of values that are computed for a token.
    """
    rows = [_Row(source, output) for source, found in enumerate(outputs) for output in found]
    rows.sort(key=lambda row: len(row.output.ids))
    while rows:
        count = len(outputs)
        while count > 1 and _tokens(rows[:count]) * values > _MOST_VALUES:
            count //= 2
        yield rows[:count]
        rows = rows[count:]


def _tokens(rows: Sequence[_Row]) -> int:
    """Return the number of tokens, EOS and padding included."""
    return len(rows) * (len(rows[-1].output.ids) + 1)

"""Reranking: right-to-left models rescore the outputs of a search."""

from collections.abc import Sequence

import torch

from regard.hypotheses import Hypothesis, length_normalization
from regard.model_folder import TrainedModel
from regard.request import PreparedRequest
from regard.search import forced_decode


def rerank(
    trained: TrainedModel,
    batch: PreparedRequest,
    outputs: Sequence[list[Hypothesis]],
    length_penalty: float,
    device: torch.device,
) -> list[list[Hypothesis]]:
    """Return the outputs for each source with new scores, best first.

        log p(y | x) = 1/M (S log p_S(y | x) + R log p_R(y reversed | x)),   M = S + R

    p_S is the distribution of the S members that search, and p_R that of the R right-to-left members (Sennrich et
    al. 2016, arXiv:1606.02891). The score is divided by the length penalty as in the search. Without
    right-to-left members, the outputs are unchanged.
    """
    reranker = trained.reranker
    if reranker is None:
        return [*outputs]
    share = len(reranker.members or (reranker,)) / len(trained.members)
    memory = batch.encode(reranker.model, device)
    rescored: list[list[Hypothesis]] = [[] for _ in outputs]
    for rank in range(max(map(len, outputs))):  # one output per source at a time bounds the memory
        rows = [row for row, found in enumerate(outputs) if rank < len(found)]
        selected = memory.select(torch.tensor(rows, device=device))
        found = [outputs[row][rank] for row in rows]
        reverse = forced_decode(
            reranker.model.decoder, selected, [output.ids[::-1] for output in found]
        )
        for row, output, other in zip(rows, found, reverse, strict=True):
            log_prob = (1 - share) * output.log_prob + share * other.log_prob
            score = log_prob / length_normalization(len(output.ids) + 1, length_penalty)
            rescored[row].append(output._replace(score=score, log_prob=log_prob))
    return [sorted(found, key=lambda output: -output.score) for found in rescored]

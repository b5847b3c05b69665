"""A translator and pairs in, a report out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.alignment import Alignment, AlignmentMetrics, Gold, score
from regard.batching import Example, collate
from regard.metrics import BleuTokenizer, Scores, group_by_source, report
from regard.pairs import PairLike, to_pairs
from regard.text import UNK
from regard.translation import Translation
from regard.translator import Translator

_SYMBOLS_AT_ONCE = 2048
"""Bound on a batch of one pair with each of its source symbols erased."""


@dataclass(frozen=True)
class Report:
    """How well a translator does on pairs."""

    scores: Scores
    translations: list[Translation]
    """One per distinct source, in the order of the pairs."""
    references: list[list[str]]
    """The targets of each source."""

    def to_dict(self) -> dict[str, Any]:
        """What `regard evaluate --json` writes."""
        return self.scores.to_dict()


def evaluate(
    translator: Translator,
    pairs: Sequence[PairLike],
    beam_size: int = 5,
    *,
    length_penalty: float = 1.0,
    bleu_tokenize: BleuTokenizer = "13a",
    lowercase: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Report:
    """Translate every distinct source once and hold it against all of its targets.

    Args:
        translator: what is measured.
        pairs: (source, target), or (source, target, features); several targets of one source are several references.
        beam_size: open hypotheses per source; 1 is greedy search.
        length_penalty: exponent of the length penalty.
        bleu_tokenize: how sacrebleu cuts the strings for BLEU.
        lowercase: lower-case outputs and references first.
        on_progress: called with the number of sources just done.
    """
    sources, references = group_by_source((pair.key, pair.target) for pair in to_pairs(pairs))
    translations = translator.translate(
        sources, beam_size, length_penalty=length_penalty, on_progress=on_progress
    )
    lengths = [len(translation.source_tokens) - 1 for translation in translations]
    outputs = [translation.text for translation in translations]
    scores = report(outputs, references, lengths, bleu_tokenize=bleu_tokenize, lowercase=lowercase)
    return Report(scores, translations, references)


def align(
    translator: Translator,
    pairs: Sequence[PairLike],
    gold: Sequence[Gold] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[list[Alignment], AlignmentMetrics | None]:
    """Align every pair by the attention of its forced target, and score that against gold links.

    Args:
        translator: a model with attention.
        pairs: (source, target), or (source, target, features).
        gold: links by hand or by construction, one item per pair.
        on_progress: called with the number of pairs just done.
    """
    checked = to_pairs(pairs)
    sources, targets = [pair.key for pair in checked], [pair.target for pair in checked]
    found = [t.alignment() for t in translator.align(sources, targets, on_progress=on_progress)]
    return found, None if gold is None else score(found, gold)


def layer_agreements(translator: Translator, examples: Sequence[Example]) -> list[float]:
    """How often each layer looks where it matters, from 0 to 1.

    The share of target symbols for which the source symbol with most weight, heads averaged, is also
    the one whose erasure lowers the symbol's log-probability most: the prediction difference of Li et
    al. 2019, "On the Word Alignment from Neural Machine Translation" (ACL), section 4, which aligns
    words without any given links.
    """
    hits: list[np.ndarray] = []
    for example in examples:
        weights, costs = _erasures(translator, example)
        hits.append(weights.argmax(-1) == costs.argmax(-1)[:, None])
    return np.concatenate(hits).mean(0).tolist()


@torch.inference_mode()
def _erasures(
    translator: Translator, example: Example
) -> tuple[Float[np.ndarray, "L layers T"], Float[np.ndarray, "L T"]]:
    """Where each layer looks for each target symbol, and what erasing each source symbol costs it.

    The end symbols count neither as source nor as target.
    """
    model, length = translator.trained.model, len(example.source) - 1
    erased = [example]
    for place in range(length):
        source, copies = list(example.source), list(example.copies)
        source[place] = UNK
        copies[place : place + 1] = [UNK] if copies else []
        erased.append(Example(source, example.target, copies))
    found: list[Tensor] = []
    weights: Tensor | None = None
    rows = max(1, _SYMBOLS_AT_ONCE // sum(example.size))
    for first in range(0, len(erased), rows):
        batch = collate(erased[first : first + rows]).to(translator.device)
        memory = model.encode(batch.source, batch.lengths, batch.copies)
        unrolled = model.decoder.unroll(memory, batch.inputs, need_weights=True)
        logits = model.decoder.predict(unrolled.states, unrolled.weights, memory.copies)
        log_probs = torch.log_softmax(logits.float(), dim=-1)
        found.append(log_probs.gather(2, batch.targets[..., None])[:, :-1, 0])
        weights = unrolled.weights if weights is None else weights
    assert weights is not None
    looks, scores = weights[0, :-1, :, :, :-1].mean(2), torch.cat(found)
    return looks.float().cpu().numpy(), (scores[0] - scores[1:]).T.cpu().numpy()

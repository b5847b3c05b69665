"""A translator and pairs in, a report out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from regard.alignment import Alignment, AlignmentScores, Gold, score
from regard.metrics import BleuTokenizer, Scores, group_by_source, report
from regard.translator import Translation, Translator


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
    pairs: Sequence[tuple[str, str]],
    beam_size: int = 5,
    *,
    alpha: float = 1.0,
    bleu_tokenize: BleuTokenizer = "13a",
    lowercase: bool = False,
    advance: Callable[[int], None] | None = None,
) -> Report:
    """Translate every distinct source once and hold it against all of its targets.

    Args:
        translator: what is measured.
        pairs: (source, target); several targets of one source are several references.
        beam_size: open hypotheses per source; 1 is greedy search.
        alpha: exponent of the length penalty.
        bleu_tokenize: how sacrebleu cuts the strings for BLEU.
        lowercase: lower-case outputs and references first.
        advance: called with the number of sources just done.
    """
    sources, references = group_by_source(pairs)
    translations = translator.translate(sources, beam_size, alpha=alpha, advance=advance)
    lengths = [len(translation.source_tokens) - 1 for translation in translations]
    outputs = [translation.text for translation in translations]
    scores = report(outputs, references, lengths, bleu_tokenize=bleu_tokenize, lowercase=lowercase)
    return Report(scores, translations, references)


def align(
    translator: Translator,
    pairs: Sequence[tuple[str, str]],
    gold: Sequence[Gold] | None = None,
    advance: Callable[[int], None] | None = None,
) -> tuple[list[Alignment], AlignmentScores | None]:
    """Align every pair by the attention of its forced target, and score that against gold links.

    Args:
        translator: a model with attention.
        pairs: (source, target).
        gold: links by hand or by construction, one item per pair.
        advance: called with the number of pairs just done.
    """
    sources, targets = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    found = [t.alignment() for t in translator.align(sources, targets, advance=advance)]
    return found, None if gold is None else score(found, gold)

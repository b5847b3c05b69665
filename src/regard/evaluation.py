"""Evaluation of a translator on pairs: translations, alignments and agreement between layers."""

import html
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from regard.alignment import (
    Alignment,
    AlignmentMetrics,
    GoldAlignment,
    alignment_metrics,
    check_links,
    check_pair_links,
)  # fmt: skip
from regard.attribution import erasure
from regard.batching import Example, collate
from regard.calibration import Calibration, calibrate
from regard.confusions import Confusion, confusion_table, token_splitter
from regard.confusions import confusions as find_confusions
from regard.errors import ConfigError, quantity
from regard.faithfulness import Faithfulness, available_methods, faithfulness
from regard.guided_alignment import count_words
from regard.lines import chunks_of
from regard.metrics import (
    METRICS,
    BleuTokenizer,
    MetricValue,
    MetricValues,
    UnknownBin,
    matches,
    report,
    unknown_bins,
)
from regard.overlap import TrainingOverlap
from regard.pairs import Pair, PairLike, group_by_source, to_pairs
from regard.request import prepare
from regard.significance import Comparison
from regard.text import Tokenizer, format_source
from regard.text_table import text_table
from regard.translation import Translation
from regard.translator import Translator

_CHUNK = 2000
"""Maximum number of texts whose attention weights are in memory at the same time."""


@dataclass(frozen=True, repr=False)
class Report:
    """Metrics of a translator on a set of pairs; `str()` returns them as tables."""

    metrics: MetricValues
    translations: list[Translation]
    """One per distinct source, in the order of the pairs."""
    references: list[list[str]]
    """The targets of each source."""
    calibration: Calibration
    """The probabilities of the outputs against exact match."""
    by_unknown: tuple[UnknownBin, ...] = ()
    """Metrics of the sources with and without tokens that are not in the model's vocabulary."""
    confusions: list[Confusion] = field(default_factory=list[Confusion])
    """The most frequent confusions of target tokens."""
    comparison: Comparison | None = None
    """The comparison with another system, if there is one."""
    faithfulness: Faithfulness | None = None
    """The faithfulness of attribution methods, if it was measured."""
    training_overlap: TrainingOverlap | None = None
    """The sources that are also in the training data, if these were searched and contain any."""
    seconds: float = 0.0
    """Duration of the translation, in seconds."""

    def to_dict(self) -> dict[str, Any]:
        """Return the document that `regard evaluate --json` writes."""
        document = {**self.metrics.to_dict(), "calibration": self.calibration.to_dict()}
        document["by_unknown"] = [asdict(part) for part in self.by_unknown]
        document["confusions"] = [confusion.to_dict() for confusion in self.confusions]
        for name in ("comparison", "faithfulness", "training_overlap"):
            part = getattr(self, name)
            document |= {} if part is None else {name: part.to_dict()}
        return document

    def __repr__(self) -> str:
        """Return the number of sources and every metric, in percent, on one line."""
        metrics = self.metrics.to_dict()
        values = [f"{name}={metrics[name]['value']:.2f}" for name in METRICS]
        return f"Report({quantity(metrics['n'], 'source')}, {', '.join(values)})"

    def summary(self, metrics: Sequence[str] = tuple(METRICS)) -> str:
        """Return metrics with their 95 % intervals, and the calibration error, on one line."""
        parts: list[str] = []
        for name in metrics:
            metric: MetricValue = getattr(self.metrics, name)
            interval = f"{metric.low:.2f} – {metric.high:.2f}"
            parts.append(f"{METRICS[name].label} {metric.value:.2f} ({interval})")
        return f"{', '.join(parts)}; expected calibration error {self.calibration.value:.2f}"

    def _repr_html_(self) -> str:
        """Return the tables for notebooks."""
        return f"<pre>{html.escape(str(self))}</pre>"

    def __str__(self) -> str:
        """Return the tables that `regard evaluate` prints."""
        metrics = self.metrics
        table, signatures = [("metric", "value", "95 % interval")], list[str]()
        for name, definition in METRICS.items():
            metric: MetricValue = getattr(metrics, name)
            interval = f"{metric.low:.2f} – {metric.high:.2f}"
            table.append((definition.label, f"{metric.value:.2f}", interval))
            if metric.signature is not None:
                signatures.append(f"{definition.label}: {metric.signature}")
        parts = [f"{quantity(metrics.n, 'distinct source')}, percent", text_table(table)]
        parts += ["\n".join(signatures), self._subsets(), str(self.calibration)]
        if self.confusions:
            parts.append(confusion_table(self.confusions))
        parts += [str(part) for part in (self.comparison, self.faithfulness) if part is not None]
        truncated = sum(not output.complete for output in self.translations)
        if truncated:
            parts.append(f"{quantity(truncated, 'output')} truncated at the length limit")
        return "\n\n".join(parts)

    def _subsets(self) -> str:
        """Return the table of metrics by source length, and by unknown tokens if there are any."""
        rows = [("source length", "sources", "exact match", "PER", "CER")]
        bins = [(f"{part.low}–{part.high}", part) for part in self.metrics.by_length]
        if any(part.unknown for part in self.by_unknown):
            names = ("no unknown token", "unknown tokens")
            bins += [(names[part.unknown], part) for part in self.by_unknown]
        for label, part in bins:
            exact, per, cer = (f"{value:.2f}" for value in (part.exact_match, part.per, part.cer))
            rows.append((label, f"{part.n:,}", exact, per, cer))
        return text_table(rows)


def evaluate(
    translator: Translator,
    pairs: Sequence[PairLike],
    beam_size: int = 5,
    *,
    length_penalty: float = 1.0,
    bleu_tokenize: BleuTokenizer = "13a",
    lowercase: bool = False,
    confusions: int = 10,
    attention: bool = True,
    on_progress: Callable[[int], None] | None = None,
) -> Report:
    """Translate every distinct source once and compare the output with all its targets.

    Args:
        translator: the model to evaluate.
        pairs: (source, target), or (source, target, features); the targets of one source are used
            as its references.
        beam_size: number of hypotheses kept per source; 1 is greedy search.
        length_penalty: exponent of the length penalty.
        bleu_tokenize: sacrebleu tokenizer to use for BLEU.
        lowercase: lower-case outputs and references before comparing them.
        confusions: maximum number of confusions to return (default 10).
        attention: keep the attention weights of all translations in memory, in `Report.translations`.
        on_progress: called with the number of sources just completed.
    """
    sources, references = group_by_source(to_pairs(pairs))
    started = time.perf_counter()
    translations: list[Translation] = []
    for chunk in chunks_of(sources, _CHUNK, lambda source: len(source[0])):
        found = translator.translate(
            chunk, beam_size, length_penalty=length_penalty, on_progress=on_progress
        )
        without = {} if attention else {"attention": None, "attention_heads": None}
        translations += [replace(output, **without) for output in found]
    seconds = time.perf_counter() - started
    lengths = [max(0, len(translation.source_tokens) - 1) for translation in translations]
    outputs = [translation.text for translation in translations]
    return Report(
        report(outputs, references, lengths, bleu_tokenize=bleu_tokenize, lowercase=lowercase),
        translations,
        references,
        calibrate(
            [translation.probability for translation in translations],
            matches(outputs, references, lowercase),
        ),
        unknown_bins(outputs, references, [bool(row.unknown) for row in translations], lowercase),
        find_confusions(
            [translation.source for translation in translations],
            outputs,
            references,
            token_splitter(translator.target, lowercase),
            confusions,
        ),
        seconds=seconds,
    )


def measure_faithfulness(
    translator: Translator,
    translations: Sequence[Translation],
    on_progress: Callable[[int], None] | None = None,
) -> Faithfulness:
    """Return the faithfulness of all attribution methods that can be computed for a model.

    Args:
        translator: the model.
        translations: its outputs, such as `Report.translations`.
        on_progress: called with the number of outputs just completed.

    Raises:
        ConfigError: the outputs lack the attention weights that the model computes.
    """
    methods = available_methods(translator.trained.model)
    if "attention" in methods and any(output.attention is None for output in translations):
        raise ConfigError(
            "the outputs have no attention weights, whose faithfulness is measured; evaluate with "
            "attention=True"
        )
    sources = [translator.source.parse_source(output.source) for output in translations]
    targets = [output.tokens for output in translations]
    request = prepare(translator.trained, sources, targets, forced=True)
    examples = [source.example for source in request.sources]
    model = translator.trained.model
    pairs = list(zip(examples, translations, strict=True))
    return faithfulness(model, pairs, methods, on_progress)


def align(
    translator: Translator,
    pairs: Sequence[PairLike],
    gold: Sequence[GoldAlignment] | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[list[Alignment], AlignmentMetrics | None]:
    """Align every pair by forced decoding of its target, and compare the result with gold links.

    Args:
        translator: a model with attention.
        pairs: (source, target), or (source, target, features).
        gold: gold links, manual or known by construction, one item per pair.
        on_progress: called with the number of pairs just completed.

    Raises:
        DataError: a gold link is outside its pair, or the number of pairs differs.
    """
    predicted, sizes = list[Alignment](), list[tuple[int, int]]()
    for chunk in chunks_of(to_pairs(pairs), _CHUNK, lambda pair: pair.length):
        sources, targets = [pair.key for pair in chunk], [pair.target for pair in chunk]
        translations = translator.align(sources, targets, on_progress=on_progress)
        predicted += [translation.alignment() for translation in translations]
        sizes += map(word_counts, translations)
    if gold is not None:
        check_links(gold, sizes)
    return predicted, None if gold is None else alignment_metrics(predicted, gold)


def word_counts(translation: Translation) -> tuple[int, int]:
    """Return the numbers of source and target words: the model's or, if larger, those in the text."""
    return (
        count_words(translation.source_words, translation.source),
        count_words(translation.target_words, translation.text),
    )


def check_gold_links(
    gold: Sequence[GoldAlignment],
    pairs: Sequence[Pair],
    source: Tokenizer,
    target: Tokenizer,
    names: Sequence[str],
) -> None:
    """Check that gold links are within their texts, before a model aligns them.

    Args:
        gold: the links of each pair.
        pairs: the pairs.
        source: tokenizer of the sources.
        target: tokenizer of the targets.
        names: the file and the line, or the pair, of each item, for the error message.

    Raises:
        DataError: a link is outside.
    """
    for start in range(0, len(pairs), _CHUNK):
        part = slice(start, start + _CHUNK)
        sources = source.encode_batch([pair.key for pair in pairs[part]])
        targets = target.encode_batch([pair.target for pair in pairs[part]])
        rows = zip(gold[part], pairs[part], sources, targets, names[part], strict=True)
        for links, pair, encoded, encoded_target, name in rows:
            words = source.words_of(encoded), target.words_of(encoded_target)
            line = format_source(pair.key)
            size = count_words(words[0], line), count_words(words[1], pair.target)
            check_pair_links(links, size, name)


def layer_agreements(translator: Translator, examples: Sequence[Example]) -> list[float]:
    """Return how often each layer attends most to the most important source token, from 0 to 1.

    This is the fraction of target tokens for which the source token with the highest weight, averaged
    over heads, is also the one whose erasure lowers the target token's log-probability most
    (`regard.attribution.erasure`), EOS excluded: word alignment without gold links.
    """
    model, agreements = translator.trained.model, list[np.ndarray]()
    for example in examples:
        weights = _attention(translator, example)[..., :-1]
        differences = erasure(model, example)[:, :-1]
        agreements.append(weights.argmax(-1) == differences.argmax(-1)[:, None])
    return np.concatenate(agreements).mean(0).tolist()


@torch.inference_mode()
def _attention(translator: Translator, example: Example) -> Float[np.ndarray, "L layers T"]:
    """Return the weights of every layer, averaged over its heads, for the tokens of the target."""
    model, batch = translator.trained.model, collate([example]).to(translator.device)
    memory = model.encode(batch.source, batch.lengths, batch.copies)
    weights = model.decoder.unroll(memory, batch.inputs, need_weights=True).weights
    assert weights is not None
    weights = weights[0, model.decoder.attention_delay :][: len(example.target)]
    return weights.mean(2).float().cpu().numpy()

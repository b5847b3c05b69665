"""Metrics of outputs against references, each with a confidence interval.

Every value is a percentage over all outputs: one output per distinct source, each with one or more
references. Its 95 % interval is computed with the percentile bootstrap (Efron 1979; Koehn 2004,
"Statistical Significance Tests for Machine Translation Evaluation"): the outputs are resampled with
replacement `RESAMPLES` times, and the value is computed from the summed counts of each resample. The
resamples depend only on the number of outputs, so all metrics in a report use the same resamples.

All metrics compare strings in the Unicode normal form NFC, so that the form of a file does not matter; nor
does whitespace at the ends, and a run of whitespace counts as one space.
BLEU and chrF are computed with sacrebleu and carry its signature. `METRICS` lists all metrics. Each
raises a DataError if there are no outputs, or if any output lacks a list of references.
"""

import dataclasses
import functools
import itertools
import math
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
from jaxtyping import Bool, Float

from regard.errors import DataError, not_one_of, quantity

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

RESAMPLES = 1000
SEED = 12345
LENGTH_BIN_ENDS = (0, 5, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200)

BleuTokenizer = Literal["13a", "none", "zh", "char"]
_OUTPUTS_AT_ONCE = 1000
"""Outputs whose n-grams are held at once."""
_DRAWS_AT_ONCE = 1 << 16
"""Random draws of a bootstrap that are held at once, if one resample needs no more."""
References = Sequence[Sequence[str]]
"""For each output, one or more correct strings."""
Counts = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class MetricValue:
    """A metric value in percent, with the ends of its 95 % interval: low <= value <= high."""

    value: float
    low: float
    high: float
    signature: str | None = None
    """The sacrebleu signature, which makes BLEU and chrF reproducible; None for other metrics."""
    resampled: Float[np.ndarray, " R"] | None = dataclasses.field(
        default=None, repr=False, compare=False
    )
    """The value of each resample, from which the interval is computed."""

    def to_dict(self) -> dict[str, float | str]:
        """Return value, interval and signature as a dictionary, without a signature that is None."""
        names = ("value", "low", "high", *(["signature"] if self.signature is not None else []))
        return {name: getattr(self, name) for name in names}


@dataclasses.dataclass(frozen=True, slots=True)
class LengthBin:
    """Metrics, in percent, of the `n` outputs whose source has `low` to `high` tokens."""

    low: int
    high: int
    n: int
    exact_match: float
    per: float
    cer: float


@dataclasses.dataclass(frozen=True, slots=True)
class UnknownBin:
    """Metrics, in percent, of the `n` outputs whose source has, or lacks, an unknown token."""

    unknown: bool
    """Whether at least one token of the source is not in the vocabulary of the model."""
    n: int
    exact_match: float
    per: float
    cer: float


@dataclasses.dataclass(frozen=True, slots=True)
class MetricValues:
    """All metrics of `n` outputs, and some of them by source length."""

    n: int
    bleu: MetricValue
    chrf: MetricValue
    exact_match: MetricValue
    wer: MetricValue
    word_error_rate: MetricValue
    per: MetricValue
    cer: MetricValue
    by_length: tuple[LengthBin, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the document that `regard evaluate --json` writes."""
        values = {name: getattr(self, name).to_dict() for name in METRICS}
        bins = [dataclasses.asdict(length_bin) for length_bin in self.by_length]
        return {"n": self.n, **values, "by_length": bins}


def report(
    outputs: Sequence[str],
    references: References,
    source_lengths: Sequence[int],
    *,
    bleu_tokenize: BleuTokenizer = "13a",
    lowercase: bool = False,
) -> MetricValues:
    """Compute all metrics.

    Args:
        outputs: one per distinct source.
        references: for each output, one or more correct strings.
        source_lengths: for each output, the length of its source, in tokens of the model. The bins
            end at `LENGTH_BIN_ENDS` for all data, so that models and datasets can be compared;
            empty bins are omitted, and the last bin ends at the longest source.
        bleu_tokenize: sacrebleu tokenizer to use for BLEU.
        lowercase: lower-case outputs and references first, for every metric.

    Raises:
        DataError: there are no outputs, or the number of references or source lengths differs from
            the number of outputs.
        ConfigError: `bleu_tokenize` is unknown.
    """
    _require_same_number(outputs, "source lengths", source_lengths)
    functions = {name: metric.compute for name, metric in METRICS.items()}
    functions["bleu"] = functools.partial(bleu, tokenize=bleu_tokenize)
    values = {
        name: compute(outputs, references, lowercase=lowercase)
        for name, compute in functions.items()
    }
    by_length = length_bins(outputs, references, source_lengths, lowercase=lowercase)
    return MetricValues(n=len(outputs), **values, by_length=by_length)


def length_bins(
    outputs: Sequence[str],
    references: References,
    source_lengths: Sequence[int],
    ends: Iterable[int] = LENGTH_BIN_ENDS,
    lowercase: bool = False,
) -> tuple[LengthBin, ...]:
    """Compute metrics by source length, in bins that end at `ends` and at the longest source.

    Empty bins are omitted. The other arguments are those of `report`.
    """
    error_rates = _subset_metrics(outputs, references, lowercase)
    lengths = np.asarray(source_lengths)
    bins: list[LengthBin] = []
    for low, high in itertools.pairwise((-1, *ends, max(source_lengths))):
        inside = (low < lengths) & (lengths <= high)
        if inside.any():
            bins.append(LengthBin(low + 1, high, *error_rates(inside)))
    return tuple(bins)


def unknown_bins(
    outputs: Sequence[str],
    references: References,
    unknown: Sequence[bool],
    lowercase: bool = False,
) -> tuple[UnknownBin, ...]:
    """Compute metrics of the sources without unknown tokens, and of those with at least one.

    `unknown` states this for each source. An empty bin is omitted. The other arguments are those of
    `report`.
    """
    error_rates = _subset_metrics(outputs, references, lowercase)
    flags = np.asarray(unknown, dtype=bool)
    return tuple(
        UnknownBin(value, *error_rates(flags == value))
        for value in (False, True)
        if (flags == value).any()
    )


def _subset_metrics(
    outputs: Sequence[str], references: References, lowercase: bool
) -> Callable[[Bool[np.ndarray, " n"]], tuple[int, float, float, float]]:
    """Return a function that returns the size, exact match, PER and CER of some of the outputs."""
    counts = (
        _match_counts(outputs, references, lowercase),
        _edits(outputs, references, str.split, lowercase),
        _edits(outputs, references, _characters, lowercase),
    )

    def compute(inside: Bool[np.ndarray, " n"]) -> tuple[int, float, float, float]:
        exact, per, cer = (_percent(part[inside].sum(axis=0).tolist()) for part in counts)
        return int(inside.sum()), exact, per, cer

    return compute


def exact_match(
    outputs: Sequence[str], references: References, lowercase: bool = False
) -> MetricValue:
    """Compute the percentage of outputs that equal one of their references."""
    return _bootstrap(_match_counts(outputs, references, lowercase), _percent)


def matches(
    outputs: Sequence[str], references: References, lowercase: bool = False
) -> npt.NDArray[np.bool_]:
    """Return for each output whether it equals one of its references, in NFC and up to whitespace."""
    _require_references(outputs, references)
    equal = [
        _normalize(output, lowercase) in {_normalize(text, lowercase) for text in candidates}
        for output, candidates in zip(outputs, references, strict=True)
    ]
    return np.array(equal, dtype=bool)


def wer(outputs: Sequence[str], references: References, lowercase: bool = False) -> MetricValue:
    """Compute the percentage of outputs that equal none of their references: 100 - exact match.

    This is the word error rate of papers on grapheme-to-phoneme conversion, where each source is
    one word. The edit rate over words is `word_error_rate`.
    """
    right = exact_match(outputs, references, lowercase)
    assert right.resampled is not None
    return MetricValue(
        100 - right.value, 100 - right.high, 100 - right.low, resampled=100 - right.resampled
    )


def word_error_rate(
    outputs: Sequence[str], references: References, lowercase: bool = False
) -> MetricValue:
    """Compute the word error rate, `100 * sum of edits / sum of reference words`.

    Words are separated by whitespace; an edit inserts, deletes or replaces one. With one
    reference per output, this is the word error rate used in speech recognition, as computed by
    jiwer. It counts the same edits as `per`, whose tokens are words if the targets are sentences.
    """
    return per(outputs, references, lowercase)


def per(outputs: Sequence[str], references: References, lowercase: bool = False) -> MetricValue:
    """Compute the token error rate, `100 * sum of edits / sum of reference lengths`.

    Tokens are split at whitespace; an edit inserts, deletes or replaces one (Levenshtein 1966).
    Each output is compared with its closest reference, the one with the fewest edits (ties: the
    shorter). If the tokens are phones, this is the phone error rate. An empty reference has length
    0, and its edits count; if all lengths sum to 0, the edits are divided by 1.
    """
    return _bootstrap(_edits(outputs, references, str.split, lowercase), _percent)


def cer(outputs: Sequence[str], references: References, lowercase: bool = False) -> MetricValue:
    """Compute the character error rate: `per` on the code points of the NFC string, single spaces included.

    `<unk>`, which stands for one unknown token, counts as one character.
    """
    return _bootstrap(_edits(outputs, references, _characters, lowercase), _percent)


def _characters(text: str) -> str:
    return text.replace("<unk>", "\0")  # no file with text contains NUL


def bleu(
    outputs: Sequence[str],
    references: References,
    tokenize: BleuTokenizer = "13a",
    lowercase: bool = False,
) -> MetricValue:
    """Compute corpus BLEU (Papineni et al. 2002) with sacrebleu (Post 2018), and add its signature.

    Raises:
        DataError: there are no outputs, or any output lacks a list of references.
        ConfigError: `tokenize` is unknown.
    """
    from sacrebleu.metrics.bleu import BLEU

    if tokenize not in (known := get_args(BleuTokenizer)):
        raise not_one_of("the tokenizer of BLEU", tokenize, known)
    # force: sacrebleu would warn about spaces between tokens, which some models generate
    metric = BLEU(lowercase=lowercase, tokenize=tokenize, force=True)
    return _sacrebleu(metric, outputs, references)


def chrf(outputs: Sequence[str], references: References, lowercase: bool = False) -> MetricValue:
    """Compute corpus chrF2 (Popović 2015) with sacrebleu, and add its signature."""
    from sacrebleu.metrics.chrf import CHRF

    return _sacrebleu(CHRF(lowercase=lowercase), outputs, references)


class MetricDefinition(NamedTuple):
    """A metric, its label in tables, and its worst value."""

    label: str
    compute: Callable[..., MetricValue]
    """Called with outputs, references and `lowercase`."""
    worst: float = 0.0
    """Its worst value; infinity if there is none."""

    @property
    def lower_is_better(self) -> bool:
        """Whether lower values are better."""
        return self.worst > 0


METRICS = {
    "bleu": MetricDefinition("BLEU", bleu),
    "chrf": MetricDefinition("chrF", chrf),
    "exact_match": MetricDefinition("exact match", exact_match),
    "wer": MetricDefinition("outputs not exact (WER of g2p papers)", wer, worst=100.0),
    "word_error_rate": MetricDefinition("word error rate", word_error_rate, worst=math.inf),
    "per": MetricDefinition("token error rate (PER of g2p papers)", per, worst=math.inf),
    "cer": MetricDefinition("character error rate (CER)", cer, worst=math.inf),
}
"""All metrics; those in `MetricName` (config.py) can select the best checkpoint."""


def _match_counts(outputs: Sequence[str], references: References, lowercase: bool) -> Counts:
    """Return (n, 2): for each output, whether it equals a reference, and 1."""
    equal = matches(outputs, references, lowercase)
    return np.stack([equal, np.ones_like(equal)], 1).astype(np.int64)


def _edits(
    outputs: Sequence[str],
    references: References,
    tokenize: Callable[[str], Sequence[str]],
    lowercase: bool,
) -> Counts:
    """Return (n, 2): for each output, the edits to its closest reference and that reference's length."""
    from rapidfuzz.distance import Levenshtein

    _require_references(outputs, references)
    edits: list[tuple[int, int]] = []
    for output, candidates in zip(outputs, references, strict=True):
        tokens, *correct = (tokenize(_normalize(text, lowercase)) for text in (output, *candidates))
        edits.append(min((Levenshtein.distance(tokens, right), len(right)) for right in correct))
    return np.array(edits, dtype=np.int64)


def _sacrebleu(metric: "Metric", outputs: Sequence[str], references: References) -> MetricValue:
    """Compute a sacrebleu metric from its counts per output."""
    _require_references(outputs, references)
    outputs, *references = (
        [_normalize(text) for text in texts] for texts in (outputs, *references)
    )
    # sacrebleu takes one stream per reference; None, unlike "", is a missing reference
    streams = list(itertools.zip_longest(*references))
    # its public bootstrap returns no interval ends and holds all resamples in memory at once
    counts: list[list[int]] = []
    numbers: set[int] = set()
    for start in range(0, len(outputs), _OUTPUTS_AT_ONCE):
        part = slice(start, start + _OUTPUTS_AT_ONCE)
        some = [stream[part] for stream in streams]
        counts += metric._extract_corpus_statistics(outputs[part], some)  # pyright: ignore[reportPrivateUsage]
        numbers.add(metric.num_refs)
    metric.num_refs = numbers.pop() if len(numbers) == 1 else -1  # -1: the number varies
    compute = metric._compute_score_from_stats  # pyright: ignore[reportPrivateUsage]
    # an exponential of logarithms can round past 100
    return _bootstrap(
        np.array(counts, dtype=np.int64),
        lambda sums: min(100.0, compute(sums).score),
        str(metric.get_signature()),
    )


def _bootstrap(
    counts: Counts, compute: Callable[[list[int]], float], signature: str | None = None
) -> MetricValue:
    """Compute a value and its interval from the column sums of `counts` (n, K)."""
    value = compute(counts.sum(axis=0).tolist())
    # the resamples of a few outputs have few different sums
    sums, indices = np.unique(_resampled_sums(counts), axis=0, return_inverse=True)
    resampled = np.array([compute(row) for row in sums.tolist()])[indices.ravel()]
    low, high = percentile_interval(resampled)
    return MetricValue(value, min(low, value), max(high, value), signature, resampled)


def _resampled_sums(counts: Counts) -> Counts:
    """Return (R, K): the column sums of `counts` (n, K) in every resample of its rows."""
    generator = np.random.default_rng(SEED)
    n = len(counts)
    sums = np.empty((RESAMPLES, counts.shape[1]), dtype=np.int64)
    at_once = 1 + _DRAWS_AT_ONCE // n
    for start in range(0, RESAMPLES, at_once):
        part = sums[start : start + at_once]
        draws = generator.integers(n, size=(len(part), n)) + n * np.arange(len(part))[:, None]
        part[:] = np.bincount(draws.ravel(), minlength=len(part) * n).reshape(-1, n) @ counts
    return sums


def percentile_interval(resampled: Float[np.ndarray, " R"]) -> tuple[float, float]:
    """Return the ends of the 95 % percentile interval of resampled values."""
    # interpolation between equal ends can round past them
    ends = np.percentile(resampled, (2.5, 97.5)).clip(resampled.min(), resampled.max())
    return float(ends[0]), float(ends[1])


def _percent(sums: Sequence[int]) -> float:
    part, whole = sums
    return 100 * part / max(whole, 1)


def _normalize(text: str, lowercase: bool = False) -> str:
    text = " ".join(text.split())
    return unicodedata.normalize("NFC", text.lower() if lowercase else text)


def _require_references(outputs: Sequence[str], references: References) -> None:
    _require_same_number(outputs, "lists of references", references)
    for number, candidates in enumerate(references, start=1):
        # a string is a sequence of strings too: its characters would pass for references
        if isinstance(candidates, str) or not candidates:
            raise DataError(
                f"output {number} needs a list of one or more references, found {candidates!r}; "
                "give [reference] even for one"
            )


def _require_same_number(outputs: Sequence[str], what: str, items: Sequence[object]) -> None:
    if not outputs:
        raise DataError("no outputs to evaluate; give one or more")
    if len(outputs) != len(items):
        raise DataError(
            f"{quantity(len(outputs), 'output')} but {len(items)} {what}; give one for each output"
        )

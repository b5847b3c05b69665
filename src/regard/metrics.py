"""Strings in, numbers out: how close outputs are to their references, each figure with an interval.

Every figure is a percentage over the outputs, one output per distinct source, each with one or more
references. Its 95 % interval is the percentile bootstrap (Efron 1979; Koehn 2004, "Statistical
Significance Tests for Machine Translation Evaluation"): the outputs are drawn anew, with
replacement, `RESAMPLES` times, and the figure is computed from the summed counts of each draw. The
draws depend on the number of outputs alone, so figures of one report are taken from the same draws.

Exact match and the error rates compare strings in the Unicode normal form NFC; BLEU and chrF are
sacrebleu's, on the strings as they are, with the signature to quote.
"""

import dataclasses
import itertools
import unicodedata
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from regard.errors import ConfigError, DataError

if TYPE_CHECKING:
    from sacrebleu.metrics.base import Metric

RESAMPLES = 1000
SEED = 12345
LENGTH_BIN_ENDS = (0, 5, 10, 15, 20, 25, 30, 40, 50, 75, 100, 150, 200)

BleuTokenizer = Literal["13a", "none", "zh", "char"]
Counts = npt.NDArray[np.int64]
_Source = TypeVar("_Source", bound=Hashable)


@dataclasses.dataclass(frozen=True, slots=True)
class Figure:
    """One figure in percent, with the ends of its 95 % interval: low <= value <= high.

    `signature` is sacrebleu's line that makes a BLEU or chrF repeatable; None for other figures.
    """

    value: float
    low: float
    high: float
    signature: str | None = None

    def to_dict(self) -> dict[str, float | str]:
        """The figure as JSON; without the key `signature` where there is none."""
        figure: dict[str, float | str] = {"value": self.value, "low": self.low, "high": self.high}
        return figure if self.signature is None else {**figure, "signature": self.signature}


@dataclasses.dataclass(frozen=True, slots=True)
class LengthBin:
    """The figures, in percent, of the `n` outputs whose source has `low` to `high` symbols."""

    low: int
    high: int
    n: int
    exact_match: float
    per: float
    cer: float


@dataclasses.dataclass(frozen=True, slots=True)
class Scores:
    """All figures of `n` outputs, and some of them by source length."""

    n: int
    bleu: Figure
    chrf: Figure
    exact_match: Figure
    wer: Figure
    per: Figure
    cer: Figure
    by_length: tuple[LengthBin, ...]

    def to_dict(self) -> dict[str, Any]:
        """The scores as the JSON that `regard evaluate --json` writes."""
        names = ("bleu", "chrf", "exact_match", "wer", "per", "cer")
        figures = {name: getattr(self, name).to_dict() for name in names}
        bins = [dataclasses.asdict(length_bin) for length_bin in self.by_length]
        return {"n": self.n, **figures, "by_length": bins}


def report(
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
    source_lengths: Sequence[int],
    *,
    bleu_tokenize: BleuTokenizer = "13a",
    lowercase: bool = False,
) -> Scores:
    """All figures at once.

    Args:
        outputs: one per distinct source.
        references: for each output, one or more strings that would be right.
        source_lengths: for each output, the length of its source in symbols as the model sees them.
            The bins end at `LENGTH_BIN_ENDS` whatever the data, so that two models or two sets can
            be laid side by side; bins without outputs are left out, and the last is open: its high
            is the longest source.
        bleu_tokenize: how sacrebleu cuts the strings for BLEU.
        lowercase: lower-case outputs and references first, for every figure.

    Raises:
        DataError: there are no outputs, or not as many references or lengths as outputs.
        ConfigError: `bleu_tokenize` is unknown.
    """
    _require_same_number(outputs, "source lengths", source_lengths)
    hits = _hits(outputs, references, lowercase)
    token_edits = _edits(outputs, references, str.split, lowercase)
    character_edits = _edits(outputs, references, str, lowercase)
    exact = _figure(hits, _percent)
    return Scores(
        n=len(outputs),
        bleu=bleu(outputs, references, bleu_tokenize, lowercase),
        chrf=chrf(outputs, references, lowercase),
        exact_match=exact,
        wer=_complement(exact),
        per=_figure(token_edits, _percent),
        cer=_figure(character_edits, _percent),
        by_length=_by_length(np.asarray(source_lengths), hits, token_edits, character_edits),
    )


def exact_match(
    outputs: Sequence[str], references: Sequence[Sequence[str]], lowercase: bool = False
) -> Figure:
    """The share of outputs that equal one of their references.

    Raises:
        DataError: there are no outputs, or not a list of references for each.
    """
    return _figure(_hits(outputs, references, lowercase), _percent)


def wer(
    outputs: Sequence[str], references: Sequence[Sequence[str]], lowercase: bool = False
) -> Figure:
    """The share of outputs that equal none of their references: 100 - exact match.

    This is the word error rate of papers on spelling to sound, where each source is one word; it
    is not the edit rate over words, which is `per` on texts cut at spaces.

    Raises:
        DataError: there are no outputs, or not a list of references for each.
    """
    return _complement(exact_match(outputs, references, lowercase))


def per(
    outputs: Sequence[str], references: Sequence[Sequence[str]], lowercase: bool = False
) -> Figure:
    """Token error rate: `100 * sum of edits / sum of reference lengths`, tokens cut at whitespace.

    An edit inserts, deletes or replaces one token (Levenshtein 1966). Each output is held against
    its closest reference, the one with the fewest edits (ties: the shorter). With phones for tokens
    it is the phone error rate. An empty reference has length 0, and its edits count; where all
    lengths sum to 0, the edits are divided by 1.

    Raises:
        DataError: there are no outputs, or not a list of references for each.
    """
    return _figure(_edits(outputs, references, str.split, lowercase), _percent)


def cer(
    outputs: Sequence[str], references: Sequence[Sequence[str]], lowercase: bool = False
) -> Figure:
    """Character error rate: as `per`, on the code points of the NFC string, spaces among them.

    Raises:
        DataError: there are no outputs, or not a list of references for each.
    """
    return _figure(_edits(outputs, references, str, lowercase), _percent)


def bleu(
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
    tokenize: BleuTokenizer = "13a",
    lowercase: bool = False,
) -> Figure:
    """Corpus BLEU (Papineni et al. 2002) as sacrebleu computes it (Post 2018), with its signature.

    Raises:
        DataError: there are no outputs, or not a list of references for each.
        ConfigError: `tokenize` is unknown.
    """
    from sacrebleu.metrics.bleu import BLEU

    known = get_args(BleuTokenizer)
    if tokenize not in known:
        raise ConfigError(f"BLEU tokenizer {tokenize!r} is unknown; take one of {', '.join(known)}")
    # force: outputs cut at spaces are what some models write, no reason for sacrebleu's warning
    metric = BLEU(lowercase=lowercase, tokenize=tokenize, force=True)
    return _sacrebleu_figure(metric, outputs, references)


def chrf(
    outputs: Sequence[str], references: Sequence[Sequence[str]], lowercase: bool = False
) -> Figure:
    """Corpus chrF2 (Popović 2015) as sacrebleu computes it, with its signature.

    Raises:
        DataError: there are no outputs, or not a list of references for each.
    """
    from sacrebleu.metrics.chrf import CHRF

    return _sacrebleu_figure(CHRF(lowercase=lowercase), outputs, references)


def group_by_source(pairs: Iterable[tuple[_Source, str]]) -> tuple[list[_Source], list[list[str]]]:
    """Return the distinct sources of (source, target) pairs, and the distinct targets of each.

    Both keep the order of first occurrence.
    """
    targets: dict[_Source, dict[str, None]] = {}
    for source, target in pairs:
        targets.setdefault(source, {})[target] = None
    return list(targets), [list(distinct) for distinct in targets.values()]


def _hits(outputs: Sequence[str], references: Sequence[Sequence[str]], lowercase: bool) -> Counts:
    """(n, 2): for each output, whether it is right, and 1."""
    _require_references(outputs, references)
    return np.array(
        [
            (_normal(output, lowercase) in {_normal(r, lowercase) for r in candidates}, 1)
            for output, candidates in zip(outputs, references, strict=True)
        ],
        dtype=np.int64,
    )


def _edits(
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
    cut: Callable[[str], Sequence[str]],
    lowercase: bool,
) -> Counts:
    """(n, 2): for each output, the edits to its closest reference and the length of that."""
    from rapidfuzz.distance import Levenshtein

    _require_references(outputs, references)
    closest: list[tuple[int, int]] = []
    for output, candidates in zip(outputs, references, strict=True):
        found = cut(_normal(output, lowercase))
        right = [cut(_normal(candidate, lowercase)) for candidate in candidates]
        closest.append(min((Levenshtein.distance(found, each), len(each)) for each in right))
    return np.array(closest, dtype=np.int64)


def _sacrebleu_figure(
    metric: "Metric", outputs: Sequence[str], references: Sequence[Sequence[str]]
) -> Figure:
    """The figure of a sacrebleu metric, from the counts it keeps per output."""
    _require_references(outputs, references)
    # sacrebleu takes one stream per reference; None, unlike "", is a reference that is not there
    streams = list(itertools.zip_longest(*references))
    # its public bootstrap gives no interval ends and holds all resamples in memory at once
    counts = metric._extract_corpus_statistics(outputs, streams)  # pyright: ignore[reportPrivateUsage]
    compute = metric._compute_score_from_stats  # pyright: ignore[reportPrivateUsage]
    signature = str(metric.get_signature())

    def score(sums: list[int]) -> float:
        # an exponential of logarithms can round past 100
        return min(100.0, compute(sums).score)

    return _figure(np.array(counts, dtype=np.int64), score, signature)


def _figure(
    counts: Counts, compute: Callable[[list[int]], float], signature: str | None = None
) -> Figure:
    """The figure that `compute` makes of the column sums of `counts` (n, K), and its interval."""
    value = compute(counts.sum(axis=0).tolist())
    resampled = [compute(sums) for sums in _resampled_sums(counts).tolist()]
    # interpolation between equal ends can round past them
    ends = np.percentile(resampled, (2.5, 97.5)).clip(min(resampled), max(resampled))
    low, high = (float(end) for end in ends)
    return Figure(value, min(low, value), max(high, value), signature)


def _resampled_sums(counts: Counts) -> Counts:
    """(RESAMPLES, K): the column sums of `counts` (n, K) over n rows drawn with replacement."""
    generator = np.random.default_rng(SEED)
    n = len(counts)
    draws = (generator.integers(n, size=n) for _ in range(RESAMPLES))
    return np.stack([np.bincount(draw, minlength=n) @ counts for draw in draws])


def _percent(sums: Sequence[int]) -> float:
    part, whole = sums
    return 100 * part / max(whole, 1)


def _complement(figure: Figure) -> Figure:
    return Figure(100 - figure.value, 100 - figure.high, 100 - figure.low)


def _by_length(
    lengths: npt.NDArray[np.int64], hits: Counts, token_edits: Counts, character_edits: Counts
) -> tuple[LengthBin, ...]:
    lows = (0, *(end + 1 for end in LENGTH_BIN_ENDS))
    highs = (*LENGTH_BIN_ENDS, int(lengths.max()))
    bins: list[LengthBin] = []
    for low, high in zip(lows, highs, strict=True):
        inside = (low <= lengths) & (lengths <= high)
        if inside.any():
            figures = (
                _percent(counts[inside].sum(axis=0).tolist())
                for counts in (hits, token_edits, character_edits)
            )
            bins.append(LengthBin(low, high, int(inside.sum()), *figures))
    return tuple(bins)


def _normal(text: str, lowercase: bool) -> str:
    return unicodedata.normalize("NFC", text.lower() if lowercase else text)


def _require_references(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> None:
    _require_same_number(outputs, "lists of references", references)
    for number, candidates in enumerate(references, start=1):
        # a string is a sequence of strings too: its characters would pass for references
        if isinstance(candidates, str) or not candidates:
            raise DataError(
                f"output {number} needs a list of one or more references, found {candidates!r}; "
                "give [reference] even for one"
            )


def _require_same_number(outputs: Sequence[str], what: str, others: Sequence[object]) -> None:
    if not outputs:
        raise DataError("no outputs to score; give one or more")
    if len(outputs) != len(others):
        raise DataError(
            f"{len(outputs)} outputs but {len(others)} {what}; give one for each output"
        )

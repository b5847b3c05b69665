"""Word alignments: links from attention weights, gold links, and agreement metrics.

A link is a pair (source, target) of positions counted from 0, over whitespace words or tokens. Links
are written in the Pharaoh format, `0-0 1-2`, one line per pair.
"""

import dataclasses
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from regard.errors import ConfigError, DataError, ShapeError, quantity
from regard.lines import read_lines
from regard.setting_checks import is_number

Link = tuple[int, int]

_UNLINKED = 0.8
"""Weight outside words above which a target word has no link."""

_LINK = re.compile(r"([0-9]{1,9})([-?])([0-9]{1,9})")


class Alignment(list[Link]):
    """The links of one pair of texts: distinct (source, target) pairs in sorted order.

    `str()` returns them in Pharaoh format.
    """

    def __init__(self, links: Iterable[Link] = ()):
        super().__init__(sorted({(int(source), int(target)) for source, target in links}))

    def __str__(self) -> str:
        return " ".join(f"{source}-{target}" for source, target in self)


@dataclasses.dataclass(frozen=True, slots=True)
class GoldAlignment:
    """Gold links of one pair: sure links, and possible links, which include the sure ones."""

    sure: frozenset[Link]
    possible: frozenset[Link] = frozenset()

    def __post_init__(self):
        # one set if there are only sure links: training holds those of every pair
        possible = self.possible | self.sure if self.possible else self.sure
        object.__setattr__(self, "possible", possible)


@dataclasses.dataclass(frozen=True, slots=True)
class AlignmentMetrics:
    """Precision, recall and alignment error rate of a corpus, each from 0 to 1."""

    precision: float
    recall: float
    aer: float


def from_weights(
    weights: Float[np.ndarray, "L T"],
    source_words: Sequence[int | None],
    target_words: Sequence[int | None],
    threshold: float = 0.0,
    several: bool = False,
) -> Alignment:
    """Return the `best_links` of the `word_weights`, whose arguments these are."""
    return best_links(word_weights(weights, source_words, target_words), threshold, several)


def best_links(
    weights: Float[np.ndarray, "targets sources_and_rest"],
    threshold: float = 0.0,
    several: bool = False,
) -> Alignment:
    """Link each target word to the source word with which it agrees best (ties: the leftmost).

    The agreement of target word `w` and source word `u` is the geometric mean of the weight `alpha[w, u]`
    and of its share of all weights of `u`, which estimate the probabilities of `u` given `w` and of `w`
    given `u` (cf. Liang et al. 2006, "Alignment by Agreement", for two models):

        sqrt(alpha[w, u] * alpha[w, u] / sum_v alpha[v, u])

    A source word that has some weight for every target word thus attracts fewer links. With
    `several`, each target word is linked to all source words that have at least half of its highest
    weight. A target word has no link if the last column, which belongs to no word, has more than 0.8
    of the weight, or if the weight of the link would be 0 or less than `threshold`.

    Raises:
        ConfigError: `threshold` is not from 0 to 1.
    """
    check_threshold(threshold)
    links: list[Link] = []
    words = weights[:, :-1]
    totals = words.sum(0)
    scores = words if several else words / np.sqrt(np.where(totals > 0, totals, 1))
    linked = (weights[:, -1] <= _UNLINKED) & (words > 0).any(1)
    for target in np.flatnonzero(linked).tolist():
        row, best = words[target], int(scores[target].argmax())
        sources = np.flatnonzero(row >= row[best] / 2).tolist() if several else [best]
        links += [(source, target) for source in sources if row[source] >= threshold]
    return Alignment(links)


def check_threshold(threshold: Any) -> None:
    """Raise a ConfigError for a threshold that is not from 0 to 1."""
    if not (is_number(threshold) and 0 <= float(threshold) <= 1):
        raise ConfigError(f"the threshold of a weight must be from 0 to 1, got {threshold!r}")


def word_weights(
    weights: Float[np.ndarray, "L T"],
    source_words: Sequence[int | None],
    target_words: Sequence[int | None],
) -> Float[np.ndarray, "targets sources_and_rest"]:
    """Return the weight of every source word for every target word.

    Let `alpha[t, i]` be the weight of source token `i` when target token `t` is predicted. The weight
    of source word `u` for target word `w` is

        the mean over the tokens t of w of the sum over the tokens i of u of alpha[t, i]

    The last column contains the weight of the tokens outside words.

    Args:
        weights: attention weights, with one row per target token (L) and one column per source token
            (T).
        source_words: for each source token, the index of its word, or None for a token that belongs
            to no word.
        target_words: the same for each target token.

    Raises:
        ShapeError: `weights` is not (len(target_words), len(source_words)).
    """
    if weights.shape != (len(target_words), len(source_words)):
        raise ShapeError(
            f"weights must have one row per target token and one column per source token, "
            f"({len(target_words)}, {len(source_words)}), found {weights.shape}"
        )
    (rows, n_rows), (columns, n_columns) = _indices(target_words), _indices(source_words)
    by_source_word = np.zeros((n_columns + 1, len(rows)))
    np.add.at(by_source_word, columns, weights.T)
    sums = np.zeros((n_rows + 1, n_columns + 1))
    np.add.at(sums, rows, by_source_word.T)
    counts = np.bincount(rows, minlength=n_rows + 1)
    return (sums / np.maximum(counts, 1)[:, None])[:n_rows]


def parse_links(line: str, where: str) -> GoldAlignment:
    """Read one line of links counted from 0: `i-j` is sure, `i?j` is possible.

    A line without links is a pair without links. `where` is the file and line in the error
    message.

    Raises:
        DataError: a string in the line is not a link.
    """
    links: dict[str, set[Link]] = {"-": set(), "?": set()}
    for word in line.split():
        match = _LINK.fullmatch(word)
        if match is None:
            raise DataError(
                f"{where}: expected links such as 0-0 (sure) or 1?2 (possible), source before "
                f"target and counted from 0, found {word!r}; correct this line"
            )
        source, kind, target = match.groups()
        links[kind].add((int(source), int(target)))
    return GoldAlignment(frozenset(links["-"]), frozenset(links["?"]))


def read_gold(path: str | Path) -> list[GoldAlignment]:
    """Read a file of gold links, with one line per pair; it may be gzip-compressed.

    Raises:
        DataError: the file cannot be read, or a line is not valid for `parse_links`.
    """
    return [
        parse_links(line, f"{path}, line {number}")
        for number, line in enumerate(read_lines(path), start=1)
    ]


def check_links(gold: Sequence[GoldAlignment], sizes: Sequence[tuple[int, int]]) -> None:
    """Check that gold links are within the texts, given the numbers of source and target words.

    Raises:
        DataError: a link is outside its pair, or the number of pairs differs.
    """
    if len(gold) != len(sizes):
        lines, pairs = quantity(len(gold), "line"), quantity(len(sizes), "pair")
        raise DataError(f"{lines} of gold links for {pairs}")
    for number, (pair, size) in enumerate(zip(gold, sizes, strict=True), start=1):
        check_pair_links(pair, size, f"gold links of pair {number:,}")


def check_pair_links(pair: GoldAlignment, size: tuple[int, int], where: str) -> None:
    """Check that the links of one pair are within its texts.

    Args:
        pair: the links.
        size: the numbers of source and target words.
        where: the file and line, or the pair, in the error message.

    Raises:
        DataError: a link is outside.
    """
    sources, targets = size
    for source, target in sorted(pair.possible):
        if not (0 <= source < sources and 0 <= target < targets):
            raise DataError(
                f"{where}: {source}-{target} is outside its texts, which have {sources} and "
                f"{quantity(targets, 'word')}; count source and target words from 0"
            )


def alignment_metrics(
    predicted: Sequence[Iterable[Link]], gold: Sequence[GoldAlignment]
) -> AlignmentMetrics:
    """Compare predicted links A with the sure links S and possible links P, summed over all pairs.

        precision = |A and P| / |A|
        recall    = |A and S| / |S|
        aer       = 1 - (|A and S| + |A and P|) / (|A| + |S|)

    Och and Ney (2003), "A Systematic Comparison of Various Statistical Alignment Models".
    If there are no predicted links, precision is 1; if there are no sure links, recall is 1; if
    there are neither, the error rate is 0.

    Raises:
        DataError: the number of gold lines differs from the number of predicted ones.
    """
    if len(predicted) != len(gold):
        raise DataError(
            f"{quantity(len(predicted), 'line')} of predicted links but {len(gold)} of gold links; "
            "give one line of gold links per pair, and an empty line for a pair without links"
        )
    links = [frozenset(pair) for pair in predicted]
    size = sum(map(len, links))
    sure = sum(len(pair.sure) for pair in gold)
    common_sure = sum(len(a & pair.sure) for a, pair in zip(links, gold, strict=True))
    common_possible = sum(len(a & pair.possible) for a, pair in zip(links, gold, strict=True))

    def ratio(part: int, whole: int) -> float:
        return part / whole if whole else 1.0

    return AlignmentMetrics(
        precision=ratio(common_possible, size),
        recall=ratio(common_sure, sure),
        aer=1 - ratio(common_sure + common_possible, size + sure),
    )


def _indices(words: Sequence[int | None]) -> tuple[Int[np.ndarray, " tokens"], int]:
    """Return the word of each token, and the number of words, which stands for no word."""
    count = 1 + max((word for word in words if word is not None), default=-1)
    return np.array([count if word is None else word for word in words], dtype=np.int64), count

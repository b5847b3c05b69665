"""Bilingual templates: phrases in two languages with the links between their words.

A template gives both sides on one line; words with the same mark are linked:

    fill("no:1 {whom} veo:2 | i:2 do:1 not:1 see:2 {whom}", whom=fill("la:1 | her:1"))

gives `no la veo`, `i do not see her` and the links 0-1 0-2 1-4 2-0 2-3. The links come from the
template; no aligner is involved.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from regard.datasets.splits import Example

Links = frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Phrase:
    """Source words, target words, and links (source position, target position), 0-based."""

    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    links: Links = frozenset()

    def example(self) -> Example:
        """Return the phrase as an example of a dataset."""
        return Example(" ".join(self.source), " ".join(self.target), tuple(sorted(self.links)))


EMPTY = Phrase()
"""A phrase that leaves a slot empty."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a filled template: its words, the positions of each mark, the start of each slot."""

    words: tuple[str, ...]
    marked: dict[str, list[int]]
    starts: dict[str, int]


def fill(template: str, **slots: Phrase) -> Phrase:
    """Fill a template.

    Args:
        template: `source | target`; on each side, words are separated by spaces. `word` is not linked;
            `word:1` is linked to every word marked 1 on the other side, `word:12` to those marked
            1 and to those marked 2; `{name}` is a slot for a phrase.
        slots: the phrases; each occurs once on each side and contributes its own links.

    Raises:
        ValueError: a mark or a slot is not on both sides, or a slot is missing or occurs twice.
    """
    left, right = template.split("|")
    source = _fill_side(left.split(), {name: phrase.source for name, phrase in slots.items()})
    target = _fill_side(right.split(), {name: phrase.target for name, phrase in slots.items()})
    if not source.starts.keys() == target.starts.keys() == slots.keys():
        raise ValueError(f"{template!r} does not have the slots {sorted(slots)} on both sides")
    if source.marked.keys() != target.marked.keys():
        raise ValueError(f"{template!r} has a mark on one side only")
    links = {
        (source_index, target_index)
        for mark, positions in source.marked.items()
        for source_index in positions
        for target_index in target.marked[mark]
    }
    for name, phrase in slots.items():
        source_start, target_start = source.starts[name], target.starts[name]
        links |= {(source_start + i, target_start + j) for i, j in phrase.links}
    return Phrase(source.words, target.words, frozenset(links))


def _fill_side(words_and_slots: Iterable[str], slots: Mapping[str, tuple[str, ...]]) -> _Side:
    words: list[str] = []
    marked: dict[str, list[int]] = {}
    starts: dict[str, int] = {}
    for item in words_and_slots:
        if item.startswith("{"):
            name = item[1:-1]
            if name in starts or name not in slots:
                raise ValueError(f"the slot {item} occurs twice or has no phrase")
            starts[name] = len(words)
            words.extend(slots[name])
        else:
            word, _, marks = item.partition(":")
            for mark in marks:
                marked.setdefault(mark, []).append(len(words))
            words.append(word)
    return _Side(tuple(words), marked, starts)

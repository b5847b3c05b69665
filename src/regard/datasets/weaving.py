"""Phrases in two languages at once, with the links between their words.

A template writes both sides in one line; words that carry the same mark are linked:

    weave("no:1 {whom} veo:2 | i:2 do:1 not:1 see:2 {whom}", whom=weave("la:1 | her:1"))

gives `no la veo`, `i do not see her` and the links 0-1 0-2 1-4 2-0 2-3. The links are right by
construction: nothing is aligned afterwards.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from regard.datasets.pairs import Example

Links = frozenset[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words of the source, words of the target, and links (source place, target place), from 0."""

    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    links: Links = frozenset()

    def example(self) -> Example:
        """The phrase as a pair of a set."""
        return Example(" ".join(self.source), " ".join(self.target), tuple(sorted(self.links)))


NOTHING = Phrase()
"""A slot left empty."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a filled template: its words, the places of each mark, the start of each slot."""

    words: tuple[str, ...]
    marked: dict[str, list[int]]
    starts: dict[str, int]


def weave(template: str, **slots: Phrase) -> Phrase:
    """Fill a template.

    Args:
        template: `source | target`, each side words between spaces. `word` is not linked;
            `word:1` is linked to every word marked 1 on the other side, `word:12` to those marked
            1 and to those marked 2; `{name}` stands for a phrase.
        slots: the phrases; each stands once on each side and brings its own links.

    Raises:
        ValueError: a mark or a slot is not on both sides, or a slot is missing or there twice.
    """
    left, right = template.split("|")
    source = _lay(left.split(), {name: phrase.source for name, phrase in slots.items()})
    target = _lay(right.split(), {name: phrase.target for name, phrase in slots.items()})
    if not source.starts.keys() == target.starts.keys() == slots.keys():
        raise ValueError(f"{template!r} does not hold the slots {sorted(slots)} on each side")
    if source.marked.keys() != target.marked.keys():
        raise ValueError(f"{template!r} has a mark on one side only")
    links = {
        (here, there)
        for mark, places in source.marked.items()
        for here in places
        for there in target.marked[mark]
    }
    for name, phrase in slots.items():
        here, there = source.starts[name], target.starts[name]
        links |= {(here + first, there + second) for first, second in phrase.links}
    return Phrase(source.words, target.words, frozenset(links))


def _lay(tokens: Iterable[str], slots: Mapping[str, tuple[str, ...]]) -> _Side:
    words: list[str] = []
    marked: dict[str, list[int]] = {}
    starts: dict[str, int] = {}
    for token in tokens:
        if token.startswith("{"):
            name = token[1:-1]
            if name in starts or name not in slots:
                raise ValueError(f"the slot {token} is there twice or has no phrase")
            starts[name] = len(words)
            words.extend(slots[name])
        else:
            word, _, marks = token.partition(":")
            for mark in marks:
                marked.setdefault(mark, []).append(len(words))
            words.append(word)
    return _Side(tuple(words), marked, starts)

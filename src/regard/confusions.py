"""Confusions: which tokens a system wrote instead of which others."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from regard.errors import shortened
from regard.text import UNITS, Tokenizer, display_token
from regard.text.special_tokens import SPECIAL_TOKENS, UNK
from regard.text_table import text_table

_MOST_EXAMPLES = 2
_NOTHING, _SPACE = "–", "␣"


class ConfusionExample(NamedTuple):
    """An output that contains a confusion."""

    source: str
    output: str
    reference: str
    """The closest reference."""


@dataclass(frozen=True, slots=True)
class Confusion:
    """A token that was written instead of another one, and how often."""

    expected: str | None
    """The token of the reference; None for an insertion."""
    written: str | None
    """The token of the output; None for a deletion."""
    count: int
    examples: tuple[ConfusionExample, ...]
    """The first outputs with this confusion, at most two."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary."""
        return {**asdict(self), "examples": [example._asdict() for example in self.examples]}


def confusions(
    sources: Sequence[str],
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
    tokenize: Callable[[str], Sequence[str]],
    most: int | None = None,
) -> list[Confusion]:
    """Return the confusions in outputs, the most frequent first (ties: in alphabetical order).

    Each output is aligned with its closest reference, the one with the fewest edits (ties: the shorter),
    along a shortest sequence of insertions, deletions and substitutions (Levenshtein 1966). If there are
    several shortest sequences, one of them is counted.

    Args:
        sources: the sources, for the examples.
        outputs: one per source.
        references: for each output, one or more correct strings.
        tokenize: splits an output or a reference into tokens.
        most: maximum number of confusions to return; None for all.
    """
    from rapidfuzz.distance import Levenshtein

    counts: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], list[ConfusionExample]] = {}
    for source, output, candidates in zip(sources, outputs, references, strict=True):
        tokens = tokenize(output)
        split = [(tokenize(text), text) for text in candidates]
        expected, text = min(
            split, key=lambda pair: (Levenshtein.distance(pair[0], tokens), len(pair[0]))
        )
        for edit in Levenshtein.editops(expected, tokens):
            # no token is empty, so "" stands for none
            key = (
                "" if edit.tag == "insert" else expected[edit.src_pos],
                "" if edit.tag == "delete" else tokens[edit.dest_pos],
            )
            counts[key] += 1
            found, example = examples.setdefault(key, []), ConfusionExample(source, output, text)
            if len(found) < _MOST_EXAMPLES and example not in found:
                found.append(example)
    ranked = sorted(counts, key=lambda key: (-counts[key], key))[:most]
    return [
        Confusion(key[0] or None, key[1] or None, counts[key], tuple(examples[key]))
        for key in ranked
    ]


def token_splitter(tokenizer: Tokenizer, lowercase: bool = False) -> Callable[[str], list[str]]:
    """Return a function that splits a text into the tokens to compare.

    They are the tokens of the tokenizer, without joiners. Subwords are replaced by words and punctuation
    marks, because the same word can be split in several ways.
    """
    split = UNITS[tokenizer.unit].split or UNITS["word"].split
    assert split is not None
    joined = split is UNITS["word"].split  # other tokens may contain the joiner as a character

    def tokenize(text: str) -> list[str]:
        normalized = " ".join(tokenizer.normalize(text).split())  # as in the metrics
        if lowercase:
            normalized = tokenizer.normalize(normalized.lower())
        parts = re.split(f"({SPECIAL_TOKENS[UNK]})", normalized)  # one token, whatever the unit
        tokens = [
            token
            for index, part in enumerate(parts)
            for token in ([part] if index % 2 else split(part))
        ]
        return [display_token(token) for token in tokens] if joined else tokens

    return tokenize


def confusion_table(found: Sequence[Confusion]) -> str:
    """Return the table that `regard evaluate` prints, with one example per confusion."""
    rows = [("expected", "written", "count", "example: output (reference)")]
    for part in found:
        _, output, reference = part.examples[0]
        example = f"{shortened(output or _NOTHING)} ({shortened(reference)})"
        rows.append((_cell(part.expected), _cell(part.written), f"{part.count:,}", example))
    return text_table(rows, left=(0, 1, 3))


def _cell(token: str | None) -> str:
    return _NOTHING if token is None else token.replace(" ", _SPACE)

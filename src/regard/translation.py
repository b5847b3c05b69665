"""One output, and where each of its tokens looked."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard.alignment import Alignment, from_weights
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.charts import Heatmap


class Branch(NamedTuple):
    """A step of a search: what it tried."""

    parent: int
    """The branch it goes on from, by its place in the tree; -1 at the start."""
    token: str | None
    """What it adds; None for the end."""
    log_prob: float
    """Sum of the log-probabilities so far, nats."""


@dataclass(frozen=True)
class Translation:
    """One output, and where each of its tokens looked."""

    source: str
    """The text that was given."""
    source_tokens: list[str]
    """What the encoder saw, its end symbol included; unknown symbols as they were written."""
    tokens: list[str]
    """What was written, without the end symbol."""
    text: str
    """The same as a string."""
    score: float
    """Sum of log-probabilities (nats), the end symbol's included, over the length penalty."""
    attention: np.ndarray | None
    """(len(tokens), len(source_tokens)), rows sum to 1 (not with normalizer none); None where the model has no attention. Of many
    heads their average, of many layers the one that looks where it matters (found after training)."""
    attention_heads: np.ndarray | None = None
    """(len(tokens), layers, heads, len(source_tokens)): every head of every layer."""
    complete: bool = True
    """False where the output was cut at its length limit."""
    unknown: list[str] = field(default_factory=list)
    """Source symbols that the model does not know."""
    source_words: list[int | None] = field(default_factory=list, repr=False)
    """For every source token the word it belongs to; None for the end symbol."""
    target_words: list[int | None] = field(default_factory=list, repr=False)
    """For every token the word it belongs to."""
    tree: list[Branch] | None = field(default=None, repr=False)
    """What the search tried, if it was asked to keep it."""

    def alignment(self) -> Alignment:
        """Pairs (source word, target word), 0-based; `str()` of them is Pharaoh, `0-0 1-2`.

        Words are separated by spaces (subwords merged); without them every symbol is one.

        Raises:
            ConfigError: the model has no attention.
        """
        return from_weights(self._weights(), self.source_words, self.target_words)

    def chart(
        self, title: str = "", layer: int | None = None, head: int | None = None
    ) -> "Heatmap":
        """The attention as a heatmap: source across, output down.

        Args:
            title: a line above the map.
            layer: one layer of `attention_heads`, from 0; None: what `attention` shows.
            head: one head of it, from 0; None: the average of its heads.

        Raises:
            ConfigError: the model has no attention, or no such layer or head.
        """
        from regard.charts import heatmap

        weights = self._weights()
        if layer is not None or head is not None:
            weights = self._of_head(layer or 0, head)
        return heatmap(
            weights, self.source_tokens, self.tokens, title=title, heads=self.attention_heads
        )

    def words(self) -> "Translation":
        """The same with whole words in place of their parts, so that `words().chart()` shows words.

        Weights on the parts of a source word are added, rows of the parts of a target word
        averaged, so that rows sum to what they did and `alignment()` stays the same. What belongs
        to no word, such as the end symbol, stays as it is; so does all where every symbol is a
        word of its own.
        """
        source = _groups(self.source_words, len(self.source_tokens))
        target = _groups(self.target_words, len(self.tokens))
        if len(source) == len(self.source_tokens) and len(target) == len(self.tokens):
            return self
        attention, heads = self.attention, self.attention_heads
        if attention is not None:
            attention = _merged(attention[:, None, None], source, target)[:, 0, 0]
        return dataclasses.replace(
            self,
            source_tokens=_written(self.source_tokens, source),
            tokens=_written(self.tokens, target),
            attention=attention,
            attention_heads=None if heads is None else _merged(heads, source, target),
            source_words=[self.source_words[group[0]] for group in source if self.source_words],
            target_words=[self.target_words[group[0]] for group in target if self.target_words],
        )

    def to_bertviz(self) -> dict[str, Any]:
        """What BertViz shows: `bertviz.head_view(**t.to_bertviz())`; its `model_view` takes it, too.

        Returns:
            cross_attention, a tensor (1, heads, L, T) for every layer; encoder_tokens, the T that
            the encoder saw; decoder_tokens, the L that were written.

        Raises:
            ConfigError: the model has no attention.
        """
        import torch

        weights = self._weights()[:, None, None]
        heads = weights if self.attention_heads is None else self.attention_heads
        by_layer = heads.transpose(1, 2, 0, 3).copy()
        return {
            "cross_attention": [torch.from_numpy(layer[None]) for layer in by_layer],
            "encoder_tokens": list(self.source_tokens),
            "decoder_tokens": list(self.tokens),
        }

    def _of_head(self, layer: int, head: int | None) -> np.ndarray:
        assert self.attention_heads is not None
        _, layers, heads, _ = self.attention_heads.shape
        if not (0 <= layer < layers and (head is None or 0 <= head < heads)):
            raise ConfigError(
                f"there is no layer {layer}, head {head}: this attention has {layers} layers of "
                f"{heads} heads, both counted from 0"
            )
        of_layer = self.attention_heads[:, layer]
        return of_layer.mean(1) if head is None else of_layer[:, head]

    def to_dict(self) -> dict[str, Any]:
        """What `regard translate --attention` writes."""
        attention = (
            None if self.attention is None else np.round(self.attention.astype(float), 6).tolist()
        )
        return {
            "source": self.source,
            "source_tokens": self.source_tokens,
            "tokens": self.tokens,
            "text": self.text,
            "score": self.score,
            "complete": self.complete,
            "attention": attention,
        }

    def _weights(self) -> np.ndarray:
        if self.attention is None:
            raise ConfigError(
                "this model has no attention to show (model.attention none); train one with "
                "another --model.attention"
            )
        return self.attention


def empty_translation(text: str, attends: bool) -> Translation:
    """Return the translation of a blank text, which has no tokens."""
    attention = np.zeros((0, 0), np.float32) if attends else None
    heads = np.zeros((0, 1, 1, 0), np.float32) if attends else None
    return Translation(text, [], [], "", 0.0, attention, heads)


def _groups(words: Sequence[int | None], length: int) -> list[list[int]]:
    """The positions of the tokens of each word, in order; without a word a token is alone."""
    groups: dict[Any, list[int]] = {}
    for position, word in enumerate(words or [None] * length):
        groups.setdefault(("alone", position) if word is None else word, []).append(position)
    return list(groups.values())


def _merged(
    heads: np.ndarray, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]
) -> np.ndarray:
    """(L, layers, heads, T) with columns of a group added and rows of a group averaged."""
    columns = np.stack([heads[..., group].sum(-1) for group in source], -1)
    return np.stack([columns[group].mean(0) for group in target])


def _written(tokens: Sequence[str], groups: Sequence[Sequence[int]]) -> list[str]:
    """The tokens of every group as one; all stay as they are where every group has one."""
    if len(groups) == len(tokens):
        return list(tokens)
    parts = [[tokens[position] for position in group] for group in groups]
    return ["".join(map(_bare, each)) or "".join(each) for each in parts]


def _bare(token: str) -> str:
    """A part of a word without the marks of the space before it and of where it is joined."""
    if token.startswith("▁"):
        return token[1:]
    return token.removeprefix("‿").removesuffix("‿") if len(token) > 1 else token

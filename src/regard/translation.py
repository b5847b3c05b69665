"""One output, and where each of its tokens looked."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.alignment import Alignment, from_weights
from regard.errors import ConfigError

if TYPE_CHECKING:
    from regard.charts import Chart


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

    def alignment(self) -> Alignment:
        """Pairs (source word, target word), 0-based; `str()` of them is Pharaoh, `0-0 1-2`.

        Words are separated by spaces (subwords merged); without them every symbol is one.

        Raises:
            ConfigError: the model has no attention.
        """
        return from_weights(self._weights(), self.source_words, self.target_words)

    def chart(self, title: str = "", layer: int | None = None, head: int | None = None) -> "Chart":
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
        return heatmap(weights, self.source_tokens, self.tokens, title=title)

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


def nothing(text: str, attends: bool) -> Translation:
    """The translation of a blank text: no tokens."""
    attention = np.zeros((0, 0), np.float32) if attends else None
    heads = np.zeros((0, 1, 1, 0), np.float32) if attends else None
    return Translation(text, [], [], "", 0.0, attention, heads)

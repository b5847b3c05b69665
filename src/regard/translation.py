"""The output of a translation, with its attention."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from regard.alignment import Alignment, from_weights, word_weights
from regard.errors import ConfigError, DataError, ExtraError, quantity
from regard.text import EOS_TOKEN, SPECIAL_TOKENS, UNK, display_token
from regard.text_table import isolated

if TYPE_CHECKING:
    import pandas

    from regard.charts import Heatmap


class Branch(NamedTuple):
    """A node of a search tree: a hypothesis that the search kept."""

    parent: int
    """Index of the branch that this one continues; -1 at the start."""
    token: str | None
    """The last token; None for EOS."""
    log_prob: float
    """Sum of the log-probabilities so far, in nats."""


class TokenLogProb(NamedTuple):
    """A token that could come next."""

    token: str | None
    """The token; None for EOS."""
    log_prob: float
    """Log-probability of the token, in nats."""


@dataclass(frozen=True, repr=False)
class Translation:
    """One output of a translator, with its attention."""

    source: str
    """The source text."""
    source_tokens: list[str]
    """Tokens that the encoder read, EOS included; unknown tokens keep their spelling."""
    tokens: list[str]
    """Tokens of the output, without EOS."""
    text: str
    """The output as a string."""
    score: float
    """Sum of the log-probabilities in nats, EOS included, divided by the length penalty."""
    attention: np.ndarray | None
    """(len(tokens), len(source_tokens)): the average over the heads of one layer, which is selected
    after training; None without attention. Rows sum to 1 unless the normaliser is `none`, heads are
    ablated, or pinned weights leave a rest and all others are 0."""
    attention_heads: np.ndarray | None = None
    """(len(tokens), layers, heads, len(source_tokens)): attention of every head in every layer."""
    attention_layer: int = 0
    """The layer of `attention_heads` that `attention` averages, counted from 0."""
    several_links: bool = False
    """Whether `alignment` may link a target word to several source words: the attention was guided by
    such links."""
    right_to_left: bool = False
    """Whether the model predicts the last token first (`model.right_to_left`); `tokens`, and whatever has an
    entry or a row for each of them, are in the order of prediction."""
    complete: bool = True
    """False if the output was truncated at its length limit."""
    log_prob: float = 0.0
    """Sum of the log-probabilities in nats, EOS included; 0 for a blank source."""
    unknown: list[str] = field(default_factory=list)
    """Source tokens that are not in the vocabulary, repeats included."""
    left_out: list[str] = field(default_factory=list)
    """Punctuation that is not in the vocabulary and was left out of the source tokens."""
    source_words: list[int | None] = field(default_factory=list, repr=False)
    """Index of the word to which each source token belongs; None for EOS."""
    target_words: list[int | None] = field(default_factory=list, repr=False)
    """Index of the word to which each token of the output belongs."""
    tree: list[Branch] | None = field(default=None, repr=False)
    """The search tree, if `return_tree` was set."""
    top_logprobs: list[list[TokenLogProb]] | None = field(default=None, repr=False)
    """The most probable next tokens at each of the len(tokens) + 1 steps, best first, if requested; []
    for a blank source, which takes no steps."""

    method: str = "attention"
    """What `attention` contains: the attention weights, or the attributions of another method of
    `Translator.attribute`."""
    attributions: np.ndarray | None = field(default=None, repr=False)
    """(len(tokens), len(source_tokens)): the signed attributions of another method; the rows of
    `attention` are their absolute values, divided by their sum."""

    alternatives: "list[Translation]" = field(default_factory=list)
    """The other outputs of the same source, best first, if `n_best` was above 1."""

    @property
    def source_labels(self) -> list[str]:
        """The source tokens as charts display them: without joiners; unknown ones marked `<unk>`."""
        unknown = set(self.unknown)
        labels = [
            f"{display_token(token)} {SPECIAL_TOKENS[UNK]}"
            if token in unknown
            else display_token(token)
            for token in self.source_tokens[:-1]
        ]
        return [*labels, *self.source_tokens[-1:]]

    @property
    def target_labels(self) -> list[str]:
        """The tokens of the output as charts display them: without joiners."""
        return [display_token(token) for token in self.tokens]

    @property
    def probability(self) -> float:
        """The probability of the whole output, EOS included: exp(`log_prob`)."""
        return math.exp(self.log_prob)

    @property
    def margin(self) -> float:
        """The probability minus that of the most probable alternative with another text.

        If there is none, because `n_best` was 1 or the search found only one output, the other
        probability is taken as 0, so that the margin is an upper bound: the probability itself.
        """
        others = (other.probability for other in self.alternatives if other.text != self.text)
        return self.probability - max(others, default=0.0)

    @property
    def warning(self) -> str | None:
        """A warning if most of the source tokens are unknown, otherwise None."""
        total, unknown = len(self.source_tokens[:-1]), len(self.unknown)
        if 2 * unknown <= total:
            return None
        verb = "is" if unknown == 1 else "are"
        return (
            f"The output is unreliable: {unknown} of {quantity(total, 'source token')} {verb} not in "
            "the model's vocabulary."
        )

    def __eq__(self, other: object) -> bool:
        """Return whether all fields are equal, arrays in every element."""
        if not isinstance(other, Translation):
            return NotImplemented
        names = [field.name for field in dataclasses.fields(self)]
        pairs = [(getattr(self, name), getattr(other, name)) for name in names]
        return all(
            np.array_equal(a, b)
            if isinstance(a, np.ndarray) or isinstance(b, np.ndarray)
            else a == b
            for a, b in pairs
        )

    def __repr__(self) -> str:
        """Return source, output, score and the shape of the attention on one line."""
        parts = [f"{self.source!r} -> {self.text!r}", f"score={self.score:.3f}"]
        if self.attention is not None:
            parts.append("{}={}x{}".format(self.method, *self.attention.shape))
        if not self.complete:
            parts.append("truncated")
        if self.unknown:
            parts.append(f"unknown={[display_token(token) for token in self.unknown]}")
        if self.left_out:
            parts.append(f"left_out={[display_token(token) for token in self.left_out]}")
        if self.warning is not None:
            parts.append("unreliable")
        return f"Translation({', '.join(parts)})"

    def _repr_html_(self) -> str:
        """Return the output, its heatmap and its alternatives, for notebooks."""
        from regard.charts.heatmap import MOST_CELLS
        from regard.charts.notebook import output_html

        notes = ["the source is empty"]
        if self.source_tokens:
            notes = [f"{isolated(self.source)} (score {self.score:.3f})"]
        if self.unknown:
            notes.append(f"not in the vocabulary of the model: {_listed(self.unknown)}")
        if self.left_out:
            left_out = _listed(self.left_out)
            notes.append(f"left out: {left_out} (punctuation that the model does not use)")
        if not self.complete:
            notes.append("truncated at the length limit")
        drawn = self.attention is not None and 0 < self.attention.size <= MOST_CELLS
        return output_html(
            self.text,
            self.warning,
            notes,
            self.chart().to_svg() if drawn else None,
            [(output.text, output.score) for output in self.alternatives],
            [
                [
                    (EOS_TOKEN if token is None else display_token(token), log_prob)
                    for token, log_prob in step
                ]
                for step in self.top_logprobs or []
            ],
        )

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the attention as a DataFrame: a row per output token, a column per source token.

        Raises:
            ConfigError: the model has no attention.
            ExtraError: pandas is not installed.
        """
        try:
            import pandas
        except ModuleNotFoundError:
            raise ExtraError("to_pandas needs pandas: pip install pandas") from None
        return pandas.DataFrame(self._weights(), index=self.tokens, columns=self.source_tokens)

    def alignment(self, threshold: float = 0.0) -> Alignment:
        """Return the pairs (source word, target word), 0-based; `str()` returns Pharaoh format, `0-0 1-2`.

        Words are separated by spaces, and subwords are merged; in text without spaces, every token is
        a word. Each target word is linked to the source word with which it agrees best, or with
        `several_links` to several words (`regard.alignment.best_links`).

        Args:
            threshold: minimum weight of a link, from 0 to 1.

        Raises:
            ConfigError: the model has no attention, or the threshold is not from 0 to 1.
        """
        words = self.source_words, self.target_words
        return from_weights(self._weights(), *words, threshold, self.several_links)

    def word_weights(self) -> np.ndarray:
        """Return the attention with subwords merged: a row per target word, a column per source word.

        The last column contains the weight of the source tokens outside words, such as EOS.

        Raises:
            ConfigError: the model has no attention.
        """
        return word_weights(self._weights(), self.source_words, self.target_words)

    def chart(
        self, title: str = "", layer: int | None = None, head: int | None = None
    ) -> "Heatmap":
        """Return the attention as a heatmap: one column per source token, one row per output token.

        Args:
            title: title above the heatmap.
            layer: a layer of `attention_heads`, counted from 0; None means the layer of `attention`.
            head: a head of that layer, counted from 0; None means the average over its heads.

        Raises:
            ConfigError: the model has no attention, or does not have this layer or head.
            DataError: the text or the output is empty.
        """
        from regard.charts import heatmap

        if not self.tokens:
            cause = (
                "the model's output for this text is empty; if its other outputs are too, train it longer"
                if self.source_tokens
                else "the text is empty"
            )
            raise DataError(f"there is nothing to draw: {cause}")

        weights, heads = self._weights(), self.attention_heads
        if layer is not None or head is not None:
            assert heads is not None
            layer = self.attention_layer if layer is None else layer
            _, layers, count, _ = heads.shape
            if not (0 <= layer < layers and (head is None or 0 <= head < count)):
                where = f"layer {layer}" if head is None else f"layer {layer}, head {head}"
                raise ConfigError(
                    f"there is no {where}: the model has {quantity(layers, 'layer')} of "
                    f"{quantity(count, 'head')}, both counted from 0"
                )
            weights = heads[:, layer].mean(1) if head is None else heads[:, layer, head]
        labels = self.source_labels, self.target_labels
        return heatmap(
            weights, *labels, title=title, heads=heads, method=self.method.replace("_", " ")
        )

    def words(self) -> "Translation":
        """Return the translation with subwords merged into words, so that `words().chart()` shows words.

        The weights of the parts of a source word are added, and the rows of the parts of a target
        word are averaged, so that the row sums and `alignment()` do not change. Tokens that do not
        belong to a word, such as EOS, are left unchanged. A word with an unknown part is unknown.
        """
        source = _word_groups(self.source_words, len(self.source_tokens))
        target = _word_groups(self.target_words, len(self.tokens))
        if len(source) == len(self.source_tokens) and len(target) == len(self.tokens):
            return self
        attention, signed = (
            None if rows is None else _merge_weights(rows[:, None, None], source, target)[:, 0, 0]
            for rows in (self.attention, self.attributions)
        )
        heads = self.attention_heads
        merged, unknown = _merge_tokens(self.source_tokens, source), set(self.unknown)
        order = -1 if self.right_to_left else 1
        return dataclasses.replace(
            self,
            source_tokens=merged,
            unknown=[
                token
                for token, group in zip(merged[:-1], source, strict=False)
                if any(self.source_tokens[position] in unknown for position in group)
            ],
            tokens=_merge_tokens(self.tokens, [group[::order] for group in target]),
            attention=attention,
            attributions=signed,
            attention_heads=None if heads is None else _merge_weights(heads, source, target),
            source_words=[self.source_words[group[0]] for group in source if self.source_words],
            target_words=[self.target_words[group[0]] for group in target if self.target_words],
        )

    def to_bertviz(self) -> dict[str, Any]:
        """Return the arguments for BertViz's `head_view` or `model_view`: `head_view(**t.to_bertviz())`.

        Returns:
            A dict with `cross_attention`, a list with one tensor (1, heads, L, T) per layer;
            `encoder_tokens`, the T tokens of the source; and `decoder_tokens`, the L tokens of the
            output.

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

    def to_dict(self) -> dict[str, Any]:
        """Return the object that `regard translate --attention` writes, as a dict."""
        names = ("source", "source_tokens", "tokens", "text", "score", "complete")
        values = {name: getattr(self, name) for name in names}
        return {**values, "attention": rounded(self.attention)}

    def _weights(self) -> np.ndarray:
        if self.attention is None:
            raise ConfigError(
                "this model has no attention to show (model.attention none); train a model with a "
                "different model.attention"
            )
        return self.attention


def _listed(tokens: Sequence[str]) -> str:
    """Return the distinct tokens, as they are displayed, in quotation marks."""
    return ", ".join(f"“{isolated(text)}”" for text in dict.fromkeys(map(display_token, tokens)))


def rounded(weights: np.ndarray | None) -> list[Any] | None:
    """Return weights as nested lists for JSON, rounded to six decimals."""
    return None if weights is None else weights.astype(float).round(6).tolist()


def empty_translation(text: str, attends: bool, **fields: Any) -> Translation:
    """Return the translation of a blank text, which has no tokens, with these other fields."""
    attention = np.zeros((0, 0), np.float32) if attends else None
    heads = np.zeros((0, 1, 1, 0), np.float32) if attends else None
    return Translation(text, [], [], "", 0.0, attention, heads, **fields)


def with_alternatives(outputs: Sequence[Translation]) -> list[Translation]:
    """Return the outputs of one source, each with the others as its alternatives."""
    if len(outputs) == 1:
        return [*outputs]
    return [
        dataclasses.replace(output, alternatives=[*outputs[:rank], *outputs[rank + 1 :]])
        for rank, output in enumerate(outputs)
    ]


def _word_groups(words: Sequence[int | None], length: int) -> list[list[int]]:
    """Return the token positions of each word, in order; a token without a word is its own group."""
    groups: dict[Any, list[int]] = {}
    for position, word in enumerate(words or [None] * length):
        groups.setdefault(("alone", position) if word is None else word, []).append(position)
    return list(groups.values())


def _merge_weights(
    heads: np.ndarray, source: Sequence[Sequence[int]], target: Sequence[Sequence[int]]
) -> np.ndarray:
    """Add the columns and average the rows of each group, in weights (L, layers, heads, T)."""
    columns = np.stack([heads[..., group].sum(-1) for group in source], -1)
    return np.stack([columns[group].mean(0) for group in target]) if target else columns


def _merge_tokens(tokens: Sequence[str], groups: Sequence[Sequence[int]]) -> list[str]:
    """Join the tokens of every group; if every group has one token, the tokens are unchanged."""
    if len(groups) == len(tokens):
        return list(tokens)
    parts = [[tokens[position] for position in group] for group in groups]
    return ["".join(map(_strip_marks, part)) or "".join(part) for part in parts]


def _strip_marks(token: str) -> str:
    """Strip the marks for a preceding space and for a joint from a token."""
    return token[1:] if token.startswith("▁") else display_token(token)

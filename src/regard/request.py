"""Requests: texts and interventions, checked, tokenised and divided into batches for the decoder."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from operator import index
from typing import Any, SupportsIndex

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from regard.attention import Memory
from regard.batching import Example, bucket, pad
from regard.copy_mechanism import Copies, copies_of, extended_ids
from regard.decoders import Decoder
from regard.errors import ConfigError, DataError, quantity, shortened
from regard.model_folder import TrainedModel
from regard.models import Seq2Seq
from regard.search import SearchConstraints
from regard.setting_checks import MAX_LENGTH
from regard.text import (
    EOS,
    UNITS,
    Encoding,
    SourceLike,
    Tokenizer,
    format_source,
    remove_line_ending,
    split_source,
)

Pins = Mapping[int, Mapping[int, float]]
"""Attention weights to impose: {step: {source token: weight}}, both counted from 0."""

TextOrTokens = str | Sequence[str]
"""A text, or its tokens."""


@dataclass(frozen=True)
class Source:
    """One text of a request, tokenised, with the interventions on its output."""

    text: str
    features: str | None
    encoding: Encoding
    prefix: Encoding
    """Tokens that the output begins with; in forced decoding, the whole output."""
    pins: Pins
    limit: int
    """Maximum number of tokens in the output, prefix included."""
    copies: Copies | None
    """Target-side ids of the source tokens, for a copying decoder."""

    @property
    def line(self) -> str:
        """The text and its features as one line."""
        return format_source((self.text, self.features))

    @property
    def length(self) -> int:
        """Number of source tokens, EOS included."""
        return len(self.encoding.ids) + 1

    @property
    def example(self) -> Example:
        """The source and its prefix as an example."""
        copies = () if self.copies is None else self.copies.ids
        return Example([*self.encoding.ids, EOS], self.prefix.ids, copies)


@dataclass(frozen=True)
class PreparedRequest:
    """A checked and tokenised request, or a batch of it."""

    sources: list[Source]
    ablate_heads: tuple[tuple[int, int], ...] = ()

    def batches(
        self,
        batch_tokens: int,
        most: Callable[[int, int], int] | None = None,
        forced: bool = False,
    ) -> Iterator[tuple[list[int], "PreparedRequest"]]:
        """Yield the sources that are not blank in batches of similar length, with their indices.

        Args:
            batch_tokens: maximum number of tokens in a batch, padding included.
            most: maximum number of sources in a batch, by its source and target length (0 unless `forced`); None for no
                limit of its own.
            forced: whether the prefixes are given targets, whose tokens count as well as those of the sources.
        """
        indices = [index for index, source in enumerate(self.sources) if source.text.strip()]
        sources = [self.sources[index] for index in indices]
        sizes = [(each.length, len(each.prefix.ids) + 1 if forced else 0) for each in sources]
        for batch in bucket(sizes, batch_tokens, most=most):
            chosen = PreparedRequest([sources[row] for row in batch], self.ablate_heads)
            yield [indices[row] for row in batch], chosen

    @torch.inference_mode()
    def encode(self, model: Seq2Seq, device: torch.device) -> Memory:
        """Return the encoded sources."""
        copies = [source.copies.ids for source in self.sources if source.copies is not None]
        return model.encode(*self.padded(device), pad(copies).to(device) if copies else None)

    def padded(self, device: torch.device) -> tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]:
        """Return the ids of the sources, padded at the end, and their lengths."""
        ids = pad([[*source.encoding.ids, EOS] for source in self.sources])
        lengths = torch.tensor([source.length for source in self.sources])
        return ids.to(device), lengths.to(device)

    def constraints(self, decoder: Decoder, device: torch.device) -> SearchConstraints | None:
        """Return the prefixes and interventions; None if there are none."""
        prefixes = [source.prefix.ids for source in self.sources]
        if not (any(prefixes) or any(source.pins for source in self.sources) or self.ablate_heads):
            return None
        ablated = self.ablated_heads(decoder, device)
        return SearchConstraints(pad(prefixes).to(device), self._pins().to(device), ablated)

    def ablated_heads(
        self, decoder: Decoder, device: torch.device
    ) -> Bool[Tensor, "layers heads"] | None:
        """Return a mask that is True for heads to ablate; None if there are none."""
        if not self.ablate_heads:
            return None
        ablated = torch.zeros(decoder.attention_layers, decoder.attention_heads).bool()
        ablated[tuple(torch.tensor(self.ablate_heads).T)] = True
        return ablated.to(device)

    @property
    def pins_shape(self) -> tuple[int, int, int]:
        """(B, S, T): the numbers of sources, steps up to the last pinned one, and source tokens."""
        steps = max((step + 1 for source in self.sources for step in source.pins), default=0)
        return len(self.sources), steps, max(source.length for source in self.sources)

    def _pins(self) -> Tensor:
        """(B, S, T): the pinned weights, NaN where there are none."""
        pins = np.full(self.pins_shape, np.nan, np.float32)
        for row, source in enumerate(self.sources):
            for step, weights in source.pins.items():
                pins[row, step, list(weights)] = list(weights.values())
        return torch.from_numpy(pins)


def check_lengths(encodings: Iterable[Encoding], name: str = "a text") -> None:
    """Raise a DataError, which begins with `name`, for an encoding of more than `MAX_LENGTH` tokens."""
    for encoding in encodings:
        if len(encoding.ids) > MAX_LENGTH:
            raise DataError(
                f"{name} has {len(encoding.ids):,} tokens, but at most {MAX_LENGTH:,} can be "
                f"translated; split the text: {shortened(''.join(encoding.tokens))}"
            )


def prepare(
    trained: TrainedModel,
    texts: Sequence[SourceLike],
    prefix: str | Sequence[TextOrTokens] | None = None,
    pin: Pins | Sequence[Pins] | None = None,
    ablate_heads: Sequence[tuple[int, int]] = (),
    *,
    forced: bool = False,
) -> PreparedRequest:
    """Check and tokenise texts and interventions; with `forced`, each prefix is a whole target.

    Raises:
        ConfigError: an intervention cannot be applied to the model or the text.
        DataError: a text has more than `MAX_LENGTH` tokens, or a prefix or target is no text.
    """
    pins: list[Pins] = _one_each({} if pin is None else pin, texts, "pin")
    converted = {id(by_step): _convert_pins(by_step) for by_step in pins}
    pins = [converted[id(by_step)] for by_step in pins]
    heads = _convert_heads(ablate_heads)
    _check_interventions(trained, any(pins), heads)
    given: list[TextOrTokens] = _one_each("" if prefix is None else prefix, texts, "prefix")
    prefixes = _encode_targets(trained.target, given, not forced)
    longest = trained.metadata.get("max_target_length", 100)
    encodings = trained.source.encode_batch(texts)
    check_lengths([*encodings, *prefixes])
    sources: list[Source] = []
    rows = zip(texts, encodings, given, prefixes, pins, strict=True)
    for text, encoding, written, start, by_step in rows:
        copies = None
        if trained.config.model.copy:
            copies = copies_of(encoding, trained.target)
            start = start._replace(ids=extended_ids(start, copies, len(trained.target)))
        if isinstance(written, str) and not forced:
            _require_known(start, copies)
        limit = longest + 2 * (len(encoding.ids) + 1) + len(start.ids)
        content, features = split_source(text)
        # a blank text has an empty translation, whatever the interventions
        pinned = by_step if content.strip() else {}
        source = Source(content, features, encoding, start, pinned, limit, copies)
        for step, weights in pinned.items():
            _check_pins(weights, step, source)
        check_pinned_weights(pinned)
        sources.append(source)
    return PreparedRequest(sources, heads)


def _require_known(prefix: Encoding, copies: Copies | None) -> None:
    """Raise a ConfigError if tokens of a prefix are neither in the vocabulary nor copied from the source."""
    copied = () if copies is None else copies.extra_tokens
    unknown = [token for token in (*prefix.unknown, *prefix.left_out) if token not in copied]
    if unknown:
        raise ConfigError(
            "the prefix contains tokens that are not in the model's vocabulary: "
            f"{shortened(', '.join(unknown))}; leave them out"
        )


def to_list(texts: str | Iterable[SourceLike]) -> list[SourceLike]:
    """Return the texts as a list, without line endings.

    Raises:
        DataError: `texts` is not iterable or a table, whose items are the names of its columns, or an
            item is neither a string nor (source, features).
    """
    if isinstance(texts, Mapping) or hasattr(texts, "columns"):
        raise DataError(
            f"expected a string or an iterable of strings, got a {type(texts).__name__}; give one of its "
            "columns, such as frame['source']"
        )
    if not isinstance(texts, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DataError(f"expected a string or an iterable of strings, got {texts!r}")
    items: list[Any] = [texts] if isinstance(texts, str) else list(texts)
    for number, item in enumerate(items):
        if not _is_source(item):
            raise DataError(
                f"expected a string or a pair (source, features) as text {number} (counted from 0), "
                f"got {item!r}"
            )
    return [
        remove_line_ending(item)
        if isinstance(item, str)
        else (remove_line_ending(item[0]), item[1])
        for item in items
    ]


def _is_source(item: Any) -> bool:
    """Return whether an item is a string, or a pair of a string and its features."""
    if isinstance(item, tuple):
        fields: list[Any] = [*item]
        return len(fields) == 2 and isinstance(fields[0], str) and isinstance(fields[1], str | None)
    return isinstance(item, str)


def _encode_targets(target: Tokenizer, texts: Sequence[Any], are_prefixes: bool) -> list[Encoding]:
    """Return targets as ids; lists of tokens are not tokenised again."""
    given = [_text_or_tokens(text, number) for number, text in enumerate(texts)]
    plain = target.encode_batch(
        [remove_line_ending(text) if isinstance(text, str) else "" for text in given],
        # a space at the end of a prefix is a character of the output, but belongs to the next subword
        outer_spaces=are_prefixes and UNITS[target.unit].split is not None,
    )
    return [
        encoding if isinstance(text, str) else Encoding(target.tokens_to_ids(text), text)
        for text, encoding in zip(given, plain, strict=True)
    ]


def _text_or_tokens(text: Any, number: int) -> str | list[str]:
    """Return a target or prefix as a text, or as a list of tokens given by any iterable in a fixed order."""
    if isinstance(text, str):
        return text
    ordered = isinstance(text, Iterable) and not isinstance(text, Mapping | Set)
    tokens: list[Any] = [*text] if ordered else [None]
    if not all(isinstance(token, str) for token in tokens):
        raise DataError(
            f"expected a text or a list of tokens as target or prefix {number} (counted from 0), "
            f"got {shortened(repr(text))}"
        )
    return tokens


def _convert_heads(pairs: Iterable[Sequence[SupportsIndex]]) -> tuple[tuple[int, int], ...]:
    """Return (layer, head) pairs, given by any iterable of pairs, as whole numbers."""
    try:
        return tuple((index(layer), index(head)) for layer, head in pairs)
    except (TypeError, ValueError):
        raise ConfigError(
            f"ablate_heads takes pairs (layer, head) of whole numbers, got {shortened(repr(pairs))}"
        ) from None


def _convert_pins(pins: Pins) -> Pins:
    """Return pins with int and float as types of their numbers."""
    try:
        return {
            index(step): {index(token): float(weight) for token, weight in weights.items()}
            for step, weights in pins.items()
        }
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            "pin takes {step: {source token: weight}} with whole numbers as steps and tokens, got "
            f"{shortened(repr(pins))}"
        ) from None


def _check_interventions(
    trained: TrainedModel, pinned: bool, ablate_heads: Sequence[tuple[int, int]]
) -> None:
    decoder = trained.model.decoder
    layers, heads = decoder.attention_layers, decoder.attention_heads
    if (pinned or ablate_heads) and not layers:
        raise ConfigError("this model has no attention to pin or ablate (model.attention none)")
    for layer, head in ablate_heads:
        if not (0 <= layer < layers and 0 <= head < heads):
            raise ConfigError(
                f"there is no head {head} in layer {layer} to ablate; the model has "
                f"{quantity(layers, 'layer')} of {quantity(heads, 'head')}, both counted from 0"
            )


def _one_each(values: Any, texts: Sequence[SourceLike], name: str) -> list[Any]:
    """Return one value per text, given one value for all texts or one value per text."""
    if isinstance(values, str | Mapping):
        return [values] * len(texts)
    if not isinstance(values, Iterable):
        raise ConfigError(
            f"expected one {name} for all texts or one {name} per text, got {values!r}"
        )
    each: list[Any] = list(values)
    if len(each) != len(texts):
        raise ConfigError(
            f"expected one {name} for all texts or one {name} per text, got {len(each)} for "
            f"{quantity(len(texts), 'text')}"
        )
    return each


def _check_pins(weights: Mapping[int, float], step: int, source: Source) -> None:
    last_step, last_token = source.limit - 1, source.length - 1
    if not (0 <= step <= last_step and all(0 <= position <= last_token for position in weights)):
        raise ConfigError(
            f"pins for {shortened(source.text)!r} must have steps from 0 to {last_step} and source tokens from 0 "
            f"to {last_token}, got step {step} and tokens {shortened(', '.join(map(str, weights)) or 'none')}"
        )


def check_pinned_weights(pins: Pins) -> None:
    """Raise a ConfigError if the weights of a step are negative or sum to more than 1."""
    for step, weights in pins.items():
        total = sum(weights.values())
        if not (all(weight >= 0 for weight in weights.values()) and total <= 1 + 1e-6):
            raise ConfigError(
                f"pinned weights of a step must be at least 0 and sum to at most 1, got {total:.4g} at "
                f"step {step}"
            )


def check_prefix(trained: TrainedModel, prefix: str) -> None:
    """Raise a ConfigError for a prefix with unknown tokens, unless the model may copy them from a source."""
    if not trained.config.model.copy:
        _require_known(_encode_targets(trained.target, [prefix], are_prefixes=True)[0], None)

"""Requests and responses of the JSON API, as pydantic models."""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WrapValidator, model_validator

from regard.explanation.self_attention import LayerWeights
from regard.request import TextOrTokens, to_list
from regard.serving.limits import Limits
from regard.text import SourceLike
from regard.translation import Translation, rounded

Weight = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Index = Annotated[int, Field(ge=0)]


def _check_entries(values: Any, check: Callable[[Any], Any]) -> Any:
    """Check a dictionary entry by entry, up to the first error: a list of all would take seconds."""
    if not isinstance(values, dict):
        return check(values)
    items: Iterable[Any] = values.items()
    return {key: value for entry in items for key, value in check(dict([entry])).items()}


_PinnedStep = Annotated[dict[Index, Weight], WrapValidator(_check_entries)]
Pins = Annotated[dict[Index, _PinnedStep], WrapValidator(_check_entries)]
AblatedHeads = Annotated[
    list[tuple[Index, Index]],
    Field(
        max_length=256,
        description="(layer, head) to ablate, 0-based; a recurrent model has only (0, 0), an ensemble (0, member)",
    ),
]

_PINS = (
    "attention weights to impose in every layer and head, {step: {source token: weight}}, 0-based"
)
MAX_ITEMS = 1000
"""Maximum entries in a list. The server's own limits are lower; this one costs nothing to check."""


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid")

    model: int = Field(0, ge=0, description="0, or 1 for the second model")

    @model_validator(mode="before")
    @classmethod
    def _keep_one_unknown(cls, values: Any) -> Any:
        """Drop all unknown fields but the first: each is an error."""
        if not isinstance(values, dict):
            return values
        unknown = [name for name in values if name not in cls.model_fields]
        return {name: values[name] for name in (*cls.model_fields, *unknown[:1]) if name in values}

    @model_validator(mode="after")
    def _check_unicode(self) -> "_Request":
        try:
            "".join(self.strings).encode()
        except UnicodeEncodeError:
            raise ValueError("the text contains a lone surrogate") from None
        return self

    @property
    def strings(self) -> list[str]:
        """All text in the request."""
        values = (value if isinstance(value, list) else [value] for _, value in self)
        return [item for value in values for item in value if isinstance(item, str)]

    @property
    def characters(self) -> int:
        """Number of characters to tokenise."""
        return sum(map(len, self.strings))


class TranslateRequest(_Request):
    """One text or several, with search settings and interventions."""

    text: str | None = Field(None, description="text to translate")
    texts: list[str] | None = Field(
        None,
        min_length=1,
        max_length=MAX_ITEMS,
        description=f"several texts, instead of `text`; at most {Limits.texts}",
    )
    features: str | Annotated[list[str | None], Field(max_length=MAX_ITEMS)] | None = Field(
        None, description="features of the source: one string for all texts, or one per text"
    )
    beam_size: int = Field(
        5,
        ge=1,
        description="number of hypotheses kept per source, but at least n_best; 1 with one output is "
        "greedy search",
    )
    n_best: int = Field(1, ge=1, description="outputs per text")
    length_penalty: float = Field(
        1.0, ge=0, le=10, allow_inf_nan=False, description="exponent of ((5 + length) / 6)"
    )
    attention: bool = Field(True, description="return the attention weights")
    heads: bool = Field(
        False, description="return the attention weights of every head in every layer"
    )
    tree: bool = Field(False, description="return the search tree")
    top_logprobs: int = Field(
        0, ge=0, le=20, description="return this many of the most probable tokens at every step"
    )
    prefix: str | Annotated[list[str], Field(max_length=MAX_ITEMS)] | None = Field(
        None, description="prefix to force: one for all texts, or one per text"
    )
    prefix_tokens: list[str] | None = Field(
        None,
        max_length=MAX_ITEMS,
        description="prefix to force, as tokens; one that the vocabulary lacks becomes <unk>",
    )
    pin: Pins | Annotated[list[Pins], Field(max_length=MAX_ITEMS)] | None = Field(
        None,
        description=f"{_PINS}: one object for all texts, or one per text",
    )
    ablate_heads: AblatedHeads = []

    @model_validator(mode="after")
    def _check(self) -> "TranslateRequest":
        if (self.text is None) == (self.texts is None):
            raise ValueError("give either text or texts")
        if self.prefix is not None and self.prefix_tokens is not None:
            raise ValueError("give prefix or prefix_tokens, not both")
        for name in ("features", "prefix", "pin"):
            value = getattr(self, name)
            if isinstance(value, list) and len(value) != len(self.all_texts):
                raise ValueError(f"give one value of {name} for all texts, or one per text")
        return self

    @property
    def all_texts(self) -> list[str]:
        """All texts, always as a list."""
        return [self.text] if self.text is not None else self.texts or []

    @property
    def characters(self) -> int:
        """Number of characters to tokenise; features or a prefix for all texts count once for each."""
        values = self.features, self.prefix, "".join(self.prefix_tokens or ())
        shared = sum(len(value) for value in values if isinstance(value, str))
        return super().characters + shared * (len(self.all_texts) - 1)

    @property
    def search(self) -> tuple[object, ...]:
        """The settings that all texts in a batch must share."""
        heads = tuple(self.ablate_heads)
        options = self.tree, self.top_logprobs
        return self.model, self.beam_size, self.n_best, self.length_penalty, heads, *options

    @property
    def sources(self) -> list[SourceLike]:
        """Every text with its features."""
        count = len(self.all_texts)
        features = self.features if isinstance(self.features, list) else [self.features] * count
        return to_list(zip(self.all_texts, features, strict=True))

    @property
    def prefixes(self) -> str | Sequence[TextOrTokens] | None:
        """The forced prefix: one for all texts, or one per text."""
        return [self.prefix_tokens] * len(self.all_texts) if self.prefix_tokens else self.prefix


class _TargetRequest(_Request):
    text: str
    features: str | None = Field(None, description="features of the source")
    target: str | Annotated[list[str], Field(max_length=MAX_ITEMS)] = Field(
        description="output to force, as text or as tokens"
    )

    @property
    def source(self) -> SourceLike:
        """The text with its features."""
        return to_list([(self.text, self.features)])[0]


class ExplainRequest(_TargetRequest):
    """One attention step of one output."""

    step: int = Field(ge=0, description="number of the output token, from 0")
    layer: int | None = Field(None, ge=0, description="layer of a Transformer, from 0")
    head: int = Field(0, ge=0, description="head of that layer, from 0")


class SelfAttentionRequest(_TargetRequest):
    """All layers of a Transformer, for one output."""

    pin: Pins | None = Field(None, description=_PINS)
    ablate_heads: AblatedHeads = []


class Branch(BaseModel):
    """One node of the search tree."""

    parent: int = Field(description="index of the preceding node; -1 at the start")
    token: str | None = Field(description="token that the node adds; null for the end")
    log_prob: float = Field(description="log-probability up to this node, in nats")


class TokenLogProb(BaseModel):
    """A candidate for the next token."""

    token: str | None = Field(description="the token; null for the end")
    log_prob: float = Field(description="its log-probability, in nats")


class Output(BaseModel):
    """One output."""

    text: str
    tokens: list[str]
    score: float = Field(description="log-probability divided by the length penalty")
    log_prob: float = Field(description="log-probability of the full output, in nats")
    complete: bool = Field(description="false if truncated at the length limit")
    attention: list[list[float]] | None = Field(
        None, description="one row per token, one column per source token"
    )
    attention_heads: list[list[list[list[float]]]] | None = Field(
        None, description="weights by token, layer, head and source token"
    )
    top_logprobs: list[list[TokenLogProb]] | None = Field(
        None,
        description="the most probable tokens at every step, best first; the last step is the end",
    )


class BestOutput(Output):
    """The best output for one text, and the others if requested."""

    source: str
    source_tokens: list[str] = Field(description="tokens that the encoder reads")
    unknown: list[str] = Field(description="source tokens that are not in the vocabulary")
    left_out: list[str] = Field(
        description="punctuation of the source that is not in the vocabulary and was left out"
    )
    warning: str | None = Field(
        description="a warning if most source tokens are not in the vocabulary, otherwise null"
    )
    n_best: list[Output] | None = Field(None, description="all outputs, best first")
    tree: list[Branch] | None = None


class TranslateResponse(BaseModel):
    """One translation per text, in the order of the texts."""

    translations: list[BestOutput]


class ExplainResponse(BaseModel):
    """One attention step in numbers."""

    score: str = Field(description="name of the score")
    formula: str = Field(description="the score as a formula")
    labels: list[str] = Field(description="source tokens with their positions")
    scores: list[float] = Field(description="score of each source token")
    shift: float = Field(description="number subtracted from the scores before exp, or 0")
    exponentials: list[float] = Field(description="exp(score - shift)")
    partition: float = Field(description="Z, the sum of the exponentials")
    weights: list[float] = Field(description="exponentials divided by Z")
    context_dim: int = Field(description="width of the context, the weighted sum of the values")
    context: list[float] = Field(description="the first components of the context")


class SelfAttentionResponse(BaseModel):
    """Attention weights by layer, head, query and key; null where the model has none."""

    source_tokens: list[str] = Field(description="tokens that the encoder reads")
    decoder_inputs: list[str] = Field(description="tokens that the decoder reads")
    encoder: list[list[list[list[float]]]] | None = Field(description="within the source")
    decoder: list[list[list[list[float]]]] | None = Field(description="within the output")
    cross: list[list[list[list[float]]]] | None = Field(description="from the output to the source")


class ErrorResponse(BaseModel):
    """The reason for an error, in one sentence."""

    error: str


def count_pins(request: TranslateRequest) -> int:
    """Return the number of pinned weights in all texts."""
    texts = request.pin if isinstance(request.pin, list) else [request.pin or {}]
    count = sum(len(weights) for pins in texts for weights in pins.values())
    return count if isinstance(request.pin, list) else count * len(request.all_texts)


def count_weights(request: TranslateRequest, outputs: Sequence[Sequence[Translation]]) -> int:
    """Return the number of attention weights in the response."""
    return sum(
        (request.attention and output.attention.size)
        + (request.heads and output.attention_heads is not None and output.attention_heads.size)
        for n_best in outputs
        for output in n_best
        if output.attention is not None
    )


def translate_response(
    request: TranslateRequest, outputs: Sequence[Sequence[Translation]]
) -> dict[str, Any]:
    """Return the JSON object of a `TranslateResponse`."""
    return {"translations": [_best_output(request, n_best) for n_best in outputs]}


def _best_output(request: TranslateRequest, outputs: Sequence[Translation]) -> dict[str, Any]:
    best = outputs[0]
    result = {
        "source": best.source,
        "source_tokens": best.source_tokens,
        "unknown": best.unknown,
        "left_out": best.left_out,
        "warning": best.warning,
        **_output(request, best),
    }
    if request.n_best > 1:
        result["n_best"] = [_output(request, output) for output in outputs]
    if request.tree:
        result["tree"] = [branch._asdict() for branch in best.tree or []]
    return result


def _output(request: TranslateRequest, output: Translation) -> dict[str, Any]:
    result: dict[str, Any] = {
        "text": output.text,
        "tokens": output.tokens,
        "score": round(output.score, 6),
        "log_prob": round(output.log_prob, 6),
        "complete": output.complete,
    }
    if request.attention:
        result["attention"] = rounded(output.attention)
    if request.heads:
        result["attention_heads"] = rounded(output.attention_heads)
    if output.top_logprobs is not None:
        result["top_logprobs"] = [
            [token._asdict() for token in step] for step in output.top_logprobs
        ]
    return result


def layer_weights_response(weights: LayerWeights) -> dict[str, Any]:
    """Return the JSON object with all weights of a Transformer."""
    arrays = ("encoder", "decoder", "cross")
    return {**weights._asdict(), **{name: rounded(getattr(weights, name)) for name in arrays}}

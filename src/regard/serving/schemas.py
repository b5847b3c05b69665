"""What clients send and get, as pydantic models: checked, and described in the interface's pages."""

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from regard.search import length_normalization
from regard.translation import Translation
from regard.translator import TextOrTokens

Weight = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Place = Annotated[int, Field(ge=0)]
Pins = dict[Place, dict[Place, Weight]]

MOST = 1000
"""Entries of a list; the limits of the server are lower, this one is cheap to find."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TranslateRequest(_Strict):
    """One text, or several."""

    text: str | None = Field(None, description="what to translate")
    texts: list[str] | None = Field(
        None, min_length=1, max_length=MOST, description="several of it, instead of `text`"
    )
    beam_size: int = Field(5, ge=1, description="open hypotheses; 1 is greedy search")
    n_best: int = Field(1, ge=1, description="outputs per text")
    length_penalty: float = Field(
        1.0, ge=0, le=10, allow_inf_nan=False, description="exponent of ((5 + length) / 6)"
    )
    attention: bool = Field(True, description="give where each token looked")
    heads: bool = Field(False, description="give it for every head of every layer")
    tree: bool = Field(False, description="give what the search tried")
    prefix: str | Annotated[list[str], Field(max_length=MOST)] | None = Field(
        None, description="what the output begins with, one for all texts or one each"
    )
    prefix_tokens: list[str] | None = Field(
        None, max_length=MOST, description="the same, as tokens"
    )
    pin: Pins | Annotated[list[Pins], Field(max_length=MOST)] | None = Field(
        None,
        description="weights that looks are made to have, {step: {source token: weight}} from 0, "
        "one for all texts or one each",
    )
    ablate_heads: list[tuple[Place, Place]] = Field(
        [], max_length=256, description="(layer, head) of a Transformer that find nothing, from 0"
    )
    model: int = Field(0, ge=0, description="1 for the model beside")

    @model_validator(mode="after")
    def _fitting(self) -> "TranslateRequest":
        if (self.text is None) == (self.texts is None):
            raise ValueError("give text or texts, one of the two")
        if self.prefix is not None and self.prefix_tokens is not None:
            raise ValueError("give prefix or prefix_tokens, not both")
        for name, given in (("prefix", self.prefix), ("pin", self.pin)):
            if isinstance(given, list) and len(given) != len(self.all_texts):
                raise ValueError(f"give one {name} for all texts, or one each")
        for text in self.strings:
            _check_text(text)
        return self

    @property
    def strings(self) -> list[str]:
        """Everything that somebody wrote."""
        prefix = self.prefix if isinstance(self.prefix, list) else [self.prefix or ""]
        return [*self.all_texts, *prefix, *(self.prefix_tokens or [])]

    @property
    def all_texts(self) -> list[str]:
        """The texts, also if it is one."""
        return [self.text] if self.text is not None else self.texts or []

    @property
    def prefixes(self) -> list[TextOrTokens]:
        """One for each text."""
        if isinstance(self.prefix, list):
            return list(self.prefix)
        return [self.prefix_tokens or self.prefix or ""] * len(self.all_texts)

    @property
    def pins(self) -> list[Pins]:
        """Those of each text."""
        return self.pin if isinstance(self.pin, list) else [self.pin or {}] * len(self.all_texts)


class ExplainRequest(_Strict):
    """One look of one output."""

    text: str
    target: str | Annotated[list[str], Field(max_length=MOST)] = Field(
        description="the output that is explained, forced; as text or as tokens"
    )
    step: int = Field(ge=1, description="number of the output symbol, from 1")
    layer: int | None = Field(None, ge=0, description="of a Transformer, from 0")
    head: int = Field(0, ge=0, description="of a Transformer, from 0")
    model: int = Field(0, ge=0, description="1 for the model beside")

    @model_validator(mode="after")
    def _fitting(self) -> "ExplainRequest":
        for text in self.strings:
            _check_text(text)
        return self

    @property
    def strings(self) -> list[str]:
        """Everything that somebody wrote."""
        return [self.text, *([self.target] if isinstance(self.target, str) else self.target)]


class BranchAnswer(BaseModel):
    """What the search tried at one place."""

    parent: int = Field(description="the branch it goes on from; -1 at the start")
    token: str | None = Field(description="what it adds; null for the end")
    log_probability: float = Field(description="of everything up to here, nats")


class TranslationAnswer(BaseModel):
    """One output."""

    text: str
    tokens: list[str]
    score: float = Field(description="log-probability over the length penalty")
    log_probability: float = Field(description="of the whole output, nats")
    complete: bool = Field(description="false where it was cut at its length limit")
    attention: list[list[float]] | None = Field(
        None, description="a row per token, a column per source token"
    )
    attention_heads: list[list[list[list[float]]]] | None = Field(
        None, description="token, layer, head, source token"
    )


class BestAnswer(TranslationAnswer):
    """The best output of one text, and the others if asked for."""

    source: str
    source_tokens: list[str] = Field(description="what the encoder saw")
    unknown: list[str] = Field(description="source symbols that the model does not know")
    n_best: list[TranslationAnswer] | None = Field(None, description="all outputs, best first")
    tree: list[BranchAnswer] | None = None


class TranslateAnswer(BaseModel):
    """An answer per text, in the order of the texts."""

    translations: list[BestAnswer]


class ErrorAnswer(BaseModel):
    """What was wrong, in one sentence."""

    error: str


def numbers(asked: TranslateRequest, found: Sequence[Sequence[Translation]]) -> int:
    """How many weights the answer holds."""
    return sum(
        (asked.attention and output.attention.size)
        + (asked.heads and output.attention_heads is not None and output.attention_heads.size)
        for outputs in found
        for output in outputs
        if output.attention is not None
    )


def answer(asked: TranslateRequest, found: Sequence[Sequence[Translation]]) -> dict[str, Any]:
    """The body of an answer."""
    return {"translations": [_best(asked, outputs) for outputs in found]}


def _best(asked: TranslateRequest, outputs: Sequence[Translation]) -> dict[str, Any]:
    best = outputs[0]
    body = {
        "source": best.source,
        "source_tokens": best.source_tokens,
        "unknown": best.unknown,
        **_one(asked, best),
    }
    if asked.n_best > 1:
        body["n_best"] = [_one(asked, output) for output in outputs]
    if asked.tree:
        body["tree"] = [
            {"parent": branch.parent, "token": branch.token, "log_probability": branch.score}
            for branch in best.tree or []
        ]
    return body


def _one(asked: TranslateRequest, output: Translation) -> dict[str, Any]:
    penalty = float(length_normalization(len(output.tokens) + 1, asked.length_penalty))
    body: dict[str, Any] = {
        "text": output.text,
        "tokens": output.tokens,
        "score": round(output.score, 6),
        "log_probability": round(output.score * penalty, 6),
        "complete": output.complete,
    }
    if asked.attention:
        body["attention"] = _rounded(output.attention)
    if asked.heads:
        body["attention_heads"] = _rounded(output.attention_heads)
    return body


def _rounded(weights: Any) -> Any:
    return None if weights is None else weights.astype(float).round(6).tolist()


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("the text holds half a character (a lone surrogate)") from None

"""Settings: frozen dataclasses whose fields are the YAML keys, the command's flags and the help.

A field's flag is `--group.field_name`; its line of help is the string below it. No torch here, so
that `regard --help` stays quick.
"""

import dataclasses
from collections.abc import Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

from regard.errors import ConfigError
from regard.score_registry import ALL_NAMES, SCORES, check_rotary, find_score

Unit = Literal["auto", "char", "grapheme", "word", "whitespace", "bpe", "unigram"]
NormalForm = Literal["none", "NFC", "NFD", "NFKC", "NFKD"]
if TYPE_CHECKING:
    AttentionName = str
else:
    AttentionName = Literal[("none", *ALL_NAMES)]
Device = Literal["auto", "cpu", "cuda", "mps"]
MetricName = Literal["auto", "loss", "exact_match", "per", "cer", "bleu", "chrf"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where the pairs are and what to do with lines that cannot be used."""

    train: str | None = None
    """Pairs to learn from: a TSV file, or two parallel files as F.src,F.tgt; .gz is read as it is."""
    dev: str | None = None
    """Pairs to choose the best model by; without it, 5 % of the training sources (at most 1,000) are held out."""
    features_column: int | None = None
    """Column, from 1, with features of the source, such as V;PST: read as further source symbols, cut at ; | , or spaces."""
    max_length: int = 200
    """Longest source or target that is used, in symbols as the model sees them."""
    bad_lines: Literal["stop", "skip"] = "stop"
    """Lines that are empty, lack a column or are too long: stop with their list, or skip and count them."""

    def __post_init__(self) -> None:
        _typed(self, "data")
        _at_least(1, self, "data", "max_length")
        if self.features_column is not None:
            _at_least(1, self, "data", "features_column")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextConfig:
    """How the strings of one side are cut into symbols."""

    unit: Unit = "auto"
    """Unit of text: char, grapheme, word (words and punctuation), whitespace (split at whitespace only), bpe, unigram; auto chooses one from the data."""
    vocabulary_size: int = 8000
    """Most entries in the vocabulary (the rarest are dropped; the size that bpe and unigram learn)."""
    min_frequency: int = 1
    """Times a symbol must occur in the training pairs to enter the vocabulary."""
    normal_form: NormalForm = "NFC"
    """Unicode normal form applied first."""
    lowercase: bool = False
    """Lower-case the text first."""

    def __post_init__(self) -> None:
        _typed(self, "text")
        _at_least(1, self, "text", "vocabulary_size", "min_frequency")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The encoder, the decoder and the attention between them."""

    kind: Literal["rnn", "transformer"] = "rnn"
    """Kind of model: recurrent, or attention in place of recurrence."""
    encoder: Literal["rnn", "transformer"] | None = None
    """Kind of encoder, where it is not the model's."""
    attention: AttentionName | None = None
    """Score of every attention (additive; in a transformer scaled_dot); none gives a recurrent decoder only the encoder's final state."""
    normalizer: Literal["softmax", "sparsemax", "entmax15", "none"] = "softmax"
    """What turns scores into weights; sparsemax and entmax15 give many sources a weight of exactly 0."""
    decoder: Literal["bahdanau", "luong"] = "luong"
    """Recurrent decoder: attend with the state before the step (bahdanau) or after it (luong)."""
    window: Literal["none", "local-m", "local-p"] = "none"
    """Recurrent decoder: see a window of the source that walks along (local-m) or is predicted (local-p)."""
    window_radius: int = 10
    """Positions that such a window reaches to each side."""
    coverage: bool = False
    """Recurrent decoder: the score minds what was looked at before (additive and concat)."""
    copy: bool = False
    """Let the decoder copy source symbols, unknown ones too (pointer-generator); both sides need one unit of text."""
    input_feeding: bool = False
    """Feed the attentional state to the next step (luong only; slower to train)."""
    cell: Literal["gru", "lstm"] = "lstm"
    """Recurrent cell."""
    embedding_dim: int = 128
    """Width of the embeddings (a transformer's have the width of its states)."""
    encoder_dim: int = 256
    """Width of the encoder, per direction."""
    decoder_dim: int = 256
    """Width of the decoder."""
    attention_dim: int = 256
    """Width inside the additive and concat scores (in a transformer the width of a head)."""
    encoder_layers: int | None = None
    """Layers of the encoder (1; of a transformer 3)."""
    decoder_layers: int | None = None
    """Layers of the decoder (1; of a transformer 3)."""
    bidirectional: bool = True
    """Recurrent encoder: read the source in both directions."""
    heads: int = 4
    """Transformer: attention heads, each a part of the width."""
    feed_forward_dim: int = 1024
    """Transformer: width inside the feed-forward part of a layer."""
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    """Transformer: nonlinearity of the feed-forward part."""
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    """Transformer: how it knows the order; rotary is for inner products alone."""
    pre_norm: bool = True
    """Transformer: norm before each part of a layer, else after it."""
    dropout: float = 0.2
    """Share of activations dropped while training."""
    tie_embeddings: bool = False
    """One matrix for the target embeddings and the output layer."""

    def __post_init__(self) -> None:
        _typed(self, "model")
        if self.attention in ALL_NAMES:  # replaces an alias
            object.__setattr__(self, "attention", find_score(self.attention).name)
        _at_least(1, self, "model", "embedding_dim", "encoder_dim", "decoder_dim", "attention_dim")
        _at_least(1, self, "model", "heads", "feed_forward_dim", "window_radius")
        if self.resolved() is not self:
            return  # the settled one has been checked
        _at_least(1, self, "model", "encoder_layers", "decoder_layers")
        _share(self, "model", "dropout")
        self._check_transformer()
        self._check_looks()
        if self.copy and self.attention == "none":
            raise ConfigError("model.copy copies where attention looks: choose a model.attention")
        if self.copy and self.normalizer == "none":
            raise ConfigError(
                "model.copy needs weights that are probabilities: choose another model.normalizer"
            )
        self._check_feeding()

    def _check_feeding(self) -> None:
        if not self.input_feeding:
            return
        if self.decoder != "luong":
            raise ConfigError(
                "model.input_feeding needs model.decoder luong; the bahdanau decoder feeds its "
                "context to the cell already: leave input_feeding out or choose luong"
            )
        if self.kind != "rnn" or self.attention == "none":
            raise ConfigError(
                "model.input_feeding feeds what a recurrent decoder attended to, got model.kind "
                f"{self.kind} and model.attention {self.attention}: leave it out, or choose "
                "model.kind rnn and a score"
            )

    def resolved(self) -> "ModelConfig":
        """The same with what depends on the kind of model filled in."""
        transformer = self.kind == "transformer"
        values = {
            "encoder": self.kind,
            "attention": "scaled_dot" if transformer else "additive",
            "encoder_layers": 3 if (self.encoder or self.kind) == "transformer" else 1,
            "decoder_layers": 3 if transformer else 1,
        }
        open_ones = {name: value for name, value in values.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **open_ones) if open_ones else self

    def _check_looks(self) -> None:
        recurrent = self.kind == "rnn" and self.attention != "none"
        if self.window != "none" and not recurrent:
            raise ConfigError(
                f"model.window {self.window} is for recurrent decoders with attention: leave it out, "
                "or choose model.kind rnn and a score"
            )
        pairwise = self.attention in SCORES and SCORES[self.attention].pairwise
        if self.coverage and not (recurrent and pairwise):
            raise ConfigError(
                "model.coverage is one more input of the additive and concat scores of recurrent "
                f"decoders, got model.kind {self.kind} and model.attention {self.attention}"
            )

    def _check_transformer(self) -> None:
        for part, kind in (("encoder", self.encoder), ("decoder", self.kind)):
            if kind != "transformer":
                continue
            width = getattr(self, f"{part}_dim")
            if width % self.heads:
                raise ConfigError(
                    f"model.{part}_dim must be a multiple of model.heads, got {width} and "
                    f"{self.heads}"
                )
            if self.positions == "rotary" and self.attention in SCORES:
                pairwise = SCORES[self.attention].pairwise
                check_rotary(self.attention, pairwise, width // self.heads)
        if self.kind == "transformer" and self.attention == "none":
            raise ConfigError(
                "a transformer is made of attention: choose a score for model.attention, or "
                "model.kind rnn"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """Batches, optimiser, schedule, validation and when to stop."""

    seed: int = 1
    """Seed of initial weights, batch order and dropout."""
    batch_tokens: int = 4096
    """Size of a batch, in source plus target symbols, padding included."""
    max_updates: int = 20000
    """Most updates of the weights."""
    max_minutes: float | None = None
    """Time budget, in minutes; the schedule ends with it."""
    validate_every: int = 500
    """Updates between two validations."""
    patience: int = 10
    """Validations without gain after which the rate cools down and training ends."""
    metric: MetricName = "auto"
    """What the best model is chosen by; auto: bleu for words and subwords, else exact_match."""
    optimizer: Literal["adam", "adamw"] = "adam"
    """Optimiser."""
    learning_rate: float = 1e-3
    """Highest learning rate."""
    weight_decay: float = 0.0
    """Weight decay, per update and unit of learning rate (decoupled for adamw)."""
    schedule: Literal["constant", "plateau", "inverse_sqrt"] = "plateau"
    """Learning rate after the warm-up: held, halved when validations stop gaining, or falling as 1/sqrt(update)."""
    plateau_patience: int = 3
    """Validations without gain before the plateau schedule halves the rate."""
    warmup: int = 200
    """Updates over which the rate rises from 0."""
    cooldown: float = 0.2
    """Share of the run at its end over which the rate falls linearly to 0."""
    label_smoothing: float = 0.1
    """Share of the target's probability spread over the vocabulary."""
    coverage_loss: float = 0.0
    """With model.coverage: what is added to the loss per unit of attention to what was attended to before."""
    clip_norm: float = 1.0
    """Longest gradient, as the norm over all parameters."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of matrix products while training."""

    def __post_init__(self) -> None:
        _typed(self, "training")
        _at_least(1, self, "training", "batch_tokens", "max_updates", "validate_every", "patience")
        _at_least(
            0, self, "training", "warmup", "weight_decay", "plateau_patience", "coverage_loss"
        )
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"training.seed must lie in [0, 2^63), got {self.seed}")
        _share(self, "training", "cooldown", "label_smoothing")
        for name in ("learning_rate", "clip_norm", "max_minutes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"training.{name} must be above 0, got {value}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of one trained folder."""

    out: str | None = None
    """Folder to write the model to."""
    device: Device = "auto"
    """Where to compute."""
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    source: TextConfig = dataclasses.field(default_factory=TextConfig)
    target: TextConfig = dataclasses.field(default_factory=TextConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        _typed(self)
        if self.training.coverage_loss > 0 and not self.model.coverage:
            raise ConfigError("training.coverage_loss needs model.coverage true")


GROUPS: dict[str, Any] = {
    field.name: field.type
    for field in dataclasses.fields(Config)
    if dataclasses.is_dataclass(field.type)
}
"""Groups of settings and their dataclasses."""


def to_dict(config: Config) -> dict[str, Any]:
    """The settings as plain nested dictionaries, as config.json holds them."""
    return dataclasses.asdict(config)


def from_dict(values: Mapping[str, Any]) -> Config:
    """Build a Config from nested dictionaries; an unknown key is a ConfigError naming it."""
    fields = {
        name: _build(GROUPS[name], value, name) if name in GROUPS else value
        for name, value in values.items()
    }
    return _build(Config, fields, "")


def _build(cls: type, values: Any, group: str) -> Any:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{group or 'config'} takes settings by name, got {values!r}")
    known = {field.name for field in dataclasses.fields(cls)}
    for name in values:
        if name not in known:
            where = f"{group}.{name}" if group else name
            raise ConfigError(f"unknown setting {where}; known: {', '.join(sorted(known))}")
    return cls(**values)


def _typed(config: Any, group: str = "") -> None:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if not _fits(value, field.type):
            where = f"{group}.{field.name}" if group else field.name
            raise ConfigError(f"{where} takes {_spoken(field.type)}, got {value!r}")


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return any(_fits(value, each) for each in get_args(kind))
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


def _spoken(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(map(_spoken, get_args(kind)))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return names.get(kind, "nothing" if kind is type(None) else f"a {kind.__name__}")


def _at_least(low: int, config: Any, group: str, *names: str) -> None:
    for name in names:
        if getattr(config, name) < low:
            raise ConfigError(f"{group}.{name} must be at least {low}, got {getattr(config, name)}")


def _share(config: Any, group: str, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(config, name) < 1:
            raise ConfigError(f"{group}.{name} must lie in [0, 1), got {getattr(config, name)}")

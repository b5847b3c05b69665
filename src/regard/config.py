"""Settings: frozen dataclasses that define the keys of YAML files and the options of commands.

The option of a field is `--group.field_name`; its help is the string below it. This module does not
import PyTorch, so that `regard --help` is fast.
"""

import dataclasses
import difflib
import functools
import re
from collections.abc import Callable, Mapping, Set
from typing import TYPE_CHECKING, Any, Literal, TypeVar, dataclass_transform

from regard.errors import ConfigError, nearest
from regard.score_registry import ALL_NAMES, SCORES, check_rotary, find_score
from regard.setting_checks import DIMENSIONS, check_values

Unit = Literal["auto", "char", "grapheme", "word", "whitespace", "bpe", "unigram"]
NormalForm = Literal["none", "NFC", "NFD", "NFKC", "NFKD"]
if TYPE_CHECKING:
    AttentionName = str
else:
    AttentionName = Literal[("none", *ALL_NAMES)]
Device = Literal["auto", "cpu", "cuda", "mps"]
Precision = Literal["float32", "bfloat16"]
Symmetrization = Literal["soft", "intersection", "union", "grow-diag-final-and"]
Tracker = Literal[
    "none",
    "tensorboard",
    "wandb",
    "mlflow",
    "trackio",
    "comet_ml",
    "aim",
    "clearml",
    "dvclive",
    "swanlab",
]
MetricName = Literal["auto", "loss", "exact_match", "per", "cer", "bleu", "chrf"]

_T = TypeVar("_T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def _settings(group: str) -> Callable[[type[_T]], type[_T]]:
    """Make a class a frozen dataclass whose constructor suggests the nearest name for an unknown one.

    The attribute `given` of an instance contains the names that the caller passed.
    """

    def decorate(cls: type[_T]) -> type[_T]:
        cls = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
        initialize = cls.__init__

        @functools.wraps(initialize)
        def checked(self: Any, **values: Any) -> None:
            known = [field.name for field in dataclasses.fields(self)]
            for name in values:
                if name not in known:
                    where = f"{group}.{name}" if group else name
                    hint = nearest(name, known) or ("" if group else _nearest_in_groups(name))
                    hint = hint or f"; known: {', '.join(sorted(known))}"
                    raise ConfigError(f"unknown setting {where}{hint}")
            initialize(self, **{name: _plain(value) for name, value in values.items()})
            object.__setattr__(self, "given", frozenset(values))

        cls.__init__ = checked
        return cls

    return decorate


def _plain(value: Any) -> Any:
    """Return a scalar of NumPy or PyTorch as a value of Python, and any other value unchanged."""
    return value.item() if getattr(value, "shape", None) == () else value


@_settings("data")
class DataConfig:
    """Training and validation data, and the handling of invalid lines."""

    train: str | None = None
    """Training pairs: a TSV file, or two parallel files given as F.src,F.tgt; these files may be compressed with gzip (.gz). Parquet, JSONL and CSV files are memory-mapped and may be larger than memory; to read several of them, give a pattern such as 'F-*.parquet'."""
    train_links: str | None = None
    """Links between the words of the training pairs, for training.guided_alignment and, between words, data.recombined_pairs: a Pharaoh file with one line per line of data.train (i-j or i?j, source before target, counted from 0), such as the output of regard align or of another aligner."""
    dev: str | None = None
    """Validation pairs; by default, 5 % of the training sources (at most 1,000) are held out."""
    dev_seed: int | None = None
    """Random seed for the choice of the sources that are held out (default: training.seed)."""
    source_column: str = "source"
    """Name of the source column in Parquet, JSONL and CSV files."""
    target_column: str = "target"
    """Name of the target column in Parquet, JSONL and CSV files."""
    features_column: int | str | None = None
    """Column that contains the features of the source, such as V;PST: its number in a TSV file (counted from 1), or its name in other files. The features are split at semicolons, vertical bars, commas and spaces, and appended to the source as tokens."""
    max_length: int = 200
    """Maximum source or target length, in tokens; data.bad_lines determines what happens to longer pairs."""
    recombined_pairs: int = 0
    """Number of synthetic training pairs to add, each made of the beginning of one training pair and the end of another one, which are cut after a word and its translation, or a letter and its sound, that they have in common. Words (units word, bpe and unigram on both sides) are linked by hidden Markov models or data.train_links; other tokens, such as letters and sounds, must be in the same order."""
    bad_lines: Literal["stop", "skip"] = "stop"
    """How to handle lines that are empty, are too long or lack a column: stop and list them, or skip and count them."""

    def __post_init__(self) -> None:
        ranges = {
            "be at least 1": ["max_length", "features_column"],
            "be at least 0": ["dev_seed", "recombined_pairs"],
        }
        check_values(self, "data", ranges)


@_settings("text")
class TextConfig:
    """Tokenisation of the source or the target."""

    unit: Unit = "auto"
    """Tokenisation unit: char, grapheme, word (words and punctuation), whitespace (split at whitespace only), bpe or unigram; auto chooses one of these based on the data."""
    vocabulary_size: int = 8000
    """Maximum vocabulary size, including special tokens; for bpe and unigram, the size of the vocabulary to learn."""
    min_frequency: int = 1
    """Minimum number of occurrences of a token in the training pairs; rarer tokens are excluded from the vocabulary."""
    normal_form: NormalForm = "NFC"
    """Unicode normal form, applied before tokenisation."""
    lowercase: bool = False
    """Lower-case the text before tokenisation."""
    match_vocabulary: bool = False
    """Source only, with the unit word: map tokens that are not in the vocabulary to vocabulary entries where possible. Punctuation matches with or without a space before it, text in a script without spaces (Chinese) is split into vocabulary words, and other punctuation around words is left out."""

    def __post_init__(self) -> None:
        # beyond the four special tokens
        ranges = {"be at least 5": ["vocabulary_size"], "be at least 1": ["min_frequency"]}
        check_values(self, "text", ranges)


_OF_TRANSFORMERS = ("heads", "feed_forward_dim", "activation", "positions", "pre_norm")


@_settings("model")
class ModelConfig:
    """Encoder, decoder and attention."""

    kind: Literal["rnn", "transformer"] = "rnn"
    """Architecture: recurrent or Transformer."""
    encoder: Literal["rnn", "transformer"] | None = None
    """Architecture of the encoder; by default, the same as model.kind."""
    attention: AttentionName | None = None
    """Score function of the attention layers (default: additive; scaled_dot for a Transformer); with 'none', the decoder receives only the final encoder state."""
    attention_bias: bool = False
    """Recurrent decoder: add a bias inside the tanh of the additive and concat scores."""
    attention_scaled: bool = False
    """Divide the bilinear score by the square root of the query width."""
    normalizer: Literal["softmax", "sparsemax", "entmax15", "none"] = "softmax"
    """Function that normalises the scores into weights; sparsemax and entmax15 give sparse weights, and none uses the scores themselves as weights."""
    decoder: Literal["bahdanau", "luong", "posterior"] = "luong"
    """Recurrent decoder: compute attention before the recurrent step (bahdanau) or after it (luong), or predict from every source position and sum the predictions (posterior; for small target vocabularies such as letters and phones)."""
    monotonic: bool = False
    """Posterior decoder: never attend to a position before the previous one (hard monotonic attention)."""
    window: Literal["none", "local-m", "local-p"] = "none"
    """Recurrent decoder: restrict attention to a window of the source whose centre is monotonic (local-m) or predicted (local-p)."""
    window_radius: int = 10
    """Number of positions on each side of the centre of the window."""
    coverage: bool = False
    """Recurrent decoder: feed the accumulated attention to the score function (additive and concat only)."""
    copy: bool = False
    """Copy mechanism (pointer-generator), which can also copy unknown source tokens; requires source.unit and target.unit to be the same."""
    input_feeding: bool = False
    """Feed the attentional state (luong) or the posterior context (posterior) to the next step; slower to train."""
    right_to_left: bool = False
    """Predict the tokens of a target from the last to the first, whatever its script; in an ensemble, such a model rescores the outputs of the others (Sennrich et al. 2016, arXiv:1606.02891)."""
    cell: Literal["gru", "lstm"] = "lstm"
    """Recurrent cell."""
    embedding_dim: int = 128
    """Size of the embeddings; a Transformer uses encoder_dim and decoder_dim instead."""
    encoder_dim: int = 256
    """Hidden size of the encoder, per direction."""
    decoder_dim: int = 256
    """Hidden size of the decoder."""
    attention_dim: int = 256
    """Hidden size of the additive and concat scores; a Transformer uses the head size instead."""
    encoder_layers: int | None = None
    """Number of encoder layers (default: 1, or 3 for a Transformer)."""
    decoder_layers: int | None = None
    """Number of decoder layers (default: 1, or 3 for a Transformer)."""
    bidirectional: bool = True
    """Recurrent encoder: read the source in both directions."""
    heads: int = 4
    """Transformer: number of attention heads; must divide encoder_dim and decoder_dim."""
    feed_forward_dim: int = 1024
    """Transformer: hidden size of the feed-forward sublayers."""
    activation: Literal["relu", "gelu", "swiglu"] = "relu"
    """Transformer: activation function of the feed-forward sublayers."""
    positions: Literal["sinusoidal", "learned", "rotary"] = "sinusoidal"
    """Transformer: positional encoding; rotary requires dot, scaled_dot, cosine, bilinear or inner_product attention."""
    pre_norm: bool = True
    """Transformer: layer normalisation before each sublayer (true) or after it (false)."""
    dropout: float = 0.2
    """Dropout probability."""
    tie_embeddings: bool = False
    """Share the weights of the target embeddings and the output layer."""

    def __post_init__(self) -> None:
        counts = ["heads", "window_radius", "encoder_layers", "decoder_layers"]
        check_values(
            self, "model", {"be at least 1": [*DIMENSIONS, *counts], "lie in [0, 1)": ["dropout"]}
        )
        if self.attention in ALL_NAMES:  # resolve aliases
            object.__setattr__(self, "attention", find_score(self.attention).name)
        if self.resolved() is not self:
            return  # the resolved copy has been checked
        self._check_transformer()
        self._check_attention()
        self._check_posterior()

    def resolved(self) -> "ModelConfig":
        """Return a copy with the defaults that depend on the architecture."""
        transformer = self.kind == "transformer"
        values = {
            "encoder": self.kind,
            "attention": "scaled_dot" if transformer else "additive",
            "encoder_layers": 3 if (self.encoder or self.kind) == "transformer" else 1,
            "decoder_layers": 3 if transformer else 1,
        }
        missing = {name: value for name, value in values.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **missing) if missing else self

    def unused(self, given: Set[str]) -> list[str]:
        """Return the names of given settings that have no effect with the others, except for defaults."""
        full = self.resolved()
        kinds, recurrent = (full.encoder, full.kind), full.kind == "rnn"
        score = SCORES.get(full.attention or "")
        uses = {
            **dict.fromkeys(("cell", "embedding_dim"), "rnn" in kinds),
            "bidirectional": full.encoder == "rnn",
            "decoder": recurrent and score is not None,
            "attention_dim": recurrent and score is not None and score.pairwise,
            "normalizer": score is not None or "transformer" in kinds,
            "window_radius": full.window != "none",
            **dict.fromkeys(_OF_TRANSFORMERS, "transformer" in kinds),
        }
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return [
            name
            for name, used in uses.items()
            if not used and name in given and getattr(self, name) != defaults[name]
        ]

    def require_probabilities(self) -> None:
        """Raise a ConfigError unless there are attention weights that sum to 1, which links can guide."""
        if "none" in (self.attention, self.normalizer):
            raise ConfigError(
                "links guide attention weights that are probabilities: choose another model.attention "
                "or model.normalizer, or leave out data.train_links and set training.guided_alignment 0"
            )

    def _check_attention(self) -> None:
        recurrent = self.kind == "rnn" and self.attention != "none"
        if self.window != "none" and not recurrent:
            raise ConfigError(
                f"model.window {self.window} is for recurrent decoders with attention: leave it out, "
                "or choose model.kind rnn and a score"
            )
        pairwise = self.attention in SCORES and SCORES[self.attention].pairwise
        if self.coverage and not (recurrent and pairwise):
            raise ConfigError(
                "model.coverage needs a recurrent decoder with the additive or concat score, got "
                f"model.kind {self.kind} and model.attention {self.attention}"
            )
        if self.right_to_left and (self.monotonic or self.window == "local-m"):
            name = "model.monotonic" if self.monotonic else "model.window local-m"
            raise ConfigError(
                f"model.right_to_left predicts the last token first, while {name} attends to the first "
                "source tokens first: leave one of them out"
            )
        if self.attention_bias and not (recurrent and pairwise):
            raise ConfigError(
                "model.attention_bias needs a recurrent decoder with the additive or concat score, "
                f"got model.kind {self.kind} and model.attention {self.attention}: leave it out; the "
                "heads of a Transformer have biases already"
            )
        if self.attention_scaled and self.attention != "bilinear":
            raise ConfigError(
                f"model.attention_scaled applies only to model.attention bilinear, got "
                f"{self.attention}: leave it out"
            )
        if self.copy and self.attention == "none":
            raise ConfigError("model.copy uses attention weights: choose a model.attention")
        if self.copy and self.normalizer == "none":
            raise ConfigError(
                "model.copy needs weights that are probabilities: choose another model.normalizer"
            )
        if self.input_feeding and self.decoder == "bahdanau":
            raise ConfigError(
                "model.input_feeding needs model.decoder luong or posterior; the bahdanau decoder feeds "
                "its context to the cell already: leave input_feeding out or choose luong"
            )
        if self.input_feeding and not recurrent:
            raise ConfigError(
                "model.input_feeding needs a recurrent decoder with attention, got model.kind "
                f"{self.kind} and model.attention {self.attention}: leave it out, or choose "
                "model.kind rnn and a score"
            )

    def _check_posterior(self) -> None:
        if self.decoder != "posterior":
            if self.monotonic:
                raise ConfigError("model.monotonic needs model.decoder posterior: leave it out")
            return
        unsupported = {
            "model.kind transformer": self.kind == "transformer",
            "model.attention none": self.attention == "none",
            "model.normalizer none": self.normalizer == "none",
            "model.copy": self.copy,
            "model.coverage": self.coverage,
            "model.monotonic together with model.window": self.monotonic and self.window != "none",
        }
        for setting in (name for name, chosen in unsupported.items() if chosen):
            raise ConfigError(
                f"model.decoder posterior does not support {setting}: leave one of them out"
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
                "a Transformer needs attention: choose a score for model.attention, or "
                "model.kind rnn"
            )


@_settings("training")
class TrainingConfig:
    """Batches, optimiser, schedule, validation and early stopping."""

    seed: int = 1
    """Random seed for the initial weights, the batch order and dropout."""
    batch_tokens: int = 4096
    """Maximum batch size, in source plus target tokens, including padding; several processes divide each batch among them."""
    gradient_accumulation_steps: int = 1
    """Number of batches per update; their gradients are weighted by the number of target tokens."""
    max_updates: int = 20000
    """Maximum number of updates."""
    max_minutes: float | None = None
    """Time budget, in minutes (default: none, or chosen from the pairs); the learning rate reaches 0 at its end."""
    validate_every: int = 500
    """Number of updates between validations."""
    patience: int = 10
    """Early stopping: number of validations without improvement before the cooldown begins."""
    metric: MetricName = "auto"
    """Metric that selects the best checkpoint; per counts edits of words or phones, cer of characters. auto selects bleu for word, bpe and unigram targets (chrf if most of them have fewer than four words, because BLEU would be 0), and exact_match for others. Ties are broken by the lower dev loss."""
    optimizer: Literal["adam", "adamw", "muon"] = "adam"
    """Optimiser; muon (Jordan et al. 2024) orthogonalises the updates of the weight matrices of hidden layers, and updates other parameters as adamw does."""
    learning_rate: float = 1e-3
    """Peak learning rate."""
    weight_decay: float = 0.0
    """Weight decay coefficient (L2 penalty for adam, decoupled for adamw and muon)."""
    schedule: Literal["constant", "plateau", "inverse_sqrt"] = "plateau"
    """Learning rate after the warm-up: constant, halved when the validation metric stops improving (plateau), or proportional to 1/sqrt(update)."""
    plateau_patience: int = 3
    """Number of validations without improvement that the plateau schedule tolerates; the next one halves the learning rate."""
    warmup: int = 200
    """Number of updates over which the learning rate rises linearly from 0."""
    cooldown: float = 0.2
    """Fraction of the run, at its end, over which the learning rate decays linearly to 0."""
    label_smoothing: float = 0.1
    """Label smoothing: probability mass that is distributed uniformly over the vocabulary."""
    coverage_loss: float = 0.0
    """Weight of the coverage loss (See et al. 2017); requires model.coverage."""
    guided_alignment: float | None = None
    """Weight of the loss between the attention and links (Garg et al. 2019); default: 0.05 with data.train_links, otherwise 0, which is none. Without data.train_links, the links are those of hidden Markov models that are trained on the pairs. A Transformer is guided in the last layer but one, which is then displayed."""
    clip_norm: float = 1.0
    """Gradient-norm clipping threshold."""
    precision: Precision = "float32"
    """Precision of matrix products during training; bfloat16 uses autocast, and float32 replaces it on devices that compute it slowly, such as CPUs without AVX-512."""
    log_with: Tracker = "none"
    """Experiment tracker that receives the metrics of every validation and the settings; its package must be installed. Trackers that write files use the subfolder 'tracking' of the model folder."""

    def __post_init__(self) -> None:
        ranges = {
            "be at least 1": [
                *("batch_tokens", "gradient_accumulation_steps", "max_updates"),
                *("validate_every", "patience"),
            ],
            "be at least 0": [
                *("warmup", "weight_decay", "plateau_patience"),
                *("coverage_loss", "guided_alignment"),
            ],
            "be above 0": ["learning_rate", "clip_norm", "max_minutes"],
            "lie in [0, 1)": ["cooldown", "label_smoothing"],
            "lie in [0, 2^63)": ["seed"],
        }
        check_values(self, "training", ranges)

    def is_guided(self, has_links: bool) -> bool:
        """Return whether links guide the attention; `has_links` tells whether links are given."""
        return has_links if self.guided_alignment is None else self.guided_alignment > 0


@_settings("")
class Config:
    """All settings of a training run."""

    out: str | None = None
    """Output folder for the model."""
    device: Device = "auto"
    """Device to compute on; auto chooses cuda, mps or cpu."""
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    source: TextConfig = dataclasses.field(default_factory=TextConfig)
    target: TextConfig = dataclasses.field(default_factory=TextConfig)
    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    training: TrainingConfig = dataclasses.field(default_factory=TrainingConfig)

    def __post_init__(self) -> None:
        check_values(self, "", {})
        if self.target.match_vocabulary:
            raise ConfigError(
                "target.match_vocabulary cannot be true, because targets are used as they are written; "
                "set source.match_vocabulary"
            )

    def check_groups(self) -> None:
        """Raise a ConfigError if settings of different groups are incompatible.

        A resumed run calls this only after it has merged the given settings with the stored ones.
        """
        units = {self.source.unit, self.target.unit}
        if self.model.copy and len(units) > 1 and "auto" not in units:
            raise ConfigError(
                f"model.copy needs the same unit of text on both sides, got {self.source.unit} and "
                f"{self.target.unit}: set source.unit and target.unit"
            )
        if self.training.coverage_loss > 0 and not self.model.coverage:
            raise ConfigError("training.coverage_loss needs model.coverage true")
        if self.training.coverage_loss > 0 and self.model.normalizer == "none":
            raise ConfigError(
                "training.coverage_loss compares attention weights that are probabilities: choose another "
                "model.normalizer, or leave it out"
            )
        if self.training.is_guided(self.data.train_links is not None):
            self.model.require_probabilities()


GROUPS: dict[str, Any] = {
    field.name: field.type
    for field in dataclasses.fields(Config)
    if dataclasses.is_dataclass(field.type)
}
"""Groups of settings and their dataclasses."""


def _nearest_in_groups(name: str) -> str:
    """Return a hint that suggests the setting of a group that an unknown top-level name resembles."""
    fields = {
        field.name: group for group, cls in GROUPS.items() for field in dataclasses.fields(cls)
    }
    matches = difflib.get_close_matches(name, fields, n=1)
    return "".join(f"; did you mean {match} in {fields[match]}={{…}}?" for match in matches)


def require_groups(values: Mapping[str, Any]) -> None:
    """Raise a ConfigError unless every group of settings is a mapping."""
    for group in GROUPS:
        if not isinstance(values.get(group, {}), Mapping):
            raise ConfigError(f"{group} takes settings by name, got {values[group]!r}")


def from_dict(values: Mapping[str, Any]) -> Config:
    """Build a Config from nested dictionaries, the inverse of `dataclasses.asdict`.

    Raises:
        ConfigError: a key is unknown, or a value is invalid.
    """
    fields = {
        name: _build(GROUPS[name], value, name) if name in GROUPS else value
        for name, value in values.items()
    }
    return _build(Config, fields, "")


def _build(cls: type, values: Any, group: str) -> Any:
    if not isinstance(values, Mapping):
        raise ConfigError(f"{group or 'config'} takes settings by name, got {values!r}")
    try:
        return cls(**values)
    except ConfigError as error:
        # one dataclass serves the source and the target
        raise ConfigError(re.sub(r"^text\.", f"{group}.", str(error))) from None

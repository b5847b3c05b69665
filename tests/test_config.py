import ast
import dataclasses
import inspect
import json
from typing import Any

import numpy as np
import pytest
import torch

from regard import config
from regard.config import Config, DataConfig, ModelConfig, TextConfig, TrainingConfig
from regard.errors import ConfigError

CLASSES = [Config, DataConfig, ModelConfig, TextConfig, TrainingConfig]
CHANGED = Config(
    out="m",
    data=DataConfig(train="t.tsv", bad_lines="skip"),
    source=TextConfig(unit="char", lowercase=True),
    target=TextConfig(unit="bpe", vocabulary_size=300),
    model=ModelConfig(attention="none", dropout=0.0, bidirectional=False),
    training=TrainingConfig(max_minutes=2.5, schedule="constant", learning_rate=1.0),
)


@pytest.mark.parametrize("settings", [Config(), CHANGED])
def test_settings_round_trip_through_json(settings: Config) -> None:
    assert config.from_dict(json.loads(json.dumps(dataclasses.asdict(settings)))) == settings


def test_scalars_of_numpy_and_pytorch_are_numbers() -> None:
    given = TrainingConfig(
        max_updates=np.int64(5),  # pyright: ignore[reportArgumentType]
        learning_rate=torch.tensor(0.5),  # pyright: ignore[reportArgumentType]
        metric=np.str_("loss"),  # pyright: ignore[reportArgumentType]
    )
    assert given == TrainingConfig(max_updates=5, learning_rate=0.5, metric="loss")
    assert config.from_dict({"model": {"copy": np.bool_(True)}}).model.copy is True
    assert config.from_dict(json.loads(json.dumps({"training": dataclasses.asdict(given)})))
    with pytest.raises(ConfigError, match=r"max_updates takes a whole number, got 0\.5"):
        TrainingConfig(max_updates=np.float64(0.5))  # pyright: ignore[reportArgumentType]


def test_missing_settings_have_defaults() -> None:
    assert config.from_dict({}) == Config()
    assert config.from_dict({"model": {"cell": "gru"}}) == Config(model=ModelConfig(cell="gru"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"surprise": {}}, "unknown setting surprise; known: data, device, model"),
        ({"modle": {}}, r"unknown setting modle; did you mean model\?"),
        (
            {"model": {"atention": "dot"}},
            r"unknown setting model\.atention; did you mean attention\?",
        ),
        ({"model": 3}, "model takes settings by name, got 3"),
    ],
)
def test_unknown_keys_raise(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.from_dict(values)


@pytest.mark.parametrize(
    ("group", "name", "value", "message"),
    [
        ("data", "max_length", 0, "must be at least 1, got 0"),
        ("data", "bad_lines", "stpo", "takes one of stop, skip, got 'stpo'"),
        ("source", "vocabulary_size", 4, "must be at least 5"),
        ("target", "min_frequency", -1, "must be at least 1"),
        (
            "model",
            "attention",
            "aditive",
            r"takes one of none, dot, .*, got 'aditive'; did you mean additive\?",
        ),
        ("model", "cell", None, "takes one of gru, lstm, got None"),
        ("model", "encoder_dim", 0, "must be at least 1"),
        ("model", "embedding_dim", 2.5, "takes a whole number, got 2.5"),
        ("model", "decoder_layers", True, "takes a whole number or nothing, got True"),
        ("model", "bidirectional", 1, "takes true or false, got 1"),
        ("model", "dropout", 1, r"must lie in \[0, 1\), got 1"),
        ("model", "dropout", -0.1, r"must lie in \[0, 1\), got -0.1"),
        ("training", "schedule", "plateu", "takes one of constant, plateau, inverse_sqrt"),
        ("training", "max_updates", "9", "takes a whole number, got '9'"),
        ("training", "max_minutes", 0, "must be above 0, got 0"),
        ("training", "max_minutes", "soon", "takes a number or nothing, got 'soon'"),
        ("training", "learning_rate", float("nan"), "must be above 0, got nan"),
        ("training", "clip_norm", -1.0, "must be above 0"),
        ("training", "warmup", -1, "must be at least 0"),
        ("training", "cooldown", 1.0, r"must lie in \[0, 1\)"),
    ],
)
def test_invalid_values_raise(
    group: str, name: str, value: Any, message: str, unchecked: None
) -> None:
    with pytest.raises(ConfigError, match=rf"\b{name} {message}"):
        config.from_dict({group: {name: value}})


def test_top_level_values_are_checked(unchecked: None) -> None:
    with pytest.raises(ConfigError, match=r"device takes one of auto, cpu, cuda, mps, got 'gpu'$"):
        Config(device="gpu")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"model takes a ModelConfig, got \{\}"):
        Config(model={})  # type: ignore[arg-type]


def test_input_feeding_requires_luong() -> None:
    with pytest.raises(ConfigError, match=r"model\.input_feeding needs model\.decoder luong"):
        ModelConfig(decoder="bahdanau", input_feeding=True)
    for settings in ({"kind": "transformer"}, {"attention": "none"}):
        with pytest.raises(ConfigError, match="needs a recurrent decoder with attention, got"):
            ModelConfig(**settings, input_feeding=True)


@pytest.mark.parametrize("cls", CLASSES)
def test_settings_are_frozen_and_keyword_only(cls: type[Any]) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(cls(), dataclasses.fields(cls)[0].name, None)
    with pytest.raises(TypeError, match="positional"):
        cls("m")


def test_every_setting_has_help() -> None:
    groups = {f.name for f in dataclasses.fields(Config) if f.default is dataclasses.MISSING}
    for node in ast.walk(ast.parse(inspect.getsource(config))):
        if not isinstance(node, ast.ClassDef):
            continue
        for field, after in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign) and ast.unparse(field.target) not in groups:
                helped = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                assert helped, f"{node.name}.{ast.unparse(field.target)}"


def test_resolved_fills_defaults_of_the_architecture() -> None:
    recurrent, transformer = ModelConfig().resolved(), ModelConfig(kind="transformer").resolved()
    assert (recurrent.encoder, recurrent.attention, recurrent.encoder_layers) == (
        "rnn",
        "additive",
        1,
    )
    assert (transformer.encoder, transformer.attention) == ("transformer", "scaled_dot")
    assert (transformer.encoder_layers, transformer.decoder_layers) == (3, 3)
    mixed = ModelConfig(encoder="transformer").resolved()
    assert (mixed.attention, mixed.encoder_layers, mixed.decoder_layers) == ("additive", 3, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder_dim": 30}, "model.encoder_dim must be a multiple of model.heads, got 30 and 4"),
        (
            {"attention": "additive", "positions": "rotary"},
            "an inner product, which additive is not",
        ),
        (
            {"encoder_dim": 12, "decoder_dim": 12, "positions": "rotary"},
            "heads of even width, got 3",
        ),
        ({"attention": "none"}, "a Transformer needs attention"),
    ],
)
def test_invalid_transformer_settings_raise(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig(kind="transformer", **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attention": "none", "copy": True}, "model.copy uses attention weights"),
        ({"normalizer": "none", "copy": True}, "needs weights that are probabilities"),
        ({"attention": "none", "window": "local-m"}, "is for recurrent decoders with attention"),
        (
            {"kind": "transformer", "attention": "additive", "attention_bias": True},
            "heads of a Transformer have biases",
        ),
        ({"attention": "dot", "attention_bias": True}, r"additive or concat score, got .* dot"),
        ({"attention_scaled": True}, "applies only to model.attention bilinear, got additive"),
        ({"kind": "transformer", "window": "local-p"}, "is for recurrent decoders with attention"),
        ({"attention": "dot", "coverage": True}, "got model.kind rnn and model.attention dot"),
        ({"kind": "transformer", "attention": "additive", "coverage": True}, "kind transformer"),
    ],
)
def test_incompatible_attention_settings_raise(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelConfig(**settings)


def test_an_unknown_argument_gets_the_nearest_setting() -> None:
    with pytest.raises(ConfigError, match=r"training\.max_minuts; did you mean max_minutes\?"):
        TrainingConfig(max_minuts=1)  # type: ignore[call-arg]
    with pytest.raises(
        ConfigError,
        match=r"unknown setting max_minuts; did you mean max_minutes in training=\{…\}\?",
    ):
        Config(max_minuts=1)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=r"setting attention; did you mean attention in model="):
        Config(attention="dot")  # type: ignore[call-arg]
    assert str(inspect.signature(TextConfig)).startswith("(*, unit: ")


def test_only_sources_are_matched_to_the_vocabulary() -> None:
    text = TextConfig(match_vocabulary=True)
    assert Config(source=text).source.match_vocabulary
    with pytest.raises(ConfigError, match=r"set source\.match_vocabulary"):
        Config(target=text)


@pytest.mark.parametrize(
    ("alias", "name"), [("general", "bilinear"), ("bahdanau", "additive"), ("mlp", "additive")]
)
def test_an_alias_of_a_score_is_a_setting(alias: str, name: str) -> None:
    assert ModelConfig(attention=alias).attention == name
    assert config.from_dict({"model": {"attention": alias}}).model.attention == name


@pytest.mark.parametrize(
    ("settings", "unused"),
    [
        ({"kind": "transformer", "cell": "gru", "decoder": "bahdanau"}, {"cell", "decoder"}),
        ({"kind": "transformer", "attention_dim": 64, "cell": "lstm"}, {"attention_dim"}),
        ({"kind": "transformer", "encoder": "rnn", "cell": "gru", "heads": 8}, set()),
        ({"encoder": "transformer", "bidirectional": False, "cell": "gru"}, {"bidirectional"}),
        ({"heads": 8, "window_radius": 3}, {"heads", "window_radius"}),
        ({"window": "local-m", "window_radius": 3}, set()),
        ({"attention": "none", "normalizer": "sparsemax"}, {"normalizer"}),
        ({"attention": "bilinear", "attention_dim": 64}, {"attention_dim"}),
        ({"attention": "concat", "attention_dim": 64, "decoder": "posterior"}, set()),
    ],
)
def test_settings_without_effect_are_named(settings: dict[str, Any], unused: set[str]) -> None:
    assert set(ModelConfig(**settings).unused(settings.keys())) == unused

"""Small tasks that must be learned: turning sequences round, where a fixed context fails."""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import regard
from regard.cells import CELLS
from regard.config import Config, ModelConfig, TrainingConfig
from regard.score_registry import SCORES

DECODERS: list[dict[str, object]] = [
    {"decoder": "bahdanau"},
    {"decoder": "luong"},
    {"decoder": "luong", "input_feeding": True},
]


@pytest.fixture(autouse=True)
def light_steps(unchecked: None) -> Iterator[None]:
    """Steps this small wait for a second thread, and for checks of shapes, longer than they take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Sequences of 10 to 14 letters out of 12, and the same turned round."""
    rng = random.Random(seed)
    sources = [
        [rng.choice("abcdefghijkl") for _ in range(rng.randint(10, 14))] for _ in range(count)
    ]
    return [(" ".join(letters), " ".join(reversed(letters))) for letters in sources]


def _accuracy(out: Path, **model: object) -> float:
    """Percent of unseen sequences turned round, after one and the same budget."""
    config = Config(
        out=str(out),
        device="cpu",
        model=ModelConfig(
            embedding_dim=32,
            encoder_dim=32,
            decoder_dim=32,
            attention_dim=32,
            feed_forward_dim=64,
            dropout=0.0,
            **model,
        ),
        training=TrainingConfig(
            batch_tokens=1600,
            max_updates=1000,
            validate_every=500,
            learning_rate=5e-3,
            schedule="constant",
            warmup=100,
            cooldown=0.4,
            label_smoothing=0.0,
        ),
    )
    translator = regard.train(config, _pairs(8000, seed=1), _pairs(100, seed=2))
    return regard.evaluate(translator, _pairs(500, seed=3), beam_size=1).scores.exact_match.value


def _names(settings: dict[str, object]) -> str:
    return "-".join(map(str, settings.values()))


def test_a_fixed_context_is_a_bottleneck(tmp_path: Path) -> None:
    assert _accuracy(tmp_path / "model", attention="none", cell="lstm") < 60


@pytest.mark.parametrize(("decoder", "cell"), [("bahdanau", "gru"), ("luong", "lstm")])
def test_attention_turns_sequences_round(tmp_path: Path, decoder: str, cell: str) -> None:
    assert _accuracy(tmp_path / "model", attention="additive", decoder=decoder, cell=cell) >= 99


def test_a_transformer_turns_sequences_round(tmp_path: Path) -> None:
    assert _accuracy(tmp_path / "model", kind="transformer") >= 99


@pytest.mark.soak
@pytest.mark.parametrize("attention", SCORES)
def test_a_transformer_with_every_score_turns_sequences_round(
    tmp_path: Path, attention: str
) -> None:
    assert _accuracy(tmp_path / "model", kind="transformer", attention=attention) >= 99


@pytest.mark.soak
@pytest.mark.parametrize("normalizer", ["sparsemax", "entmax15"])
@pytest.mark.parametrize("kind", ["rnn", "transformer"])
def test_sparse_weights_turn_sequences_round(tmp_path: Path, kind: str, normalizer: str) -> None:
    assert _accuracy(tmp_path / "model", kind=kind, normalizer=normalizer) >= 99


@pytest.mark.soak
@pytest.mark.parametrize(
    ("attention", "decoder", "cell"),
    list(itertools.product(SCORES, DECODERS, CELLS)),
    ids=lambda value: _names(value) if isinstance(value, dict) else value,
)
def test_every_score_turns_sequences_round(
    tmp_path: Path, attention: str, decoder: dict[str, object], cell: str
) -> None:
    assert _accuracy(tmp_path / "model", attention=attention, cell=cell, **decoder) >= 99

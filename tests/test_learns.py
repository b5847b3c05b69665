"""Models must learn to reverse sequences, at which a fixed context fails.

`make slow` trains one model per decoder, encoder and cell on short sequences; `make soak` trains
every score with every decoder and cell on long ones.
"""

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import regard
from regard.cells import CELLS
from regard.config import Config, ModelConfig, TrainingConfig
from regard.score_registry import SCORES


class Task(NamedTuple):
    """Reverse sequences of letters, after a given number of updates."""

    letters: str
    min_length: int
    max_length: int
    batch_tokens: int
    updates: int


LONG = Task("abcdefghijkl", 10, 14, batch_tokens=1600, updates=1000)
SHORT = Task("abcdefgh", 6, 9, batch_tokens=1000, updates=400)

DECODERS: list[dict[str, object]] = [
    {"decoder": "bahdanau"},
    {"decoder": "luong"},
    {"decoder": "luong", "input_feeding": True},
    {"decoder": "posterior"},
    {"decoder": "posterior", "input_feeding": True},
]


@pytest.fixture(autouse=True)
def single_thread(unchecked: None) -> Iterator[None]:
    """Train on one thread and without checks of shapes, which would take longer than the steps."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _pairs(task: Task, count: int, seed: int) -> list[tuple[str, str]]:
    rng = random.Random(seed)
    sources = [
        [rng.choice(task.letters) for _ in range(rng.randint(task.min_length, task.max_length))]
        for _ in range(count)
    ]
    return [(" ".join(letters), " ".join(reversed(letters))) for letters in sources]


def _accuracy(out: Path, task: Task = LONG, **model: object) -> float:
    """Train a small model; return the percentage of unseen sequences that it reverses."""
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
            batch_tokens=task.batch_tokens,
            max_updates=task.updates,
            validate_every=task.updates // 2,
            learning_rate=5e-3,
            schedule="constant",
            warmup=100,
            cooldown=0.4,
            label_smoothing=0.0,
        ),
    )
    translator = regard.train(config, _pairs(task, 8000, seed=1), _pairs(task, 100, seed=2))
    report = regard.evaluate(translator, _pairs(task, 500, seed=3), beam_size=1)
    return report.metrics.exact_match.value


def _names(settings: dict[str, object]) -> str:
    return "-".join(map(str, settings.values()))


@pytest.mark.slow
@pytest.mark.parametrize("task", [SHORT, pytest.param(LONG, marks=pytest.mark.soak)])
def test_a_fixed_context_is_a_bottleneck(tmp_path: Path, task: Task) -> None:
    assert _accuracy(tmp_path / "model", task, attention="none", cell="lstm") < 60


@pytest.mark.slow
@pytest.mark.parametrize(("decoder", "cell"), [("bahdanau", "gru"), ("luong", "lstm")])
def test_attention_reverses_sequences(tmp_path: Path, decoder: str, cell: str) -> None:
    model = {"attention": "additive", "decoder": decoder, "cell": cell}
    assert _accuracy(tmp_path / "model", SHORT, **model) >= 99


@pytest.mark.slow
def test_a_transformer_reverses_sequences(tmp_path: Path) -> None:
    model = {"kind": "transformer", "encoder_layers": 1, "decoder_layers": 1}
    assert _accuracy(tmp_path / "model", SHORT._replace(updates=600), **model) >= 99


@pytest.mark.soak
@pytest.mark.parametrize("attention", SCORES)
def test_a_transformer_with_every_score_reverses_sequences(tmp_path: Path, attention: str) -> None:
    assert _accuracy(tmp_path / "model", kind="transformer", attention=attention) >= 99


@pytest.mark.soak
@pytest.mark.parametrize("normalizer", ["sparsemax", "entmax15"])
@pytest.mark.parametrize("kind", ["rnn", "transformer"])
def test_sparse_weights_reverse_sequences(tmp_path: Path, kind: str, normalizer: str) -> None:
    assert _accuracy(tmp_path / "model", kind=kind, normalizer=normalizer) >= 99


@pytest.mark.soak
@pytest.mark.parametrize(
    ("attention", "decoder", "cell"),
    list(itertools.product(SCORES, DECODERS, CELLS)),
    ids=lambda value: _names(value) if isinstance(value, dict) else value,
)
def test_every_score_reverses_sequences(
    tmp_path: Path, attention: str, decoder: dict[str, object], cell: str
) -> None:
    assert _accuracy(tmp_path / "model", attention=attention, cell=cell, **decoder) >= 99

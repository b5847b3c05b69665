"""Small models trained to reverse a few letters, for tests of code that uses models."""

import random
from pathlib import Path

import regard
from regard.config import DataConfig, ModelConfig, TextConfig, TrainingConfig


def make_folder(out: Path, **model: object) -> Path:
    """Train for a few seconds: attention is then neither uniform nor one-hot."""
    rng = random.Random(3)
    words = [rng.choices("abcd", k=rng.choice([2, 3, 4])) for _ in range(300)]
    pairs = [(" ".join(word), " ".join(word[::-1])) for word in words]
    widths = {name: 16 for name in ("embedding_dim", "encoder_dim", "decoder_dim", "attention_dim")}
    config = regard.Config(
        out=str(out),
        device="cpu",
        data=DataConfig(),
        source=TextConfig(unit="whitespace"),
        target=TextConfig(unit="whitespace"),
        model=ModelConfig(
            **{**widths, "heads": 2, "feed_forward_dim": 32, "dropout": 0.0, **model}
        ),
        training=TrainingConfig(
            batch_tokens=400, max_updates=150, validate_every=150, learning_rate=0.01
        ),
    )
    regard.train(config, pairs=pairs, dev=[("a b c", "c b a")])
    return out

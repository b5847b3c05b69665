"""Throughput of training recurrent models on words and phones.

    python -P benchmarks/training_speed.py cmudict/train.tsv.gz [--updates 150] [--threads 2]

The model has a bidirectional LSTM encoder with 256 units per direction, an LSTM decoder with 256 units
and embeddings with 128 components; a batch has about 256 words. After a warm-up, the words (pairs) and
target tokens per second of the complete loop are printed: reading batches, forward, backward, gradient
clipping, optimizer.
"""

import argparse
import json
import os
import tempfile
from pathlib import Path

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import torch

import regard

MODELS = [
    {"decoder": "bahdanau"},
    {"decoder": "luong"},
    {"decoder": "luong", "input_feeding": True},
    {"attention": "none"},
]


def measure(train: str, model: dict[str, object], precision: str, updates: int) -> dict[str, float]:
    """Train a model and return the last entry of metrics.jsonl, which covers the updates after the warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        config = regard.Config(
            out=f"{folder}/model",
            device="cpu",
            data=regard.DataConfig(train=train),
            model=regard.ModelConfig(
                embedding_dim=128, encoder_dim=256, decoder_dim=256, attention_dim=256, **model
            ),
            training=regard.TrainingConfig(
                batch_tokens=4300,
                max_updates=2 * updates,
                validate_every=updates,
                metric="loss",
                precision=precision,
            ),
        )
        regard.train(config)
        lines = (Path(folder) / "model" / "metrics.jsonl").read_text().splitlines()
    return json.loads(lines[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("train")
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(f"torch {torch.__version__}, {arguments.threads} threads, batches of about 256 words")
    print("| model | precision | words/s | target tokens/s |\n|---|---|---|---|")
    for model in MODELS:
        for precision in ("float32", "bfloat16"):
            entry = measure(arguments.train, model, precision, arguments.updates)
            name = " ".join(f"{key} {value}" for key, value in model.items())
            words, tokens = entry["pairs_per_second"], entry["target_tokens_per_second"]
            print(f"| {name} | {precision} | {words:,.0f} | {tokens:,.0f} |", flush=True)


if __name__ == "__main__":
    main()

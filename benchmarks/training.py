"""Speed of training on words and phones, beside another toolkit and the limit of the machine.

    python -P benchmarks/training.py cmudict/train.tsv.gz [--rounds 3] [--updates 60] [--threads 2]
        [--yoyodyne ENVIRONMENT/bin/python]

The recurrent models have a bidirectional LSTM encoder with 256 units per direction, a decoder with 256
units and embeddings with 128 components; the Transformers have 3 + 3 layers of width 256. A batch has
about 256 words. In every round each model is trained in turn, and after a warm-up the words (pairs) and
target tokens per second of the complete loop are measured: batches, forward, backward, clipping,
optimizer. bfloat16 is left out on a CPU that computes it slowly. The medians of all rounds are printed.
"Share of peak" divides the floating-point operations of the matrix products by the largest throughput of
a matrix product in the same precision, measured in the same run. yoyodyne runs in an environment of its own; its attention is additive, computed before the cell.
"""

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import torch

import regard
from regard.adaptation import has_fast_bfloat16
from regard.files import read_lines

RECURRENT = {"embedding_dim": 128, "encoder_dim": 256, "decoder_dim": 256, "attention_dim": 256}
TRANSFORMER = {"kind": "transformer", "embedding_dim": 256, "encoder_dim": 256, "decoder_dim": 256}
MODELS: dict[str, dict[str, object]] = {
    "Bahdanau": {**RECURRENT, "decoder": "bahdanau"},
    "Luong": {**RECURRENT, "decoder": "luong"},
    "Luong, input feeding": {**RECURRENT, "decoder": "luong", "input_feeding": True},
    "fixed context": {**RECURRENT, "attention": "none"},
    "Transformer": {**TRANSFORMER, "encoder_layers": 3, "decoder_layers": 3},
}
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOKENS = 4300
"""Tokens of a batch, which is about 256 words."""

YOYODYNE = """
import sys, time
import lightning, yoyodyne.data, yoyodyne.models
from yoyodyne.models.modules import LSTMEncoder
folder, warm_up, updates, threads = sys.argv[1], *map(int, sys.argv[2:])
import torch
torch.set_num_threads(threads)
class Clock(lightning.Callback):
    def on_train_batch_end(self, trainer, model, outputs, batch, index):
        if index + 1 == warm_up:
            self.start, self.words = time.perf_counter(), 0
        elif index + 1 > warm_up:
            self.words += len(batch)
            self.rate = self.words / (time.perf_counter() - self.start)
data = yoyodyne.data.DataModule(
    model_dir=folder, train=folder + "/train.tsv", val=folder + "/dev.tsv", target_sep=" ", batch_size=256
)
encoder = LSTMEncoder(bidirectional=True, dropout=0.2, embedding_size=128, hidden_size=256)
options = dict(decoder_hidden_size=256, decoder_dropout=0.2, embedding_size=128)
options |= dict(vocab_size=data.index.vocab_size, target_vocab_size=data.index.target_vocab_size)
model = yoyodyne.models.SoftAttentionLSTMModel(source_encoder=encoder, **options)
clock = Clock()
trainer = lightning.Trainer(
    accelerator="cpu", max_steps=warm_up + updates, gradient_clip_val=3, logger=False, callbacks=[clock],
    enable_progress_bar=False, enable_checkpointing=False, num_sanity_val_steps=0, limit_val_batches=0,
)
trainer.fit(model, data)
print(clock.rate)
"""
"""Trains yoyodyne's model of the same size and prints its words per second."""


def measure(
    train: str, model: dict[str, object], precision: str, updates: int
) -> tuple[float, float]:
    """Return the words and target tokens per second of the updates after the warm-up."""
    with tempfile.TemporaryDirectory() as folder:
        config = regard.Config(
            out=f"{folder}/model",
            device="cpu",
            data=regard.DataConfig(train=train),
            model=regard.ModelConfig(**model, dropout=0.2),  # pyright: ignore[reportArgumentType]
            training=regard.TrainingConfig(
                batch_tokens=TOKENS,
                max_updates=2 * updates,
                validate_every=updates,
                metric="loss",
                precision=precision,  # pyright: ignore[reportArgumentType]
            ),
        )
        regard.train(config)
        # the last entry covers the updates after the first validation
        last = (Path(folder) / "model" / "metrics.jsonl").read_text().splitlines()[-1]
    entry = json.loads(last)
    return entry["pairs_per_second"], entry["target_tokens_per_second"]


def measure_yoyodyne(python: str, train: str, updates: int, threads: int) -> float:
    """Return the words per second of yoyodyne."""
    with tempfile.TemporaryDirectory() as folder:
        lines = [*read_lines(train)]
        text = "".join(f"{line}\n" for line in lines)
        Path(folder, "train.tsv").write_text(text, encoding="utf-8")
        Path(folder, "dev.tsv").write_text(text[: text.index("\n") + 1], encoding="utf-8")
        command = [python, "-c", YOYODYNE, folder, *map(str, (updates, updates, threads))]
        result = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(result.stdout.split()[-1])


def matrix_product_peak(dtype: torch.dtype) -> float:
    """Return the floating-point operations per second of the fastest of several matrix products."""
    best = 0.0
    for rows in (1024, 2048, 4096):
        a, b = torch.randn(rows, 1024, dtype=dtype), torch.randn(1024, 1024, dtype=dtype)
        for _ in range(30):
            start = time.perf_counter()
            a @ b
            best = max(best, 2 * rows * 1024**2 / (time.perf_counter() - start))
    return best


def operations_per_word(name: str, source: float, steps: float, targets: int) -> float:
    """Return the floating-point operations of the matrix products for one word, forward and backward.

    Args:
        name: the model; Transformers are not counted.
        source: mean number of source tokens, EOS included.
        steps: mean number of target tokens, EOS included.
        targets: size of the target vocabulary.
    """
    dim, states, gates = RECURRENT["decoder_dim"], 2 * RECURRENT["encoder_dim"], 4
    embedding, attention = RECURRENT["embedding_dim"], RECURRENT["attention_dim"]
    extra = {"Bahdanau": states, "Luong": 0, "Luong, input feeding": dim, "fixed context": states}
    if name not in extra:
        return 0
    encoder = 2 * gates * RECURRENT["encoder_dim"] * (embedding + RECURRENT["encoder_dim"])
    step = gates * dim * (embedding + dim + extra[name]) + dim * (states + dim) + dim * targets
    if name != "fixed context":
        encoder += states * attention
        step += dim * attention
    return 3 * 2 * (source * encoder + steps * step)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("train", help="tab-separated words and phones")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--yoyodyne", metavar="PYTHON", help="interpreter that has yoyodyne")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    pairs = [line.split("\t") for line in read_lines(args.train)]
    source = statistics.mean(len(word) for word, *_ in pairs) + 1
    steps = statistics.mean(len(phones.split()) for _, phones, *_ in pairs) + 1
    targets = len({phone for _, phones, *_ in pairs for phone in phones.split()}) + 4
    fast = has_fast_bfloat16(regard.Config(device="cpu"))
    precisions = {name: dtype for name, dtype in PRECISIONS.items() if fast or name == "float32"}
    peaks = {name: matrix_product_peak(dtype) for name, dtype in precisions.items()}
    rates: dict[tuple[str, str], list[tuple[float, float]]] = {}
    peer: list[float] = []
    for _ in range(args.rounds):
        if args.yoyodyne:
            peer.append(measure_yoyodyne(args.yoyodyne, args.train, args.updates, args.threads))
        for name, model in MODELS.items():
            for precision in precisions:
                rate = measure(args.train, model, precision, args.updates)
                rates.setdefault((name, precision), []).append(rate)
    print(f"torch {torch.__version__}, {args.threads} threads, {args.rounds} rounds")
    for precision, peak in peaks.items():
        print(f"matrix products in {precision}: {peak / 1e9:,.0f} GFLOP/s")
    yoyodyne = statistics.median(peer) if peer else None
    if yoyodyne:
        print(f"yoyodyne: {yoyodyne:,.0f} words/s")
    print(
        "\n| model | precision | words/s | target tokens/s | multiple of yoyodyne | share of peak |"
    )
    print("|---|---|---|---|---|---|")
    for (name, precision), of_key in rates.items():
        words, tokens = (statistics.median(column) for column in zip(*of_key, strict=True))
        multiple = f"{words / yoyodyne:.1f}x" if yoyodyne else ""
        share = words * operations_per_word(name, source, steps, targets) / peaks[precision]
        shown = f"{share:.0%}" if share else ""
        print(f"| {name} | {precision} | {words:,.0f} | {tokens:,.0f} | {multiple} | {shown} |")


if __name__ == "__main__":
    main()

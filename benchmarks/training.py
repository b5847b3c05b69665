"""Speed of training on words and phones, beside another toolkit and the limit of the machine.

    python -P benchmarks/training.py cmudict/train.tsv.gz [--rounds 3] [--updates 60] [--threads 2]
        [--yoyodyne ENVIRONMENT/bin/python] [--joeynmt ENVIRONMENT/bin/python]

The recurrent models have a bidirectional LSTM encoder with 256 units per direction, a decoder with 256
units and embeddings with 128 components; the Transformers have 3 + 3 layers of width 256. A batch has
about 256 words. In every round each model is trained in turn, and after a warm-up the words (pairs) and
target tokens per second of the complete loop are measured: batches, forward, backward, clipping,
optimizer. bfloat16 is left out on a CPU that computes it slowly. The medians of all rounds are printed.
"Share of peak" divides the floating-point operations of the matrix products by the largest throughput of
a matrix product in the same precision, measured in the same run. The other toolkits run in environments of
their own, in float32, with a bidirectional LSTM and additive attention of the same size; JoeyNMT's has input
feeding, and is timed as a Transformer, too. Their batches are 256 random words. yoyodyne runs its own loop,
JoeyNMT's models, batches and loss are called in a plain one.
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
from regard.lines import read_lines

RECURRENT = {"embedding_dim": 128, "encoder_dim": 256, "decoder_dim": 256, "attention_dim": 256}
TRANSFORMER = {"kind": "transformer", "embedding_dim": 256, "encoder_dim": 256, "decoder_dim": 256}
MODELS: dict[str, dict[str, object]] = {
    "Bahdanau": {**RECURRENT, "decoder": "bahdanau"},
    "Bahdanau, coverage": {**RECURRENT, "decoder": "bahdanau", "coverage": True},
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


JOEYNMT = """
import json, random, sys, time
from types import SimpleNamespace
import torch
from joeynmt.batch import Batch
from joeynmt.model import build_model
from joeynmt.vocabulary import Vocabulary
given = json.load(sys.stdin)
torch.set_num_threads(given["threads"])
torch.manual_seed(1)
special = dict(unk_token="<unk>", unk_id=0, pad_token="<pad>", pad_id=1, bos_token="<s>", bos_id=2,
    eos_token="</s>", eos_id=3, lang_tags=[], sep_token=None, sep_id=None)
pairs = [(list(word), phones.split()) for word, phones in given["pairs"]]
source, target = (Vocabulary(sorted({token for pair in pairs for token in pair[side]}), SimpleNamespace(**special))
    for side in (0, 1))
common = dict(rnn_type="lstm", embeddings=dict(embedding_dim=128, scale=False), hidden_size=256, num_layers=1,
    dropout=0.2, type="recurrent")
rnn = dict(encoder=dict(common, bidirectional=True), decoder=dict(common, hidden_dropout=0.2, input_feeding=True,
    init_hidden="bridge", attention="bahdanau"))
layers = dict(embeddings=dict(embedding_dim=256, scale=True), hidden_size=256, ff_size=1024, num_layers=3, num_heads=4,
    dropout=0.2, type="transformer", layer_norm="pre")
initial = dict(initializer="xavier_uniform", embed_initializer="xavier_uniform", bias_initializer="zeros",
    init_rnn_orthogonal=False, lstm_forget_gate=0.0)
configs = {"LSTM": dict(initial, **rnn), "Transformer": dict(initial, encoder=layers, decoder=layers)}

def padded(rows):
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.full((len(rows), max(lengths)), 1)
    for out, row in zip(ids, rows):
        out[: len(row)] = torch.tensor(row)
    return ids, lengths

def batches():
    rng = random.Random(1)
    while True:
        rng.shuffle(pairs)
        for first in range(0, len(pairs) - 256, 256):
            rows = sorted(pairs[first : first + 256], key=lambda pair: -len(pair[0]))
            ids, lengths = padded([[source.lookup(token) for token in word] + [3] for word, _ in rows])
            outputs, _ = padded([[2, *(target.lookup(token) for token in phones), 3] for _, phones in rows])
            yield Batch(ids, lengths, None, outputs, None, torch.arange(256), torch.device("cpu"), 1, 3)

rates = {}
for name, config in configs.items():
    model = build_model(config, source, target).train()
    model.loss_function = ("crossentropy", 0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001)
    for number, batch in enumerate(batches()):
        if number == given["updates"]:
            start = time.perf_counter()
        if number == 2 * given["updates"]:
            break
        loss, *_ = model(return_type="loss", **vars(batch))
        batch.normalize(loss, "batch").backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        model.zero_grad()
    rates[name] = 256 * given["updates"] / (time.perf_counter() - start)
print(json.dumps(rates))
"""
"""Trains JoeyNMT's models of the same sizes and prints their words per second."""


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


def measure_joeynmt(
    python: str, pairs: list[list[str]], updates: int, threads: int
) -> dict[str, float]:
    """Return the words per second of JoeyNMT by model."""
    given = {
        "pairs": [pair[:2] for pair in pairs], "updates": updates, "threads": threads,
    }  # fmt: skip
    command = [python, "-c", JOEYNMT]
    result = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, input=json.dumps(given)
    )
    return json.loads(result.stdout.splitlines()[-1])


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
    extra = {
        **dict.fromkeys(("Bahdanau", "Bahdanau, coverage", "fixed context"), states),
        **{"Luong": 0, "Luong, input feeding": dim},
    }
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
    parser.add_argument("--joeynmt", metavar="PYTHON", help="interpreter that has JoeyNMT")
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
    peers: dict[str, list[float]] = {}
    for _ in range(args.rounds):
        if args.yoyodyne:
            rate = measure_yoyodyne(args.yoyodyne, args.train, args.updates, args.threads)
            peers.setdefault("yoyodyne", []).append(rate)
        if args.joeynmt:
            found = measure_joeynmt(args.joeynmt, pairs, args.updates, args.threads)
            for name, rate in found.items():
                peers.setdefault(f"JoeyNMT, {name}", []).append(rate)
        for name, model in MODELS.items():
            for precision in precisions:
                rate = measure(args.train, model, precision, args.updates)
                rates.setdefault((name, precision), []).append(rate)
    print(f"torch {torch.__version__}, {args.threads} threads, {args.rounds} rounds")
    for precision, peak in peaks.items():
        print(f"matrix products in {precision}: {peak / 1e9:,.0f} GFLOP/s")
    medians = {name: statistics.median(values) for name, values in peers.items()}
    for name, rate in medians.items():
        print(f"{name}: {rate:,.0f} words/s")
    print(
        "\n| model | precision | words/s | target tokens/s | multiple of yoyodyne | multiple of JoeyNMT | share of peak |"
    )
    print("|---|---|---|---|---|---|---|")
    for (name, precision), of_key in rates.items():
        words, tokens = (statistics.median(column) for column in zip(*of_key, strict=True))
        peer = f"JoeyNMT, {'Transformer' if name == 'Transformer' else 'LSTM'}"
        multiples = [
            f"{words / medians[toolkit]:.1f}x" if toolkit in medians else ""
            for toolkit in ("yoyodyne", peer)
        ]
        share = words * operations_per_word(name, source, steps, targets) / peaks[precision]
        shown = f"{share:.0%}" if share else ""
        print(
            f"| {name} | {precision} | {words:,.0f} | {tokens:,.0f} | {' | '.join(multiples)} | {shown} |"
        )


if __name__ == "__main__":
    main()

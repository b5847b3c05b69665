"""Speed of search at the size of Multi30k, for recurrent models and Transformers, beside another toolkit.

    python -P benchmarks/sentences.py [--joeynmt ENVIRONMENT/bin/python] [--threads 2] [--rounds 3]

The models are untrained, because speed does not depend on the weights, and every output has 14 tokens,
as many as an average caption. The sources are 1,000 lists of 5 to 25 random ids, in batches of 64 of
similar length; then 200 of them are translated one at a time on one thread. Their encoding is included.
The LSTM models have additive attention and input feeding, 512 units (per direction in the encoder) and
embeddings of 256; the Transformers have 4 + 4 layers of width 128. Toolkits take turns, and the medians
of all rounds are printed. "Bfloat16" has products of matrices in bfloat16, where the processor has them, and
"steps" is the model in float32 without the kernel of its search. JoeyNMT runs in float32, in an environment of its own, with
models of the same sizes.
"""

import argparse
import itertools
import json
import random
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch

from regard.batching import pad
from regard.config import ModelConfig, Precision
from regard.inference import InferenceModel, set_precision
from regard.models import build
from regard.search import beam_search
from regard.text import EOS

VOCABULARY, LENGTH, BATCH = 6000, 14, 64
BEAMS = (1, 5)
MODELS: dict[str, dict[str, Any]] = {
    "LSTM": {
        "decoder": "luong", "embedding_dim": 256, "encoder_dim": 512, "decoder_dim": 512,
        "attention_dim": 512, "encoder_layers": 1, "input_feeding": True,
    },
    "Transformer": {
        "kind": "transformer", "encoder_dim": 128, "decoder_dim": 128, "encoder_layers": 4,
        "decoder_layers": 4, "heads": 4, "feed_forward_dim": 256,
    },
}  # fmt: skip

JOEYNMT = """
import json, sys, time
from types import SimpleNamespace
import torch
from joeynmt.batch import Batch
from joeynmt.model import build_model
from joeynmt.search import search
from joeynmt.vocabulary import Vocabulary
given = json.load(sys.stdin)
torch.set_num_threads(given["threads"])
torch.manual_seed(1)
special = dict(unk_token="<unk>", unk_id=0, pad_token="<pad>", pad_id=1, bos_token="<s>", bos_id=2,
    eos_token="</s>", eos_id=3, lang_tags=[], sep_token=None, sep_id=None)
vocabulary = Vocabulary([str(i) for i in range(given["vocabulary"] - 4)], SimpleNamespace(**special))
common = dict(embeddings=dict(embedding_dim=256, scale=False), rnn_type="lstm", hidden_size=512, num_layers=1,
    dropout=0.0, type="recurrent")
rnn = dict(encoder=dict(common, bidirectional=True), decoder=dict(common, hidden_dropout=0.0, input_feeding=True,
    init_hidden="bridge", attention="bahdanau"))
layers = dict(embeddings=dict(embedding_dim=128, scale=True), hidden_size=128, ff_size=256, num_layers=4, num_heads=4,
    dropout=0.0, type="transformer", layer_norm="pre")
initial = dict(initializer="xavier_uniform", embed_initializer="xavier_uniform", bias_initializer="zeros",
    init_rnn_orthogonal=False, lstm_forget_gate=0.0)
models = {"LSTM": dict(initial, **rnn), "Transformer": dict(initial, encoder=layers, decoder=layers)}
rates = {}
for name, config in models.items():
    model = build_model(config, vocabulary, vocabulary).eval()
    for beam in given["beams"]:
        for count in (2, None):  # the first batches warm up
            start, sources = time.perf_counter(), 0
            for ids in given["batches"][:count]:
                ids = sorted(ids, key=len, reverse=True)  # as JoeyNMT requires
                length = torch.tensor([len(row) for row in ids])
                rows = torch.full((len(ids), max(length)), vocabulary.pad_index)
                for row, source in zip(rows, ids):
                    row[: len(source)] = torch.tensor(source)
                batch = Batch(rows, length, None, None, None, torch.arange(len(ids)), torch.device("cpu"),
                    vocabulary.pad_index, vocabulary.eos_index, is_train=False)
                output, _, _ = search(model, batch, given["length"], beam, 1.0, min_output_length=given["length"],
                    generate_unk=True)
                assert output.shape[1] == given["length"], output.shape
                sources += len(ids)
            rates[f"{name} {beam}"] = sources / (time.perf_counter() - start)
print(json.dumps(rates))
"""
"""Prints the sentences per second of JoeyNMT's models."""


class Steps:
    """A decoder without a search of its own."""

    def __init__(self, decoder: Any) -> None:
        self.start, self.step = decoder.start, decoder.step


KINDS: dict[str, tuple[Callable[[Any], Any], Precision]] = {
    "regard": (lambda decoder: decoder, "float32"),
    "bfloat16": (lambda decoder: decoder, "bfloat16"),
    "steps": (Steps, "float32"),
}
"""What is searched with, given a decoder, and the precision of products."""


def make_batches() -> list[list[list[int]]]:
    """Return random sources in batches of similar length, each with EOS, whose id is the same in both toolkits."""
    rng = random.Random(1)
    sources = [
        [*(rng.randrange(4, VOCABULARY) for _ in range(rng.randint(5, 25))), EOS]
        for _ in range(1000)
    ]
    sources.sort(key=len)
    return [sources[start : start + BATCH] for start in range(0, len(sources), BATCH)]


def make_model(name: str) -> InferenceModel:
    """Return an untrained model that never predicts EOS."""
    torch.manual_seed(1)
    model = build(ModelConfig(**MODELS[name]), VOCABULARY, VOCABULARY).eval()
    with torch.no_grad():
        model.decoder.output.bias[EOS] = -1e4
    return InferenceModel(model)


def measure(
    prepared: InferenceModel,
    batches: list[list[list[int]]],
    beam: int,
    kind: str,
) -> float:
    """Return the sentences per second."""
    adapt, precision = KINDS[kind]
    start = 0.0
    set_precision(precision)
    with torch.inference_mode():
        for number, batch in enumerate([batches[0], *batches]):
            if number == 1:  # the first batch has packed the weights in this precision
                start = time.perf_counter()
            model, decoder = prepared.prepared()
            memory = model.encode(pad(batch), torch.tensor([len(source) for source in batch]))
            limits = torch.full((len(batch),), LENGTH)
            outputs = beam_search(adapt(decoder), memory, limits, beam)
            assert all(len(output[0].ids) == LENGTH for output in outputs)
    return sum(map(len, batches)) / (time.perf_counter() - start)


def measure_joeynmt(python: str, batches: list[list[list[int]]], threads: int) -> dict[str, float]:
    """Return the sentences per second of JoeyNMT by model and beam size."""
    given = {
        "batches": batches, "beams": BEAMS, "length": LENGTH, "threads": threads,
        "vocabulary": VOCABULARY,
    }  # fmt: skip
    command = [python, "-c", JOEYNMT]
    result = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, input=json.dumps(given)
    )
    return json.loads(result.stdout.splitlines()[-1])


def measure_all(
    models: dict[str, InferenceModel], joeynmt: str | None, rounds: int, threads: int
) -> dict[tuple[str, str, int], float]:
    """Return the median sentences per second by toolkit, model and beam size."""
    batches, rates = make_batches(), dict[tuple[str, str, int], list[float]]()
    for round_number in range(rounds):
        found = measure_joeynmt(joeynmt, batches, threads) if joeynmt else {}
        for key, rate in found.items():
            name, beam = key.split()
            rates.setdefault(("JoeyNMT", name, int(beam)), []).append(rate)
        for (name, model), beam, kind in itertools.product(models.items(), BEAMS, KINDS):
            if not round_number:
                measure(model, batches[:2], beam, kind)  # warms up
            rate = measure(model, batches, beam, kind)
            rates.setdefault((kind, name, beam), []).append(rate)
    return {key: statistics.median(of_key) for key, of_key in rates.items()}


def one_by_one(model: InferenceModel, beam: int, kind: str) -> float:
    """Return the median milliseconds of one sentence."""
    sources = [source for batch in make_batches() for source in batch][400:600]
    return statistics.median(1000 / measure(model, [[source]], beam, kind) for source in sources)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--joeynmt", metavar="PYTHON", help="interpreter that has JoeyNMT")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    models = {name: make_model(name) for name in MODELS}
    rates = measure_all(models, args.joeynmt, args.rounds, args.threads)
    print(f"torch {torch.__version__}, {args.threads} threads, {args.rounds} rounds; sentences/s\n")
    print(
        "| model | beam | regard | bfloat16 | steps | JoeyNMT | multiples of JoeyNMT |\n"
        "|---|---|---|---|---|---|---|"
    )
    for name, beam in itertools.product(MODELS, BEAMS):
        ours, rounded, steps = (rates[kind, name, beam] for kind in KINDS)
        peer = rates.get(("JoeyNMT", name, beam))
        compared = f"{peer:,.0f} | {ours / peer:.1f}x, {rounded / peer:.1f}x" if peer else " | "
        print(f"| {name} | {beam} | {ours:,.0f} | {rounded:,.0f} | {steps:,.0f} | {compared} |")
    torch.set_num_threads(1)
    print("\nOne sentence at a time, one thread, median of 200, ms:\n")
    print("| model | beam | regard | bfloat16 | steps |\n|---|---|---|---|---|")
    for name, beam in itertools.product(MODELS, BEAMS):
        times = " | ".join(f"{one_by_one(models[name], beam, kind):.1f}" for kind in KINDS)
        print(f"| {name} | {beam} | {times} |", flush=True)


if __name__ == "__main__":
    main()

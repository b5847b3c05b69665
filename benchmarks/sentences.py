"""Speed of search for sentences and words, with recurrent models and Transformers, beside other toolkits.

    python -P benchmarks/sentences.py [--joeynmt ENVIRONMENT/bin/python] [--yoyodyne ENVIRONMENT/bin/python]
        [--threads 2] [--rounds 3]

The models are untrained, because speed does not depend on the weights. Sentences have the size of those of
Multi30k: sources of 5 to 25 random ids, outputs of 14 tokens, as many as an average caption, vocabularies of
6,000. Words have the size of those of CMUdict: 4 to 11 letters, 6 phones, vocabularies of 45. 1,000 sources are
searched in batches of similar length, 64 sentences or 256 words; then 200 of them one at a time on one thread.
Their encoding is included. The LSTM models have additive attention; that for sentences has input feeding, 512
units (per direction in the encoder) and embeddings of 256, that for words 256 and 128. The Transformers have
4 + 4 layers of width 128. Toolkits take turns, and the medians of all rounds are printed. "Bfloat16" has
products of matrices in bfloat16, where the processor has them, and "steps" is the model in float32 without the
kernel of its search. The other toolkits run in float32, in environments of their own, with models of the same
sizes; JoeyNMT's LSTM for words has input feeding, too, because it attends first. yoyodyne, whose beam search visits
every entry of the vocabulary in Python, searches only the words. "Share" divides the products with weights that
a source needs by the largest throughput of a matrix product in float32, measured in the same run.
"""

import argparse
import dataclasses
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
from regard.kernels.linear import FrozenLinear
from regard.models import build
from regard.search import beam_search
from regard.text import EOS

BEAMS = (1, 5)
SOURCES, ONE_BY_ONE = 1000, 200


@dataclasses.dataclass(frozen=True)
class Case:
    """A model and what it searches."""

    model: dict[str, Any]
    """Settings of the model."""
    peer: dict[str, Any]
    """Sizes of the other toolkits' models."""
    vocabulary: int = 6000
    sources: tuple[int, int] = (5, 25)
    """The shortest and the longest source, without EOS."""
    steps: int = 14
    """Number of tokens of every output."""
    batch: int = 64
    peers: tuple[str, ...] = ("JoeyNMT",)


def _lstm(embedding: int, width: int, **options: Any) -> dict[str, Any]:
    return {
        "decoder": "luong", "embedding_dim": embedding, "encoder_dim": width, "decoder_dim": width,
        "attention_dim": width, "encoder_layers": 1, **options,
    }  # fmt: skip


CASES = {
    "LSTM": Case(_lstm(256, 512, input_feeding=True), {"embedding": 256, "width": 512}),
    "Transformer": Case(
        {
            "kind": "transformer", "encoder_dim": 128, "decoder_dim": 128, "encoder_layers": 4,
            "decoder_layers": 4, "heads": 4, "feed_forward_dim": 256,
        },
        {"embedding": 128, "width": 128, "feed_forward": 256, "layers": 4, "heads": 4},
    ),
    "LSTM, words": Case(
        _lstm(128, 256, decoder="bahdanau"), {"embedding": 128, "width": 256},
        vocabulary=45, sources=(4, 11), steps=6, batch=256, peers=("JoeyNMT", "yoyodyne"),
    ),
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
sizes = given["sizes"]
if "heads" in sizes:
    encoder = dict(embeddings=dict(embedding_dim=sizes["embedding"], scale=True), hidden_size=sizes["width"],
        ff_size=sizes["feed_forward"], num_layers=sizes["layers"], num_heads=sizes["heads"], dropout=0.0,
        type="transformer", layer_norm="pre")
    decoder = encoder
else:
    common = dict(embeddings=dict(embedding_dim=sizes["embedding"], scale=False), rnn_type="lstm",
        hidden_size=sizes["width"], num_layers=1, dropout=0.0, type="recurrent")
    encoder = dict(common, bidirectional=True)
    decoder = dict(common, hidden_dropout=0.0, input_feeding=True, init_hidden="bridge", attention="bahdanau")
initial = dict(initializer="xavier_uniform", embed_initializer="xavier_uniform", bias_initializer="zeros",
    init_rnn_orthogonal=False, lstm_forget_gate=0.0)
model = build_model(dict(initial, encoder=encoder, decoder=decoder), vocabulary, vocabulary).eval()
rates = []
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
            output, _, _ = search(model, batch, given["steps"], beam, 1.0, min_output_length=given["steps"],
                generate_unk=True)
            assert output.shape[1] == given["steps"], output.shape
            sources += len(ids)
    rates.append(sources / (time.perf_counter() - start))
print(json.dumps(rates))
"""
"""Prints the sources per second of a model of JoeyNMT, for every beam size."""

YOYODYNE = """
import json, logging, sys, time
import lightning, torch
from yoyodyne import models, special
from yoyodyne.data.batches import Batch, PaddedTensor
from yoyodyne.models.modules import LSTMEncoder
logging.disable()  # of what Lightning finds and recommends
given = json.load(sys.stdin)
torch.set_num_threads(given["threads"])
sizes, size = given["sizes"], given["vocabulary"]
rates = []
for beam in given["beams"]:
    torch.manual_seed(1)
    encoder = LSTMEncoder(bidirectional=True, dropout=0, embedding_size=sizes["embedding"],
        hidden_size=sizes["width"])
    model = models.SoftAttentionLSTMModel(source_encoder=encoder, decoder_hidden_size=sizes["width"],
        decoder_dropout=0, embedding_size=sizes["embedding"], vocab_size=size, target_vocab_size=size,
        beam_width=beam, max_target_length=given["steps"] + 1).eval()
    model.classifier.bias.data[special.END_IDX] = -1e4
    model.trainer = lightning.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False)
    with torch.inference_mode():
        for count in (1, None):  # the first batch warms up
            start, sources = time.perf_counter(), 0
            for ids in given["batches"][:count]:
                rows = [torch.tensor([*row[:-1], special.END_IDX]) for row in ids]
                output = model(Batch(PaddedTensor(rows)))
                output = output[0] if beam > 1 else output.argmax(1)
                assert given["steps"] + 1 <= output.shape[-1] <= given["steps"] + 2, output.shape
                sources += len(ids)
    rates.append(sources / (time.perf_counter() - start))
print(json.dumps(rates))
"""
"""The same for yoyodyne."""

PEERS = {"JoeyNMT": JOEYNMT, "yoyodyne": YOYODYNE}


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


def make_batches(case: Case) -> list[list[list[int]]]:
    """Return random sources in batches of similar length, each with EOS, whose id is the same in both toolkits."""
    rng = random.Random(1)
    sources = [
        [*(rng.randrange(4, case.vocabulary) for _ in range(rng.randint(*case.sources))), EOS]
        for _ in range(SOURCES)
    ]
    sources.sort(key=len)
    return [sources[start : start + case.batch] for start in range(0, len(sources), case.batch)]


def make_model(case: Case) -> InferenceModel:
    """Return an untrained model that never predicts EOS."""
    torch.manual_seed(1)
    model = build(ModelConfig(**case.model), case.vocabulary, case.vocabulary).eval()
    with torch.no_grad():
        model.decoder.output.bias[EOS] = -1e4
    return InferenceModel(model)


def measure(
    prepared: InferenceModel, batches: list[list[list[int]]], steps: int, beam: int, kind: str
) -> float:
    """Return the sources per second; the first batch is also computed once untimed, to pack the weights."""
    adapt, precision = KINDS[kind]
    start = 0.0
    set_precision(precision)
    with torch.inference_mode():
        for number, batch in enumerate([batches[0], *batches]):
            if number == 1:  # the first batch has packed the weights in this precision
                start = time.perf_counter()
            model, decoder = prepared.prepared()
            memory = model.encode(pad(batch), torch.tensor([len(source) for source in batch]))
            limits = torch.full((len(batch),), steps)
            outputs = beam_search(adapt(decoder), memory, limits, beam)
            assert all(len(output[0].ids) == steps for output in outputs)
    return sum(map(len, batches)) / (time.perf_counter() - start)


def measure_peer(
    toolkit: str, python: str, case: Case, batches: list[list[list[int]]], threads: int
) -> list[float]:
    """Return the sources per second of another toolkit for every beam size."""
    given = {
        "sizes": case.peer, "batches": batches, "beams": BEAMS, "steps": case.steps, "threads": threads,
        "vocabulary": case.vocabulary,
    }  # fmt: skip
    command = [python, "-c", PEERS[toolkit]]
    result = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, input=json.dumps(given)
    )
    return json.loads(result.stdout.splitlines()[-1])


def measure_all(
    models: dict[str, InferenceModel], pythons: dict[str, str], rounds: int, threads: int
) -> dict[tuple[str, str, int], float]:
    """Return the median sources per second by toolkit, model and beam size."""
    rates = dict[tuple[str, str, int], list[float]]()
    for round_number, (name, model) in itertools.product(range(rounds), models.items()):
        case = CASES[name]
        batches = make_batches(case)
        for toolkit in pythons.keys() & case.peers:
            found = measure_peer(toolkit, pythons[toolkit], case, batches, threads)
            for beam, rate in zip(BEAMS, found, strict=True):
                rates.setdefault((toolkit, name, beam), []).append(rate)
        for beam, kind in itertools.product(BEAMS, KINDS):
            if not round_number:
                measure(model, batches[:2], case.steps, beam, kind)  # warms up
            rate = measure(model, batches, case.steps, beam, kind)
            rates.setdefault((kind, name, beam), []).append(rate)
    return {key: statistics.median(of_key) for key, of_key in rates.items()}


def one_by_one(name: str, model: InferenceModel, beam: int, kind: str) -> float:
    """Return the median milliseconds of one source."""
    case = CASES[name]
    sources = [source for batch in make_batches(case) for source in batch]
    middle = sources[(SOURCES - ONE_BY_ONE) // 2 :][:ONE_BY_ONE]
    rates = (measure(model, [[source]], case.steps, beam, kind) for source in middle)
    return statistics.median(1000 / rate for rate in rates)


def multiplications(case: Case, beam: int) -> float:
    """Return the number of multiplications by weights for one source, whose length is the mean."""
    model = ModelConfig(**case.model).resolved()
    source, dim = sum(case.sources) / 2 + 1, model.decoder_dim
    steps, logits = 1 + case.steps * beam, dim * case.vocabulary  # the first step has no beams yet
    if model.kind == "transformer":
        feed = 2 * dim * model.feed_forward_dim
        encoder = model.encoder_layers * (4 * dim**2 + feed) + model.decoder_layers * 2 * dim**2
        return source * encoder + steps * (model.decoder_layers * (6 * dim**2 + feed) + logits)
    states, gates = 2 * model.encoder_dim, 4
    attends_first = model.decoder == "bahdanau"  # its values are projected for the cell, too
    # the embeddings are projected once per vocabulary entry where there are few
    inputs = 0 if case.vocabulary < 2048 else states * gates * model.embedding_dim
    encoder = 2 * gates * model.encoder_dim**2 + inputs
    encoder += states * (model.attention_dim + dim + (gates * dim if attends_first else 0))
    cells = gates * dim * (dim + (dim if model.input_feeding else 0))
    return source * encoder + steps * (cells + dim * (model.attention_dim + dim) + logits)


def matrix_product_peak() -> float:
    """Return the floating-point operations per second of the fastest of several products in float32."""
    set_precision("float32")
    best, linear = 0.0, FrozenLinear(torch.randn(1024, 1024))
    for rows in (256, 512, 1024, 2048):
        x = torch.randn(rows, 1024)
        for _ in range(30):
            start = time.perf_counter()
            linear(x)
            best = max(best, 2 * rows * 1024**2 / (time.perf_counter() - start))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    for toolkit in PEERS:
        help_text = f"interpreter that has {toolkit}"
        parser.add_argument(f"--{toolkit.lower()}", metavar="PYTHON", help=help_text)
    args = parser.parse_args()
    given = {toolkit: getattr(args, toolkit.lower()) for toolkit in PEERS}
    pythons = {toolkit: python for toolkit, python in given.items() if python}
    torch.set_num_threads(args.threads)
    models = {name: make_model(case) for name, case in CASES.items()}
    peak = matrix_product_peak()
    rates = measure_all(models, pythons, args.rounds, args.threads)
    print(
        f"torch {torch.__version__}, {args.threads} threads, {args.rounds} rounds; matrix products: "
        f"{peak / 1e9:,.0f} GFLOP/s; sentences or words per second\n\n"
        "| model | beam | regard | share | bfloat16 | steps | others (multiples in float32, bfloat16) |\n"
        "|---|---|---|---|---|---|---|"
    )
    for name, beam in itertools.product(CASES, BEAMS):
        ours, rounded, steps = (rates[kind, name, beam] for kind in KINDS)
        share = ours * 2 * multiplications(CASES[name], beam) / peak
        found = {toolkit: rates.get((toolkit, name, beam)) for toolkit in PEERS}
        compared = "; ".join(
            f"{toolkit} {rate:,.0f} ({ours / rate:.1f}x, {rounded / rate:.1f}x)"
            for toolkit, rate in found.items()
            if rate
        )
        print(
            f"| {name} | {beam} | {ours:,.0f} | {share:.0%} | {rounded:,.0f} | {steps:,.0f} | {compared} |"
        )
    torch.set_num_threads(1)
    print(f"\nOne at a time, one thread, median of {ONE_BY_ONE}, ms:\n")
    print("| model | beam | regard | bfloat16 | steps |\n|---|---|---|---|---|")
    for name, beam in itertools.product(CASES, BEAMS):
        times = " | ".join(f"{one_by_one(name, models[name], beam, kind):.1f}" for kind in KINDS)
        print(f"| {name} | {beam} | {times} |", flush=True)


if __name__ == "__main__":
    main()

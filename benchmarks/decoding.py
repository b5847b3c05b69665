"""Speed of translation: words per second in batches, milliseconds for one word, and the whole command.

    python -P benchmarks/decoding.py SOURCES MODEL [MODEL ...] [--threads 2] [--rounds 5]
        [--joeynmt ENVIRONMENT/bin/python] [--yoyodyne ENVIRONMENT/bin/python]

SOURCES is a TSV file (plain or .gz) whose first column is translated. Models are measured in turn, and the
medians of all rounds are printed, but of the command one run. "Limit" divides the multiplications of the weights that one word
needs by the largest throughput of a matrix product in the same precision, measured in the same run; it is
printed for recurrent models with additive attention and one layer on either side. On a processor that has
products in bfloat16, both precisions take turns, and "other texts" counts the outputs that differ from float32.
At the end, the processor time of the command for one word, from its start, is printed (the median of five runs).
With an interpreter that has another toolkit, the tables of `sentences.py` follow, in which untrained models of
the same sizes search words and sentences beside it.
"""

import argparse
import itertools
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import regard
from regard.config import Precision
from regard.inference import set_precision
from regard.kernels.linear import FrozenLinear, has_bfloat16
from regard.lines import read_lines
from regard.request import prepare

BEAMS = (1, 5)
ONE_BY_ONE = 200
TOOLKITS = ("joeynmt", "yoyodyne")
Search = tuple[str, Precision, int]
"""Name of the model, precision, and beam size."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("sources")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=int, default=12_000, help="number of sources")
    for toolkit in TOOLKITS:
        parser.add_argument(
            f"--{toolkit}", metavar="PYTHON", help=f"interpreter that has {toolkit}"
        )
    args = parser.parse_args()
    lines = dict.fromkeys(line.split("\t")[0] for line in read_lines(args.sources))
    sources = list(lines)[: args.limit]
    random.Random(1).shuffle(sources)
    models = {Path(folder).name: folder for folder in args.models}
    if len(models) < len(args.models):
        parser.error("two folders have the same name, by which the table lists them; rename one")
    translators = {name: regard.Translator.load(folder) for name, folder in models.items()}
    torch.set_num_threads(args.threads)
    precisions: list[Precision] = ["float32"]
    if has_bfloat16():
        precisions.append("bfloat16")
    peaks = {precision: matrix_product_peak(precision) for precision in precisions}
    printed = ", ".join(f"{each} {peak / 1e9:,.0f} GFLOP/s" for each, peak in peaks.items())
    print(
        f"torch {torch.__version__}, {args.threads} threads, {len(sources)} sources, "
        f"{args.rounds} rounds; matrix products: {printed}\n"
    )
    print(
        "| model | precision | beam | words/s | limit | share | the command, words/s | other texts |"
    )
    print("|---|---|---|---|---|---|---|---|")
    rates, outputs = throughputs(translators, precisions, sources, args.rounds)
    for (name, precision, beam), rate in rates.items():
        found, exact = outputs[name, precision, beam], outputs[name, "float32", beam]
        work = multiplications(translators[name], exact, beam)
        limit = peaks[precision] / 2 / work if work else None
        bounds = f"{limit:,.0f} | {rate / limit:.0%}" if limit else "| "
        options = ["--beam-size", str(beam), "--precision", precision]
        whole = len(sources) / command_seconds(models[name], sources, options, args.threads)
        others = sum(a.text != b.text for a, b in zip(found, exact, strict=True))
        print(
            f"| {name} | {precision} | {beam} | {rate:,.0f} | {bounds} | {whole:,.0f} | {others} |",
            flush=True,
        )
    torch.set_num_threads(1)
    print("\nOne word at a time, one thread, in ms:\n")
    print("| model | precision | beam | median | p95 |\n|---|---|---|---|---|")
    for name, precision, beam in rates:
        set_precision(precision)
        times = sorted(one_by_one(translators[name], sources[:ONE_BY_ONE], beam))
        median, p95 = statistics.median(times), times[int(0.95 * len(times))]
        print(f"| {name} | {precision} | {beam} | {median:.2f} | {p95:.2f} |", flush=True)
    print("\n| model | processor time of the command for one word |\n|---|---|")
    for name, folder in models.items():
        print(f"| {name} | {processor_seconds(folder, sources[:1], args.threads):.2f} s |")
    if toolkits := [f"--{name}={path}" for name in TOOLKITS if (path := getattr(args, name))]:
        print("\nBeside other toolkits:\n", flush=True)
        script = Path(__file__).with_name("sentences.py")
        options = ["--threads", str(args.threads), "--rounds", str(args.rounds), *toolkits]
        subprocess.run([sys.executable, "-P", str(script), *options], check=True)


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def matrix_product_peak(precision: Precision) -> float:
    """Return the floating-point operations per second of the fastest of several matrix products."""
    set_precision(precision)
    best = 0.0
    for rows in (256, 512, 1024, 2048):
        x, linear = torch.randn(rows, 1024), FrozenLinear(torch.randn(1024, 1024), may_round=True)
        for _ in range(30):
            best = max(best, 2 * rows * 1024**2 / seconds(lambda x=x, linear=linear: linear(x)))
    return best


def throughputs(
    translators: dict[str, regard.Translator],
    precisions: list[Precision],
    sources: list[str],
    rounds: int,
) -> tuple[dict[Search, float], dict[Search, list[regard.Translation]]]:
    """Return the median words per second and the outputs of every search."""
    rates: dict[Search, list[float]] = {}
    outputs: dict[Search, list[regard.Translation]] = {}
    searches = itertools.product(range(rounds + 1), translators, precisions)
    for round_number, name, precision in searches:  # the first round warms up
        translator = translators[name]
        set_precision(precision)
        translator.translate(sources[0])  # prepares the weights in this precision
        request = prepare(translator.trained, sources)
        for beam in BEAMS:
            start = time.perf_counter()
            found = translator.search(request, beam)
            if round_number:
                rate = len(sources) / (time.perf_counter() - start)
                rates.setdefault((name, precision, beam), []).append(rate)
            outputs[name, precision, beam] = [best[0] for best in found]
    return {key: statistics.median(of_key) for key, of_key in rates.items()}, outputs


def multiplications(
    translator: regard.Translator, outputs: list[regard.Translation], beam: int
) -> float:
    """Return the number of weight multiplications per word; 0 for models that are not counted."""
    model = translator.trained.config.model.resolved()
    plain = (model.kind, model.encoder, model.encoder_layers, model.decoder_layers)
    options = model.input_feeding, model.tie_embeddings, model.coverage, model.copy
    if plain != ("rnn", "rnn", 1, 1) or any(options) or model.window != "none":
        return 0
    if model.attention not in ("additive", "concat") or model.decoder == "posterior":
        return 0
    if translator.trained.members:
        return 0
    gates = {"lstm": 4, "gru": 3}[model.cell]
    directions = 2 if model.bidirectional else 1
    states, dim = directions * model.encoder_dim, model.decoder_dim
    extra = gates * dim if model.decoder == "bahdanau" else 0
    # the embeddings are projected once per vocabulary entry
    by_source = directions * gates * model.encoder_dim**2
    by_source += states * (model.attention_dim + extra + dim)
    by_step = dim * (gates * dim + model.attention_dim + dim + len(translator.target))
    source = statistics.mean(len(output.source_tokens) for output in outputs)
    steps = statistics.mean(len(output.tokens) + 1 for output in outputs)
    rows = 1 + (steps - 1) * beam  # the first step has no beams yet
    return source * by_source + rows * by_step


def command_seconds(folder: str, sources: list[str], options: list[str], threads: int) -> float:
    """Return the duration of `regard translate` in seconds, from start to end, with its modules in bytecode."""
    with tempfile.TemporaryDirectory() as temporary:
        lines = Path(temporary, "lines")
        lines.write_text("\n".join(sources) + "\n", encoding="utf-8")
        command = [
            sys.executable, "-m", "regard", "translate", folder, str(lines),
            *options, "--out", f"{temporary}/out",
        ]  # fmt: skip
        env = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONDONTWRITEBYTECODE": ""}
        return seconds(lambda: subprocess.run(command, check=True, capture_output=True, env=env))


def processor_seconds(folder: str, sources: list[str], threads: int) -> float:
    """Return the processor time of `regard translate` in seconds, the median of five runs."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    times: list[float] = []
    for _ in range(5):
        before = used()
        command_seconds(folder, sources, [], threads)
        times.append(used() - before)
    return statistics.median(times)


def one_by_one(translator: regard.Translator, sources: list[str], beam: int) -> list[float]:
    """Return the milliseconds of each word."""
    translator.translate(sources[0], beam)
    return [1000 * seconds(lambda text=text: translator.translate(text, beam)) for text in sources]


if __name__ == "__main__":
    main()

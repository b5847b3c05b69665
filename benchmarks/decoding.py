"""Speed of translation: words per second in batches, milliseconds for one word, and the whole command.

    python -P benchmarks/decoding.py SOURCES MODEL [MODEL ...] [--threads 2] [--rounds 5]

SOURCES is a TSV file (plain or .gz) whose first column is translated. Models are measured in turn, and the
medians of all rounds are printed. "Limit" divides the multiplications of the weights that one word
needs by the largest throughput of a float32 matrix product, measured in the same run; it is printed for
recurrent models with additive attention and one layer on either side.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import regard
from regard.kernels.linear import FrozenLinear
from regard.lines import read_lines
from regard.request import prepare

BEAMS = (1, 5)
ONE_BY_ONE = 200


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("sources")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=int, default=12_000, help="number of sources")
    args = parser.parse_args()
    lines = dict.fromkeys(line.split("\t")[0] for line in read_lines(args.sources))
    sources = list(lines)[: args.limit]
    random.Random(1).shuffle(sources)
    models = {Path(folder).name: folder for folder in args.models}
    translators = {name: regard.Translator.load(folder) for name, folder in models.items()}
    torch.set_num_threads(args.threads)
    peak = matrix_product_peak()
    print(
        f"torch {torch.__version__}, {args.threads} threads, {len(sources)} sources, "
        f"{args.rounds} rounds; float32 matrix products {peak / 1e9:,.0f} GFLOP/s\n"
    )
    print("| model | beam | words/s | limit, words/s | share of it | the command, words/s |")
    print("|---|---|---|---|---|---|")
    for name, beam, rate, outputs in throughputs(translators, sources, args.rounds):
        work = multiplications(translators[name], outputs, beam)
        limit = peak / 2 / work if work else None
        bounds = f"{limit:,.0f} | {rate / limit:.0%}" if limit else "| "
        whole = len(sources) / command_seconds(models[name], sources, beam, args.threads)
        print(f"| {name} | {beam} | {rate:,.0f} | {bounds} | {whole:,.0f} |", flush=True)
    torch.set_num_threads(1)
    print(
        "\nOne word at a time, one thread, in ms:\n\n| model | beam | median | p95 |\n|---|---|---|---|"
    )
    for name, translator in translators.items():
        for beam in BEAMS:
            times = sorted(one_by_one(translator, sources[:ONE_BY_ONE], beam))
            p95 = times[int(0.95 * len(times))]
            print(f"| {name} | {beam} | {statistics.median(times):.2f} | {p95:.2f} |", flush=True)


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def matrix_product_peak() -> float:
    """Return the floating-point operations per second of the fastest of several matrix products."""
    best = 0.0
    for rows in (256, 512, 1024, 2048):
        x, linear = torch.randn(rows, 1024), FrozenLinear(torch.randn(1024, 1024))
        for _ in range(30):
            best = max(best, 2 * rows * 1024**2 / seconds(lambda x=x, linear=linear: linear(x)))
    return best


def throughputs(
    translators: dict[str, regard.Translator], sources: list[str], rounds: int
) -> list[tuple[str, int, float, list[regard.Translation]]]:
    """Return the name, beam size, median words per second and outputs of every search."""
    rates: dict[tuple[str, int], list[float]] = {}
    outputs: dict[tuple[str, int], list[regard.Translation]] = {}
    for round_number in range(rounds + 1):  # the first one warms up
        for name, translator in translators.items():
            request = prepare(translator.trained, sources)
            for beam in BEAMS:
                start = time.perf_counter()
                found = translator.search(request, beam)
                if round_number:
                    rate = len(sources) / (time.perf_counter() - start)
                    rates.setdefault((name, beam), []).append(rate)
                outputs[name, beam] = [best[0] for best in found]
    return [(*key, statistics.median(of_key), outputs[key]) for key, of_key in rates.items()]


def multiplications(
    translator: regard.Translator, outputs: list[regard.Translation], beam: int
) -> float:
    """Return the number of weight multiplications per word; 0 for models that are not counted."""
    model = translator.trained.config.model.resolved()
    plain = (model.kind, model.encoder, model.encoder_layers, model.decoder_layers)
    options = model.input_feeding, model.tie_embeddings, model.coverage, model.copy
    if plain != ("rnn", "rnn", 1, 1) or any(options) or model.window != "none":
        return 0
    if model.attention not in ("additive", "concat"):
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
    return source * by_source + steps * beam * by_step


def command_seconds(folder: str, sources: list[str], beam: int, threads: int) -> float:
    """Return the duration of `regard translate` in seconds, from start to end."""
    with tempfile.TemporaryDirectory() as temporary:
        lines = Path(temporary, "lines")
        lines.write_text("\n".join(sources) + "\n", encoding="utf-8")
        command = [
            sys.executable, "-m", "regard", "translate", folder, str(lines),
            "--beam-size", str(beam), "--out", f"{temporary}/out",
        ]  # fmt: skip
        env = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        return seconds(lambda: subprocess.run(command, check=True, capture_output=True, env=env))


def one_by_one(translator: regard.Translator, sources: list[str], beam: int) -> list[float]:
    """Return the milliseconds of each word."""
    translator.translate(sources[0], beam)
    return [1000 * seconds(lambda text=text: translator.translate(text, beam)) for text in sources]


if __name__ == "__main__":
    main()

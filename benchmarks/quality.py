"""Quality within a time budget: trains every model of the table and prints the table and a chart.

    python -P benchmarks/quality.py DATA FOLDER [--only RUN ...] [--test] [--seeds 3] [--chart quality.svg]

DATA contains cmudict/, sigmorphon2020-g2p/, multi30k-en-de/ and tatoeba-*/. FOLDER receives a model folder and
the metrics of every run; a run that is stopped goes on when the script is started again, and one that is complete
is not repeated. The metrics are those of the dev set; `--test` evaluates the test set instead, where DATA has
one. With --seeds, every run is repeated with other seeds and the table contains the mean and the range.
"""

import argparse
import dataclasses
import gzip
import json
import random
import shlex
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from regard.charts import LineChart, Point
from regard.curves import read_history
from regard.files import write_text

BLEU_OF_TOKENS = "--bleu-tokenize none"
PEERS = (("yoyodyne 0.5.27", 20.0, 48.13), ("JoeyNMT 2.3.0", 20.0, 38.20))
"""Toolkit, minutes of training on one core and WER on CMUdict's dev set, greedy."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A row of the table."""

    pairs: str
    """Pattern of the pairs in DATA, with {part} for train, dev or test."""
    metric: str
    """Metric in the JSON file of `regard evaluate`."""
    train: str = ""
    """Options of `regard train`, without the files of pairs; empty for settings that follow from the pairs."""
    evaluate: str = ""
    """Options of `regard evaluate`."""
    dev: str = "dev"
    test: str = ""
    """Name of the test set; empty if DATA has none."""
    sample: int = 0
    """Number of training pairs, chosen at random; 0 for all."""
    members: tuple[str, ...] = ()
    """Runs that form an ensemble, which is not trained."""


def _sigmorphon(language: str, train: str = "", sample: int = 0) -> Run:
    pairs = f"sigmorphon2020-g2p/{language}/{{part}}.tsv.gz"
    return Run(pairs, "wer", train, test="test", sample=sample)


_CMUDICT = "cmudict/{part}.tsv.gz"
_MONOTONIC = "--model.decoder posterior --model.monotonic true"
_MULTI30K = ",".join(f"multi30k-en-de/tok/{{part}}.lc.norm.tok.{side}.gz" for side in ("en", "de"))
_TATOEBA = "tatoeba-es-en/{part}.tsv.gz"
_TEST_2016 = {"dev": "val", "test": "test_2016_flickr", "evaluate": BLEU_OF_TOKENS}
_TWENTY_MINUTES = "--config g2p --training.max_minutes 20"
_BEST, _RTL = "--config g2p-best", "--model.right_to_left true"
_THREE = ("cmudict-best-2", "cmudict-best-right-to-left", "cmudict-best-right-to-left-2")
_MUON = "--training.optimizer muon --training.learning_rate 0.006 --training.schedule constant"
_FIVE = (
    "--jobs 2 --training.max_updates 2500 --training.max_minutes 60 --training.patience 99"
    " --member model.decoder=luong --member model.decoder=bahdanau"
    " --member 'model.decoder=posterior model.monotonic=true'"
    " --member 'model.decoder=posterior model.monotonic=true' --member model.decoder=posterior"
)
"""Five small models, which form an ensemble."""
_NFD = {"kor": "--source.normal_form NFD"}
"""The recipe does not decompose the letters of Korean; settings that follow from the pairs do."""
_LANGUAGES = ("fre", "gre", "hun", "kor")
_MULTI30K_RNN = {
    "multi30k-rnn": "--config multi30k-rnn",
    "multi30k-rnn-2": "--config multi30k-rnn --training.seed 2",
    "multi30k-rnn-right-to-left": "--config multi30k-rnn --training.seed 3 --model.right_to_left true",
}
RUNS = {
    "cmudict": Run(_CMUDICT, "wer", "--config g2p"),
    "cmudict-20-minutes": Run(_CMUDICT, "wer", _TWENTY_MINUTES),
    "cmudict-20-minutes-muon": Run(_CMUDICT, "wer", f"{_TWENTY_MINUTES} {_MUON}"),
    "cmudict-best": Run(_CMUDICT, "wer", _BEST),
    "cmudict-best-2": Run(_CMUDICT, "wer", f"{_BEST} --training.seed 2"),
    "cmudict-best-right-to-left": Run(_CMUDICT, "wer", f"{_BEST} {_RTL} --training.seed 5"),
    "cmudict-best-right-to-left-2": Run(_CMUDICT, "wer", f"{_BEST} {_RTL}"),
    "cmudict-ensemble": Run(_CMUDICT, "wer", members=_THREE),
    "cmudict-default": Run(_CMUDICT, "wer"),
    "cmudict-fixed-context": Run(_CMUDICT, "wer", "--config g2p --model.attention none"),
    **{each: _sigmorphon(each, f"--config g2p {_NFD.get(each, '')}") for each in _LANGUAGES},
    **{f"{each}-default": _sigmorphon(each) for each in _LANGUAGES},
    **{f"{each}-monotonic": _sigmorphon(each, _MONOTONIC) for each in _LANGUAGES},
    **{f"{each}-ensemble": _sigmorphon(each, _FIVE) for each in _LANGUAGES},
    **{f"hun-{count}": _sigmorphon("hun", sample=count) for count in (100, 500)},
    **{name: Run(_MULTI30K, "bleu", train, **_TEST_2016) for name, train in _MULTI30K_RNN.items()},
    "multi30k-rnn-ensemble": Run(_MULTI30K, "bleu", members=(*_MULTI30K_RNN,), **_TEST_2016),
    "multi30k-transformer": Run(_MULTI30K, "bleu", "--config multi30k-transformer", **_TEST_2016),
    "tatoeba-es-en": Run(_TATOEBA, "bleu", "--config translation"),
    **{f"tatoeba-es-en-{count}": Run(_TATOEBA, "bleu", sample=count) for count in (1000, 3000, 10_000)},
    "tatoeba-zh-en": Run("tatoeba-zh-en/{part}.tsv.gz", "bleu"),
}  # fmt: skip


CURVES = {"g2p": "cmudict-20-minutes", "g2p, Muon": "cmudict-20-minutes-muon"}
"""Runs in the chart, by the name of their line."""


def regard(*arguments: str) -> None:
    """Run a command, which prints its progress."""
    print("$ regard", shlex.join(arguments), flush=True)
    subprocess.run([sys.executable, "-P", "-m", "regard", *arguments], check=True)


def files(run: Run, part: str, data: Path) -> str:
    return ",".join(str(data / name) for name in run.pairs.format(part=part).split(","))


def sampled_pairs(path: str, count: int, folder: Path) -> str:
    """Return the path of a file with some pairs of another one, which is sorted."""
    few = folder / f"{count}-of-{Path(path).parent.name}.tsv"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = [*file]
    random.Random(0).shuffle(lines)
    write_text(few, "".join(lines[:count]))
    return str(few)


def folder_of(name: str, seed: int, folder: Path) -> Path:
    return folder / (name if seed == 1 else f"{name}.seed{seed}")


def train(name: str, seed: int, data: Path, folder: Path) -> None:
    """Train a model, or form an ensemble of trained ones."""
    run, out = RUNS[name], folder_of(name, seed, folder)
    if run.members:
        if not out.exists():
            members = [str(folder_of(member, seed, folder)) for member in run.members]
            regard("ensemble", *members, "--out", str(out))
        return
    pairs = files(run, "train", data)
    options = ["--data.train", sampled_pairs(pairs, run.sample, folder) if run.sample else pairs]
    options += ["--data.dev", files(run, run.dev, data), "--out", str(out), "--resume"]
    command = shlex.split(run.train)
    if seed > 1:  # a member of an ensemble has seeds that no other member has
        own = command[command.index("--training.seed") + 1] if "--training.seed" in command else 1
        in_ensemble = any(name in other.members for other in RUNS.values()) or "--member" in command
        options += ["--training.seed", str(int(own) + (100 if in_ensemble else 1) * (seed - 1))]
    regard("train", *command, *options)


def measure(name: str, seed: int, data: Path, folder: Path, test: bool) -> dict[str, Any]:
    """Return the metrics of a run, from its file if it is complete."""
    run = RUNS[name]
    part = run.test if test else run.dev
    model = folder_of(name, seed, folder)
    result = folder / f"{model.name}.{part}.json"
    if not result.exists():
        for member in run.members or (name,):
            if not (folder / f"{folder_of(member, seed, folder).name}.{run.dev}.json").exists():
                train(member, seed, data, folder)
        if run.members:
            train(name, seed, data, folder)
        regard(
            "evaluate", str(model), files(run, part, data), "--json", str(result),
            *shlex.split(run.evaluate),
        )  # fmt: skip
    return json.loads(result.read_text(encoding="utf-8"))


def row(name: str, results: list[dict[str, Any]], folder: Path) -> str:
    """Return a row of the table."""
    run = RUNS[name]
    values = [result[run.metric]["value"] for result in results]
    interval = (results[0][run.metric][bound] for bound in ("low", "high"))
    spread = (
        f"{min(values):.2f} – {max(values):.2f}"
        if len(values) > 1
        else "{:.2f} – {:.2f}".format(*interval)
    )
    minutes = updates = ""
    if (folder / name / "metrics.jsonl").exists():  # an ensemble has none
        last = read_history(folder / name)[-1]
        minutes, updates = f"{last['minutes']:.1f}", f"{last['update']:,}"
    mean = statistics.mean(values)
    return f"| {name} | {minutes} | {updates} | {run.metric.upper()} {mean:.2f} ({spread}) |"


def chart(folder: Path) -> LineChart:
    """Return the word error rate on CMUdict against minutes of training, with other toolkits as points."""
    points = [
        Point(name, entry["minutes"], 100 - entry["exact_match"], f"update {entry['update']:,}")
        for name, run in CURVES.items()
        for entry in read_history(folder / run)
    ]
    points += [Point(name, minutes, wer, f"{minutes:.0f} min") for name, minutes, wer in PEERS]
    explanation = "CMUdict, dev set, greedy search, trained on one core."
    return LineChart(
        points, "minutes of training", "word error rate, %", "Quality and time", explanation
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), metavar="RUN")
    parser.add_argument("--test", action="store_true", help="evaluate the test sets")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--chart", type=Path, help="write the chart to this file")
    args = parser.parse_args()
    if args.chart and not {*CURVES.values()}.issubset(args.only):
        parser.error(f"--chart needs --only {' '.join(CURVES.values())}")
    if args.chart and args.test:
        parser.error("--chart shows the dev set: leave out --test")
    args.folder.mkdir(parents=True, exist_ok=True)
    rows = list[str]()
    for name in args.only:
        if args.test and not RUNS[name].test:
            continue
        results = [
            measure(name, seed, args.data, args.folder, args.test)
            for seed in range(1, args.seeds + 1)
        ]
        rows.append(row(name, results, args.folder))
    print(f"\ntorch {torch.__version__}, {torch.get_num_threads()} threads\n")
    print("| run | minutes | updates | result |\n|---|---|---|---|", *rows, sep="\n")
    if args.chart:
        chart(args.folder).save(args.chart)


if __name__ == "__main__":
    main()

"""Train on a generated Parquet file: private memory, and time to the first update.

    python -P benchmarks/larger_than_memory.py --pairs 10000000 --folder /tmp/large

Generates pairs of a number and its digits as words (once), then trains in three processes: without a
cache, with it, and with it in two parts: stopped in the middle of the epoch, then resumed. For each,
prints the seconds from the start of the process to the first update and the peak of RssAnon, and whether
the losses after the resume equal those of the uninterrupted run.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
GROUP = 100_000


def generate(path: Path, count: int) -> None:
    """Write random numbers of 3 to 12 digits and their digits as words."""
    import pyarrow as pa
    from pyarrow import parquet

    rng = random.Random(1)
    temporary = path.with_suffix(".part")
    schema = pa.schema([("source", pa.string()), ("target", pa.string())])
    with parquet.ParquetWriter(temporary, schema) as writer:
        for start in range(0, count, GROUP):
            size = min(GROUP, count - start)
            numbers = [str(rng.randrange(10 ** rng.randint(3, 12))) for _ in range(size)]
            spelt = [" ".join(WORDS[int(digit)] for digit in number) for number in numbers]
            writer.write_table(pa.table([numbers, spelt], schema=schema))
    temporary.rename(path)


def peak_of_private_memory(pid: int, done: threading.Event) -> list[int]:
    """Return the peak RssAnon of a process in bytes, read 20 times a second."""
    peak = 0
    while not done.wait(0.05):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            break
        peak = max(
            [peak, *(int(line.split()[1]) for line in status.splitlines() if "RssAnon" in line)]
        )
    return [peak * 1024]


TRAIN = """
import json, os, sys, time
started = float(sys.argv[1])
from regard.config import from_dict
from regard.trainer import RunningStatistics, Trainer
from regard.training import train

update, add, losses = Trainer._update, RunningStatistics.add, []
log = open(sys.argv[3], "a")
def added(self, loss, *counts):
    losses.append(loss)
    add(self, loss, *counts)
def logged(self, batch):
    update(self, batch)
    line = [time.time() - started, self.schedule.update + 1, losses.pop()]
    print(json.dumps(line), file=log, flush=True)
RunningStatistics.add, Trainer._update = added, logged
try:
    train(from_dict(json.loads(sys.argv[2])), resume=sys.argv[4] == "resume")
except KeyboardInterrupt:
    sys.exit(130)
"""


def run(path: Path, name: str, updates: int, unit: str, stop_at: int = 0, mode: str = "") -> None:
    """Train in a separate process and print the measurements."""
    folder = path.parent
    width = {n: 32 for n in ("embedding_dim", "encoder_dim", "decoder_dim", "attention_dim")}
    config = {
        "out": str(folder / name),
        "device": "cpu",
        "data": {"train": str(path)},
        "source": {"unit": "char"},
        "target": {"unit": unit},
        "model": {**width, "cell": "gru"},
        "training": {"max_updates": updates, "validate_every": updates, "metric": "loss"},
    }
    log = folder / f"{name}.jsonl"
    before = len(log.read_text().splitlines()) if log.exists() else 0
    environment = {**os.environ, "HF_HOME": str(folder / "cache")}
    arguments = [TRAIN, str(time.time()), json.dumps(config), str(log), mode or "new"]
    process = subprocess.Popen([sys.executable, "-c", *arguments], env=environment)
    peaks: list[int] = []
    done = threading.Event()
    watch = threading.Thread(target=lambda: peaks.extend(peak_of_private_memory(process.pid, done)))
    watch.start()
    while stop_at and process.poll() is None:
        if log.exists() and len(log.read_text().splitlines()) >= stop_at:
            process.send_signal(signal.SIGINT)
            break
        time.sleep(0.01)
    status = process.wait()
    done.set()
    watch.join()
    first = json.loads(log.read_text().splitlines()[before])
    print(
        f"{name} {mode}: exit status {status}, first update after {first[0]:.1f} s, peak of RssAnon "
        f"{peaks[0] / 1e9:.2f} GB",
        flush=True,
    )


def losses(folder: Path, name: str) -> dict[int, float]:
    lines = (folder / f"{name}.jsonl").read_text().splitlines()
    return {update: loss for _, update, loss in map(json.loads, lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--folder", type=Path, default=Path("large"))
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--target-unit", default="word")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    path = args.folder / f"{args.pairs}.parquet"
    if not path.exists():
        generate(path, args.pairs)
    print(f"{args.pairs:,} pairs, {path.stat().st_size / 1e6:,.0f} MB of Parquet", flush=True)
    for name in ("cache", "first", "cached", "stopped"):
        shutil.rmtree(args.folder / name, ignore_errors=True)
        (args.folder / f"{name}.jsonl").unlink(missing_ok=True)
    run(path, "first", args.updates, args.target_unit)
    run(path, "cached", args.updates, args.target_unit)
    run(path, "stopped", args.updates, args.target_unit, stop_at=args.updates // 3)
    done = len(losses(args.folder, "stopped"))
    run(path, "stopped", args.updates, args.target_unit, mode="resume")
    same = losses(args.folder, "stopped") == losses(args.folder, "cached")
    print(f"resumed after {done} updates: the losses are {'equal' if same else 'DIFFERENT'}")
    size = sum(file.stat().st_size for file in (args.folder / "cache").rglob("*.arrow"))
    print(f"cache: {size / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()

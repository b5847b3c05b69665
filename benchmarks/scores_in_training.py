"""Cost of a score function in training: time per update of models that differ only in it.

    python -P benchmarks/scores_in_training.py cmudict/train.tsv.gz [--recipe g2p] [--updates 60]

Every batch is processed by all models in random order, and each time is divided by that of
`scaled_dot` on the same batch, so that a change in the speed of the machine affects all models alike.
The medians and quartiles of these ratios, and the ratio of the total times, are printed.
"""

import argparse
import itertools
import os
import random
import statistics
import time
from collections.abc import Callable
from importlib import resources

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

import torch
import yaml

import regard
from regard.accelerator import precision
from regard.batching import Batch, collate, epoch
from regard.config import from_dict
from regard.corpus import make_corpus
from regard.models import build
from regard.score_registry import SCORES

BASELINE = "scaled_dot"
"""The score function with which the others are compared."""
WARM_UP = 5
"""Number of untimed updates per model."""


def make_update(config: regard.Config, sizes: tuple[int, int]) -> Callable[[Batch], float]:
    """Build a model; return a function that updates it and returns the time in seconds."""
    settings = config.training
    torch.manual_seed(settings.seed)
    model = build(config.model, *sizes).train()
    optimizer = torch.optim.AdamW(model.parameters(), settings.learning_rate)
    bfloat16 = precision(config) == "bfloat16"

    def update(batch: Batch) -> float:
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = model(batch, label_smoothing=settings.label_smoothing)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - start

    return update


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("train")
    parser.add_argument("--recipe", default="g2p")
    parser.add_argument("--scores", default=",".join(SCORES))
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    recipe = resources.files("regard") / "recipes" / f"{arguments.recipe}.yaml"
    values = yaml.safe_load(recipe.read_text())
    values["data"] = {**values.get("data", {}), "train": arguments.train}
    config = from_dict(values)
    corpus = make_corpus(config, None, None)
    sizes = len(corpus.source), len(corpus.target)
    update_functions = {}
    for name in dict.fromkeys([BASELINE, *arguments.scores.split(",")]):
        values["model"]["attention"] = name
        update_functions[name] = make_update(from_dict(values), sizes)

    times: dict[str, list[float]] = {name: [] for name in update_functions}
    batches = epoch(corpus.train, config.training.batch_tokens, config.training.seed, 0)
    pairs = 0
    for index, examples in enumerate(itertools.islice(batches, arguments.updates + WARM_UP)):
        batch = collate(examples)
        order = random.Random(index).sample(list(update_functions.items()), len(update_functions))
        seconds = {name: update(batch) for name, update in order}
        if index < WARM_UP:
            continue
        pairs += len(batch.source)
        for name, elapsed in seconds.items():
            times[name].append(elapsed)

    print(
        f"torch {torch.__version__}, {arguments.threads} threads, recipe {arguments.recipe}, "
        f"{precision(config)}, {len(times[BASELINE])} batches of {pairs / len(times[BASELINE]):.0f} pairs"
    )
    print(
        f"| score | ms per update | pairs/s | multiple of {BASELINE}, median (quartiles) | total |"
    )
    print("|---|---|---|---|---|")
    for name, score_times in times.items():
        ratios = [time / base for time, base in zip(score_times, times[BASELINE], strict=True)]
        low, middle, high = statistics.quantiles(ratios)
        print(
            f"| {name} | {1000 * statistics.median(score_times):.0f} | {pairs / sum(score_times):,.0f} "
            f"| {middle:.2f} ({low:.2f} – {high:.2f}) | {sum(score_times) / sum(times[BASELINE]):.2f} |"
        )


if __name__ == "__main__":
    main()

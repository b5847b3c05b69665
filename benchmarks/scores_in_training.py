"""What a score costs in training: updates of models that differ in their score alone, in turn.

    python -P benchmarks/scores_in_training.py cmudict/train.tsv.gz [--recipe g2p] [--updates 60]

Every batch goes through all of them, in an order that changes, and the time of each is compared with
that of `scaled_dot` on the same batch: a machine that is slow for a while is slow for all. Printed
are medians, quartiles and the ratio of all times together.
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
from regard.batching import Batch, epoch
from regard.config import from_dict
from regard.corpus import make_corpus, resolve_config
from regard.models import build
from regard.score_registry import SCORES

BASELINE = "scaled_dot"
"""The score with which the others are compared."""
WARM_UP = 5
"""Updates of each that are not timed."""


def updates(config: regard.Config, sizes: tuple[int, int]) -> Callable[[Batch], float]:
    """A model of its own; the function returned updates it and gives the seconds that took."""
    settings = config.training
    torch.manual_seed(settings.seed)
    model = build(config.model, *sizes).train()
    optimizer = torch.optim.AdamW(model.parameters(), settings.learning_rate)
    bfloat16 = settings.precision == "bfloat16"

    def update(batch: Batch) -> float:
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = model(batch, label_smoothing=settings.label_smoothing)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - begin

    return update


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("train")
    parser.add_argument("--recipe", default="g2p")
    parser.add_argument("--scores", default=",".join(SCORES))
    parser.add_argument("--updates", type=int, default=60)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)

    recipe = resources.files("regard") / "recipes" / f"{given.recipe}.yaml"
    values = yaml.safe_load(recipe.read_text())
    values["data"] = {**values.get("data", {}), "train": given.train}
    config = from_dict(values)
    corpus = make_corpus(config, None, None)
    sizes = len(corpus.source), len(corpus.target)
    ways = {}
    for name in dict.fromkeys([BASELINE, *given.scores.split(",")]):
        values["model"]["attention"] = name
        ways[name] = updates(resolve_config(from_dict(values), corpus), sizes)

    times: dict[str, list[float]] = {name: [] for name in ways}
    batches = epoch(corpus.train, config.training.batch_tokens, config.training.seed, 0)
    pairs = 0
    for number, batch in enumerate(itertools.islice(batches, given.updates + WARM_UP)):
        order = random.Random(number).sample(list(ways.items()), len(ways))
        seconds = {name: update(batch) for name, update in order}
        if number < WARM_UP:
            continue
        pairs += len(batch.source)
        for name, second in seconds.items():
            times[name].append(second)

    print(
        f"torch {torch.__version__}, {given.threads} threads, recipe {given.recipe}, "
        f"{config.training.precision}, {len(times[BASELINE])} batches of {pairs / len(times[BASELINE]):.0f} pairs"
    )
    print(
        f"| score | ms an update | pairs/s | times that of {BASELINE}, median (quartiles) | altogether |"
    )
    print("|---|---|---|---|---|")
    for name, seen in times.items():
        ratios = [one / other for one, other in zip(seen, times[BASELINE], strict=True)]
        low, middle, high = statistics.quantiles(ratios)
        print(
            f"| {name} | {1000 * statistics.median(seen):.0f} | {pairs / sum(seen):,.0f} "
            f"| {middle:.2f} ({low:.2f} – {high:.2f}) | {sum(seen) / sum(times[BASELINE]):.2f} |"
        )


if __name__ == "__main__":
    main()

"""Report which results are bit-identical on this machine, and how large other differences are.

    python -P benchmarks/determinism.py [--updates 100]

Models of each kind are trained on the phrasebook several times with the same seed, and one of them
translates 200 test sources in several ways. The largest absolute differences are printed.
"""

import argparse
import platform
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import regard
from regard import datasets
from regard.kernels import additive

SIZES = {"embedding_dim": 64, "encoder_dim": 64, "decoder_dim": 64, "attention_dim": 64}
MODELS: dict[str, dict[str, Any]] = {
    "Bahdanau": {"decoder": "bahdanau"},
    "Luong": {"decoder": "luong"},
    "Transformer": {"kind": "transformer"},
}
RUNS = {
    "trained on one thread": ((1, "float32"), (1, "float32")),
    "trained on two threads": ((2, "float32"), (2, "float32")),
    "trained on one and on two threads": ((1, "float32"), (2, "float32")),
    "trained in bfloat16 on one thread": ((1, "bfloat16"), (1, "bfloat16")),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--updates", type=int, default=100)
    updates = parser.parse_args().updates
    splits = datasets.make("phrasebook")
    pairs = [(example.source, example.target) for example in splits.train]
    sources = list(dict.fromkeys(example.source for example in splits.test))[:200]
    rows = [
        [f"additive scores and gradients on 1 and on {threads} threads", kernel_difference(threads)]
        for threads in (2, 4)
    ]
    for name, model in MODELS.items():
        rows += [[f"{name}, {row}", value] for row, value in trained(model, updates, pairs)]
        rows += [[f"{name}, {row}", value] for row, value in translated(model, pairs, sources)]
    print(f"torch {torch.__version__}, {platform.machine()}, {updates} updates\n")
    print("| computed twice | largest difference |\n|---|---|")
    for title, value in rows:
        print(f"| {title} | {value} |")


def kernel_difference(threads: int) -> str:
    """Compare the additive operator on one thread and on several."""
    results: list[list[np.ndarray]] = []
    for count in (1, threads):
        torch.set_num_threads(count)
        generator = torch.Generator().manual_seed(0)
        tensors = [torch.randn(*shape, generator=generator, requires_grad=True)
                   for shape in ((8, 100, 256), (8, 120, 256), (256,))]  # fmt: skip
        scores = additive.scores(*tensors)
        scores.square().sum().backward()
        results.append([scores.detach().numpy(), *(t.grad.numpy() for t in tensors)])  # type: ignore
    return difference(*results)


def train(
    model: dict[str, Any], updates: int, pairs: list[Any], threads: int, precision: str
) -> regard.Translator:
    """Train a model with seed 1."""
    torch.set_num_threads(threads)
    return regard.fit(
        pairs,
        max_minutes=None,
        model={**SIZES, **model},
        training={"max_updates": updates, "validate_every": updates, "precision": precision},
    )


def trained(model: dict[str, Any], updates: int, pairs: list[Any]) -> list[tuple[str, str]]:
    """Compare the weights of models trained twice with the same seed."""
    weights = [
        [
            [p.detach().numpy() for p in train(model, updates, pairs, *run).trained.model.parameters()]
            for run in runs
        ]
        for runs in RUNS.values()
    ]  # fmt: skip
    return [
        (f"weights, {title}", difference(*two)) for title, two in zip(RUNS, weights, strict=True)
    ]


def translated(
    model: dict[str, Any], pairs: list[Any], sources: list[str]
) -> list[tuple[str, str]]:
    """Compare translations in a batch, one by one and on two threads."""
    translator = train(model, 300, pairs, 1, "float32")
    results = [translator.translate(sources)]
    results.append([translator.translate(source) for source in sources])
    torch.set_num_threads(2)
    results.append(translator.translate(sources))
    rows: list[tuple[str, str]] = []
    for title, other in (("in a batch and one by one", 1), ("on one and on two threads", 2)):
        pairs_of = list(zip(results[0], results[other], strict=True))
        differing = sum(a.text != b.text for a, b in pairs_of)
        same = [(a, b) for a, b in pairs_of if a.text == b.text]
        values = [[np.array([t.score, *t.attention.ravel()]) for t in side]  # type: ignore
                  for side in zip(*same, strict=True)]  # fmt: skip
        rows.append((f"texts translated {title}", f"{differing} of {len(pairs_of)} texts"))
        rows.append(("their scores and attention weights", difference(*values)))
    return rows


def difference(first: Sequence[np.ndarray], second: Sequence[np.ndarray]) -> str:
    """Return the largest absolute difference."""
    largest = max(float(np.abs(a - b).max()) for a, b in zip(first, second, strict=True))
    identical = all(a.tobytes() == b.tobytes() for a, b in zip(first, second, strict=True))
    return "none: bit-identical" if identical else f"{largest:.1e}"


if __name__ == "__main__":
    main()

"""Train on pairs in memory, translate, and print the alignment.

python examples/train_in_memory.py [UPDATES]
"""

import random
import sys
import tempfile

import regard


def reversed_pairs(count: int, seed: int) -> list[tuple[str, str]]:
    """Return sequences of letters with their reversals."""
    rng = random.Random(seed)
    rows = [[rng.choice("abcdefgh") for _ in range(rng.randint(3, 6))] for _ in range(count)]
    return [(" ".join(row), " ".join(reversed(row))) for row in rows]


def main(updates: int = 600) -> None:
    """Learn to reverse sequences; the alignment is the anti-diagonal."""
    with tempfile.TemporaryDirectory() as folder:
        translator = regard.fit(
            reversed_pairs(4000, seed=1),
            reversed_pairs(100, seed=2),
            out=f"{folder}/model",
            max_minutes=None,
            model={
                "attention": "additive", "embedding_dim": 32, "encoder_dim": 32, "decoder_dim": 32,
            },
            training={
                "max_updates": updates, "batch_tokens": 1000, "validate_every": 200,
                "learning_rate": 5e-3,
            },
        )  # fmt: skip
    translation = translator.translate("a b c d")
    print(translation.source, "->", translation.text, f"(score {translation.score:.3f})")
    print("alignment", translation.alignment())
    print(translation.attention.round(2) if translation.attention is not None else "")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

"""Generate the phrasebook: short Chinese and Spanish sentences with English translations and gold links.

The links are exact because the sentences are generated from templates. Two sentences,
`我 爱 机器 学习` and `te quiero`, are the first of the test set and occur nowhere else: a model has
to learn to translate them from other sentences that contain their words and constructions.
"""

import random
from collections import Counter

from phrasebook.chinese import Chinese
from phrasebook.sentence_generator import SentenceGenerator
from phrasebook.spanish import Spanish
from phrasebook.templates import fill
from regard.datasets.splits import Example, Splits, shuffled

HELD_OUT = (
    fill("我:1 爱:2 机器:3 学习:4 | i:1 love:2 machine:3 learning:4").example(),
    fill("te:1 quiero:2 | i:2 love:2 you:1").example(),
)
"""The first two sentences of the test set."""
PER_LANGUAGE = 4_200
DEV, TEST = 400, 600
MAX_WORDS = 12
MIN_COUNT = 10


def generate(seed: int = 1) -> Splits:
    """Return the same number of sentences in each language, shuffled together.

    Every source has one target and one alignment; both sides have at most `MAX_WORDS` words. Every
    source word of dev and test occurs at least `MIN_COUNT` times in train. The dataset in
    `regard` was generated with seed 1.
    """
    generator = random.Random(seed)
    examples = [*_sentences(Chinese(generator)), *_sentences(Spanish(generator))]
    train, held_out = _split(shuffled(examples, generator))
    return Splits(train=tuple(train), dev=tuple(held_out[:DEV]), test=(*HELD_OUT, *held_out[DEV:]))


def _sentences(language: SentenceGenerator) -> list[Example]:
    """Return distinct sentences, none of which shares a source or a target with `HELD_OUT`."""
    sources = {example.source for example in HELD_OUT}
    targets = {example.target for example in HELD_OUT}
    by_source: dict[str, Example] = {}
    while len(by_source) < PER_LANGUAGE:
        example = language.sentence().example()
        short = max(len(example.source.split()), len(example.target.split())) <= MAX_WORDS
        if short and example.source not in sources and example.target not in targets:
            by_source[example.source] = example
    return list(by_source.values())


def _split(examples: list[Example]) -> tuple[list[Example], list[Example]]:
    """Return train and held-out examples; all words of held-out examples stay frequent in train."""
    remaining = Counter(word for example in examples for word in example.source.split())
    train: list[Example] = []
    held_out: list[Example] = []
    for example in examples:
        words = Counter(example.source.split())
        frequent = all(remaining[word] - count >= MIN_COUNT for word, count in words.items())
        if frequent and len(held_out) < DEV + TEST - len(HELD_OUT):
            remaining -= words
            held_out.append(example)
        else:
            train.append(example)
    return train, held_out

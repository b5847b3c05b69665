"""Short sentences in Chinese and Spanish with their English and their gold links.

Our own grammars say them, so that every link is known and nothing has to be downloaded. Two
sentences, `我 爱 机器 学习` and `te quiero`, open the test part and stand nowhere else: a model
translates them from other sentences that use their words and their forms.
"""

import random
from collections import Counter

from regard.datasets.chinese import Chinese
from regard.datasets.pairs import Example, Splits, shuffled
from regard.datasets.spanish import Spanish
from regard.datasets.speaker import Speaker
from regard.datasets.weaving import weave

FAMOUS = (
    weave("我:1 爱:2 机器:3 学习:4 | i:1 love:2 machine:3 learning:4").example(),
    weave("te:1 quiero:2 | i:2 love:2 you:1").example(),
)
PER_LANGUAGE = 4_200
DEV, TEST = 400, 600
LONGEST = 12
FREQUENT = 10


def make(seed: int) -> Splits:
    """As many sentences of each language, shuffled together.

    A source has one target and one alignment, and at most twelve words on a side. Every source
    word of dev and test occurs at least ten times in train.
    """
    generator = random.Random(seed)
    examples = [*_say(Chinese(generator)), *_say(Spanish(generator))]
    train, held_out = _hold_out(shuffled(examples, generator))
    return Splits(train=tuple(train), dev=tuple(held_out[:DEV]), test=(*FAMOUS, *held_out[DEV:]))


def _say(speaker: Speaker) -> list[Example]:
    """Different sentences, none of which gives a famous one away."""
    sources = {example.source for example in FAMOUS}
    targets = {example.target for example in FAMOUS}
    found: dict[str, Example] = {}
    while len(found) < PER_LANGUAGE:
        example = speaker.sentence().example()
        short = max(len(example.source.split()), len(example.target.split())) <= LONGEST
        if short and example.source not in sources and example.target not in targets:
            found[example.source] = example
    return list(found.values())


def _hold_out(examples: list[Example]) -> tuple[list[Example], list[Example]]:
    """Take from the front whatever leaves each of its words frequent; the rest is for training."""
    left = Counter(word for example in examples for word in example.source.split())
    train: list[Example] = []
    held_out: list[Example] = []
    for example in examples:
        words = Counter(example.source.split())
        spared = all(left[word] - count >= FREQUENT for word, count in words.items())
        if spared and len(held_out) < DEV + TEST - len(FAMOUS):
            left -= words
            held_out.append(example)
        else:
            train.append(example)
    return train, held_out

"""Invented Spanish verbs and the tags for a form -> the form in Spanish spelling.

Stems are random syllables, and most occur in the training set with other tags; the endings are
those of the three regular conjugations. Concatenation is not enough: the spelling preserves the sound of the
stem (tocar -> toqué, cazar -> cacé, llegar -> llegué), and some stems change under stress (pensar ->
pienso). Stems in z keep it before e and i, where Spanish would write c (tezir).
"""

import random
from collections.abc import Iterator

from regard.datasets.splits import Example, Splits, pick, sample

_ONSETS = ("b", "c", "d", "f", "g", "l", "m", "n", "p", "r", "s", "t", "ch", "ll", "pr", "tr", "br")
_VOWELS = ("a", "e", "i", "o", "u")
_LAST = ("c", "g", "z", "t", "d", "n", "s", "r", "l", "m", "p", "rt", "nd", "rc", "lg")
_PERSONS = ("1;SG", "2;SG", "3;SG", "1;PL", "2;PL", "3;PL")
_STRESSED = ("V;IND;PRS", "V;SBJV;PRS")
_ENDINGS: dict[str, tuple[str, ...]] = {
    "V;IND;PRS": ("o as a amos áis an", "o es e emos éis en", "o es e imos ís en"),
    "V;IND;PST;PFV": (
        "é aste ó amos asteis aron", "í iste ió imos isteis ieron", "í iste ió imos isteis ieron",
    ),
    "V;IND;PST;IPFV": (
        "aba abas aba ábamos abais aban", "ía ías ía íamos íais ían", "ía ías ía íamos íais ían",
    ),
    "V;SBJV;PRS": ("e es e emos éis en", "a as a amos áis an", "a as a amos áis an"),
    "V;IND;FUT": ("é ás á emos éis án",) * 3,
    "V;COND": ("ía ías ía íamos íais ían",) * 3,
}  # fmt: skip
_ON_INFINITIVE = ("V;IND;FUT", "V;COND")
"""Tenses whose endings are added to the infinitive."""


def make(seed: int) -> Splits:
    """Return examples: a lemma, tags and the form; no lemma occurs twice with the same tags."""
    return sample(_examples(random.Random(seed)), seed)


def inflect(lemma: str, tense: str, person: int) -> str:
    """Return the form of a verb, with `tense` as in the tags and `person` from 0 to 5."""
    stem, theme = lemma[:-2], "aei".index(lemma[-2])
    ending = _ENDINGS[tense][theme].split()[person]
    if tense in _ON_INFINITIVE:
        return lemma + ending
    if tense in _STRESSED and person not in (3, 4):
        stem = _diphthongize(stem)
    return _spell(stem, ending, theme) + ending


def _examples(generator: random.Random) -> Iterator[Example]:
    while True:
        lemma = _lemma(generator)
        for _ in range(3):
            tense, person = pick(list(_ENDINGS), generator), int(generator.random() * 6)
            form = inflect(lemma, tense, person)
            yield Example(lemma, form, features=f"{tense};{_PERSONS[person]}")


def _diphthongize(stem: str) -> str:
    """Change an e before two final consonants of the stem to ie: ben- becomes bien-."""
    index = max(stem.rfind(vowel) for vowel in _VOWELS)
    if stem[index] == "e" and len(stem) - index > 2:
        return f"{stem[:index]}ie{stem[index + 1 :]}"
    return stem


def _spell(stem: str, ending: str, theme: int) -> str:
    """Return the stem spelled so that its last consonant sounds as in the infinitive."""
    spellings: dict[str, str] = {}
    if theme == 0 and ending[0] in "eéií":
        spellings = {"c": "qu", "g": "gu", "z": "c"}
    elif theme > 0 and ending[0] not in "eéií":
        spellings = {"c": "z", "g": "j"}
    return stem[:-1] + spellings.get(stem[-1], stem[-1])


def _lemma(generator: random.Random) -> str:
    syllables = 1 + int(generator.random() * 2)
    stem = "".join(pick(_ONSETS, generator) + pick(_VOWELS, generator) for _ in range(syllables))
    return stem + pick(_LAST, generator) + pick(("ar", "ar", "er", "ir"), generator)

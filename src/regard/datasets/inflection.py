"""Invented Spanish verbs and the tags of a form -> the form, spelled as Spanish spells it.

Stems are made of syllables, and most stand in the training part with other tags; endings are those of the three
regular conjugations. What makes it more than gluing: the spelling keeps the stem's sound (tocar ->
toqué, cazar -> cacé, llegar -> llegué), and some stems change under stress (pensar -> pienso).
"""

import random

from regard.datasets.pairs import Example, Splits, pick, split

TRAIN, DEV, TEST = 10_000, 500, 1_000

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
_WHOLE = ("V;IND;FUT", "V;COND")
"""Tenses whose endings follow the infinitive."""


def make(seed: int) -> Splits:
    """Triples lemma, form, tags; no two of a lemma and its tags are the same."""
    generator = random.Random(seed)
    found: dict[str, Example] = {}
    while len(found) < TRAIN + DEV + TEST:
        lemma = _lemma(generator)
        for _ in range(3):
            tense, person = pick(list(_ENDINGS), generator), int(generator.random() * 6)
            source = f"{lemma}\t{tense};{_PERSONS[person]}"
            found[source] = Example(source, inflect(lemma, tense, person))
    return split(list(found.values())[: TRAIN + DEV + TEST], DEV, TEST, seed)


def inflect(lemma: str, tense: str, person: int) -> str:
    """The form of a verb: `tense` as in the tags, `person` 0 to 5."""
    stem, theme = lemma[:-2], "aei".index(lemma[-2])
    ending = _ENDINGS[tense][theme].split()[person]
    if tense in _WHOLE:
        return lemma + ending
    if tense in _STRESSED and person not in (3, 4):
        stem = _under_stress(stem)
    return _spelled(stem, ending, theme) + ending


def _under_stress(stem: str) -> str:
    """Ben- becomes bien-: the last vowel of a stem in -en, -er and two consonants breaks."""
    place = max(stem.rfind(vowel) for vowel in _VOWELS)
    if stem[place] == "e" and len(stem) - place > 2:
        return f"{stem[:place]}ie{stem[place + 1 :]}"
    return stem


def _spelled(stem: str, ending: str, theme: int) -> str:
    """The stem before this ending, so that its last consonant sounds as in the infinitive."""
    soft = ending[0] in "eéií"
    if theme == 0 and soft:
        for last, spelling in (("c", "qu"), ("g", "gu"), ("z", "c")):
            if stem.endswith(last):
                return stem[:-1] + spelling
    if theme > 0 and not soft:
        for last, spelling in (("c", "z"), ("g", "j")):
            if stem.endswith(last):
                return stem[:-1] + spelling
    return stem


def _lemma(generator: random.Random) -> str:
    syllables = 1 + int(generator.random() * 2)
    stem = "".join(pick(_ONSETS, generator) + pick(_VOWELS, generator) for _ in range(syllables))
    return stem + pick(_LAST, generator) + pick(("ar", "ar", "er", "ir"), generator)

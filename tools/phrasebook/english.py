"""The English grammar that the phrasebook needs: agreement, tenses, plurals, degrees, articles."""

from typing import Literal

Person = Literal["1s", "2s", "3s", "1p", "3p"]
"""First, second, third person; singular or plural."""

PRONOUNS: dict[Person, str] = {"1s": "i", "2s": "you", "1p": "we", "3p": "they"}
"""Subjects for which the person suffices: he and she are not distinguished."""

_PAST = {
    "buy": "bought", "drink": "drank", "eat": "ate", "find": "found", "meet": "met",
    "read": "read", "sell": "sold", "teach": "taught",
}  # fmt: skip
_LONG_ADJECTIVES = ("expensive", "interesting")
_HISSES = ("s", "x", "z", "ch", "sh")
_VOWELS = "aeiou"


def be(person: Person) -> str:
    """Am, is or are."""
    return {"1s": "am", "3s": "is"}.get(person, "are")


def do(person: Person) -> str:
    """Do or does."""
    return "does" if person == "3s" else "do"


def present(verb: str, person: Person) -> str:
    """I read, she reads."""
    return _with_s(verb) if person == "3s" else verb


def past(verb: str) -> str:
    """Help, helped; buy, bought."""
    if verb in _PAST:
        return _PAST[verb]
    return _y_to_i(verb) + ("d" if verb.endswith("e") else "ed")


def plural(noun: str) -> str:
    """Letter, letters; box, boxes."""
    return _with_s(noun)


def possessive(name: str) -> str:
    """Mary, mary's."""
    return f"{name}'s"


def article(following: str) -> str:
    """A or an before the word that follows, by its spelling."""
    return "an" if following[0] in _VOWELS else "a"


def comparative(adjective: str) -> str:
    """Busy, busier; expensive, more expensive."""
    if adjective in _LONG_ADJECTIVES:
        return f"more {adjective}"
    return _y_to_i(adjective) + "er"


def _with_s(word: str) -> str:
    if word.endswith(_HISSES) or _y_to_i(word) != word:
        return _y_to_i(word) + "es"
    return word + "s"


def _y_to_i(word: str) -> str:
    return word[:-1] + "i" if word[-1] == "y" and word[-2] not in _VOWELS else word

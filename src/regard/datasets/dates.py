"""Dates as they are written in many languages -> ISO: `5 mars 1987`, `1987年3月5日` -> 1987-03-05."""

import datetime
import random
import re
from collections.abc import Iterator

from regard.datasets.splits import Example, Splits, pick, sample

FIRST, LAST = datetime.date(1900, 1, 1), datetime.date(2099, 12, 31)
LOCALES = (
    *("en_US", "en_GB", "en_IE", "en_AU", "de", "de_AT", "fr", "es", "es_MX", "pt", "pt_PT", "it"),
    *("ca", "ro", "nl", "sv", "da", "nb", "is", "fi", "et", "lv", "lt", "pl", "cs", "sk", "hu"),
    *("sl", "tr", "el", "bg", "uk", "ru", "zh", "ja", "ko"),
)
FORMATS = ("short", "medium", "long", "full")
SKELETONS = ("yMd", "yMEd", "yMMMd", "yMMMEd", "yMMMMd", "yMMMMEd")

_DAY_AND_MONTH = re.compile(r"\b(\d{1,2})[\s./-]+(\d{1,2})[\s./-]+\d{4}")
_SHORT_YEAR = re.compile(r"(?<!y)yy(?!y)")
_SPACE = re.compile(r"\s+")


def make(seed: int) -> Splits:
    """Return days from 1900 to 2099 in the formats of 36 locales, and their ISO form.

    The year always has four digits. Ambiguous sources, in which day and month could be exchanged
    (5/3/1987), are excluded, so that a source denotes exactly one day.
    """
    return sample(_examples(random.Random(seed)), seed)


def is_ambiguous(source: str) -> bool:
    """Return whether day and month both precede the year as numbers and could be exchanged."""
    numbers = _DAY_AND_MONTH.search(source)
    return numbers is not None and int(numbers[1]) <= 12 and int(numbers[2]) <= 12


def _examples(generator: random.Random) -> Iterator[Example]:
    from babel import Locale
    from babel.dates import format_date

    def patterns(locale: Locale) -> list[str]:
        formats = [str(locale.date_formats[name].pattern) for name in FORMATS]
        skeletons = locale.datetime_skeletons
        formats += [str(skeletons[name].pattern) for name in SKELETONS if name in skeletons]
        return list(dict.fromkeys(_SHORT_YEAR.sub("y", pattern) for pattern in formats))

    locales = [Locale.parse(name) for name in LOCALES]
    forms = [(locale, patterns(locale)) for locale in locales]
    days = (LAST - FIRST).days + 1
    while True:
        locale, choices = pick(forms, generator)
        day = FIRST + datetime.timedelta(days=int(generator.random() * days))
        source = _SPACE.sub(" ", format_date(day, pick(choices, generator), locale=locale))
        if not is_ambiguous(source):
            yield Example(source, day.isoformat())

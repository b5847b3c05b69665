"""The Spanish words in the phrasebook with English translations."""

from dataclasses import dataclass

from phrasebook.english import Person

PERSONS: tuple[Person, ...] = ("1s", "2s", "3s", "1p", "3p")
DROPPED: tuple[Person, ...] = ("1s", "2s", "1p", "3p")
"""Persons that the verb form identifies; the third person singular always has a subject."""


@dataclass(frozen=True, slots=True)
class Noun:
    """A thing, its gender and adjectives that suit it."""

    spanish: str
    english: str
    feminine: bool
    adjectives: tuple[str, ...] = ()
    mass: bool = False
    """Has no plural: bread, milk."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb, its forms for the five persons, and its possible objects."""

    spanish: str
    english: str
    forms: tuple[str, ...]
    things: tuple[Noun, ...] = ()

    def form(self, person: Person) -> str:
        """The present tense."""
        return self.forms[PERSONS.index(person)]


ADJECTIVES = {
    "nuevo": "new", "viejo": "old", "blanco": "white", "pequeño": "small", "grande": "big",
    "verde": "green", "interesante": "interesting", "caro": "expensive", "caliente": "hot",
}  # fmt: skip

BOOK = Noun("libro", "book", False, ("nuevo", "viejo", "interesante"))
LETTER = Noun("carta", "letter", True, ("nuevo", "viejo", "interesante"))
CAR = Noun("coche", "car", False, ("nuevo", "blanco", "grande"))
HOUSE = Noun("casa", "house", True, ("nuevo", "blanco", "grande"))
CAT = Noun("gato", "cat", False, ("nuevo", "blanco", "grande"))
SHIRT = Noun("camisa", "shirt", True, ("nuevo", "blanco", "grande"))
BANANA = Noun("plátano", "banana", False, ("verde", "pequeño", "grande"))
APPLE = Noun("manzana", "apple", True, ("verde", "pequeño", "grande"))
TEA = Noun("té", "tea", False, ("caliente",), mass=True)
COFFEE = Noun("café", "coffee", False, ("caliente",), mass=True)
MILK = Noun("leche", "milk", True, ("caliente",), mass=True)
BREAD = Noun("pan", "bread", False, ("caliente",), mass=True)
RICE = Noun("arroz", "rice", False, (), mass=True)

FRUIT = (BANANA, APPLE)
LASTING = (BOOK, LETTER, CAR, HOUSE, CAT, SHIRT)
COUNTABLE = (*LASTING, *FRUIT)
SMALL = (BOOK, LETTER, CAT, SHIRT, *FRUIT)
"""Things that can be on a table or in a box."""
DRINKS = (TEA, COFFEE, MILK)
MASS = (*DRINKS, BREAD, RICE)

SEE = Verb("ver", "see", ("veo", "ves", "ve", "vemos", "ven"), LASTING)
FIND = Verb(
    "encontrar", "find",
    ("encuentro", "encuentras", "encuentra", "encontramos", "encuentran"), LASTING,
)  # fmt: skip
BUY = Verb(
    "comprar", "buy", ("compro", "compras", "compra", "compramos", "compran"), (*COUNTABLE, *MASS)
)
READ = Verb("leer", "read", ("leo", "lees", "lee", "leemos", "leen"), (BOOK, LETTER))
EAT = Verb("comer", "eat", ("como", "comes", "come", "comemos", "comen"), (*FRUIT, BREAD, RICE))
DRINK = Verb("beber", "drink", ("bebo", "bebes", "bebe", "bebemos", "beben"), DRINKS)
_QUERER = ("quiero", "quieres", "quiere", "queremos", "quieren")
WANT = Verb("querer", "want", _QUERER, (*COUNTABLE, *MASS))
LOVE = Verb("querer", "love", _QUERER)
HELP = Verb("ayudar", "help", ("ayudo", "ayudas", "ayuda", "ayudamos", "ayudan"))
VISIT = Verb("visitar", "visit", ("visito", "visitas", "visita", "visitamos", "visitan"))
KNOW = Verb("conocer", "know", ("conozco", "conoces", "conoce", "conocemos", "conocen"))
SING = Verb("cantar", "sing", ("canto", "cantas", "canta", "cantamos", "cantan"))
WORK = Verb("trabajar", "work", ("trabajo", "trabajas", "trabaja", "trabajamos", "trabajan"))
CAN = Verb("poder", "can", ("puedo", "puedes", "puede", "podemos", "pueden"))
WILL = Verb("ir", "will", ("voy", "vas", "va", "vamos", "van"))

OF_THINGS = (SEE, FIND, BUY, READ, EAT, DRINK, WANT)
"""Verbs with a thing as object; `TO_DO` are those that a person can want to do."""
TO_DO = (FIND, BUY, READ, EAT, DRINK)
OF_PEOPLE = (SEE, FIND, LOVE, HELP, VISIT, KNOW)
MEETING = (SEE, FIND, VISIT)
INTRANSITIVE = (SING, WORK)

CLITICS = (
    ("me", "me", "1"), ("te", "you", "2"), ("lo", "him", "3"), ("la", "her", "3"),
    ("nos", "us", "1"), ("los", "them", "3"),
)  # fmt: skip
"""Spanish and English object pronouns and the person that they refer to."""

LIKERS: tuple[tuple[str, Person], ...] = (("me", "1s"), ("te", "2s"), ("nos", "1p"), ("les", "3p"))
"""Persons who like something: gustar."""

PRONOUNS = ("él:1 | he:1", "ella:1 | she:1")
NAMES = (("maría", "maría"), ("pedro", "pedro"))
TITLES = (("médico", "doctor"), ("profesor", "teacher"))
RELATIVES = (
    ("padre", "father", False), ("madre", "mother", True), ("amigo", "friend", False),
    ("hermano", "brother", False), ("hermana", "sister", True),
)  # fmt: skip
"""Spanish, English, and whether the noun is feminine."""

OWNERS = (("mi", "my"), ("tu", "your"), ("nuestro", "our"))
NUMBERS = (("dos", "two"), ("tres", "three"))

PLACES = (
    "en:1 casa:2 | at:1 home:2",
    "en:1 madrid:2 | in:1 madrid:2",
    "en:1 la escuela:2 | at:1 school:2",
    "en:1 el:2 parque:3 | in:1 the:2 park:3",
    "en:1 la:2 ciudad:3 | in:1 the:2 city:3",
)
SPOTS = (
    "en:1 la:2 mesa:3 | on:1 the:2 table:3",
    "en:1 la:2 silla:3 | on:1 the:2 chair:3",
    "en:1 la:2 caja:3 | in:1 the:2 box:3",
)
HABITS = (
    "por:1 la:2 mañana:3 | in:1 the:2 morning:3",
    "por:1 la noche:2 | at:1 night:2",
    "cada:1 día:2 | every:1 day:2",
    "hoy:1 | today:1",
)

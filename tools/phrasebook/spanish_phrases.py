"""Spanish people, things and clauses with English translations: the parts of the sentences."""

from collections.abc import Sequence
from dataclasses import dataclass

from phrasebook import english
from phrasebook import spanish_words as words
from phrasebook.english import Person
from phrasebook.sentence_generator import SentenceGenerator
from phrasebook.spanish_words import Noun, Verb
from phrasebook.templates import EMPTY, Phrase, fill


@dataclass(frozen=True, slots=True)
class Who:
    """A person, as subject, as object with the personal `a`, and as owner with `de`."""

    subject: Phrase
    object: Phrase
    owner: Phrase


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject: a phrase, or nothing if the verb form identifies the person."""

    person: Person
    who: Who | None = None


@dataclass(frozen=True, slots=True)
class Thing:
    """Words for a thing, and whether they are plural."""

    phrase: Phrase
    plural: bool = False


def bend(word: str, *, feminine: bool, plural: bool) -> str:
    """An adjective or determiner in the form that agrees: nuevo, nueva, nuevos, nuevas."""
    if word.endswith("o") and feminine:
        word = word[:-1] + "a"
    return word + "s" if plural else word


def the(noun: Noun, *, plural: bool = False) -> str:
    """The definite article of a noun."""
    singular, plurals = ("la", "las") if noun.feminine else ("el", "los")
    return plurals if plural else singular


def _people() -> tuple[Who, ...]:
    people = [
        Who(
            fill(f"{name}:1 | {told}:1"),
            fill(f"a {name}:1 | {told}:1"),
            fill(f"de {name}:1 | {english.possessive(told)}:1"),
        )
        for name, told in words.NAMES
    ]
    people += [
        Who(
            fill(f"el:1 {title}:2 | the:1 {told}:2"),
            fill(f"al:1 {title}:2 | the:1 {told}:2"),
            fill(f"del:1 {title}:2 | the:1 {english.possessive(told)}:2"),
        )
        for title, told in words.TITLES
    ]
    for noun, told, feminine in words.RELATIVES:
        for owner, whose in words.OWNERS:
            named = f"{bend(owner, feminine=feminine, plural=False)}:1 {noun}:2 | {whose}:1"
            whole = fill(f"{named} {told}:2")
            owning = fill(f"de {named} {english.possessive(told)}:2")
            people.append(Who(whole, fill("a {who} | {who}", who=whole), owning))
    return tuple(people)


PEOPLE = _people()
PRONOUNS = tuple(Who(fill(name), EMPTY, EMPTY) for name in words.PRONOUNS)


class SpanishPhrases(SentenceGenerator):
    """Generates parts of sentences."""

    def _of(self, templates: Sequence[str]) -> Phrase:
        return fill(self.pick(templates))

    def _subject(self, named: float = 0.5) -> Subject:
        if not self.chance(named):
            return Subject(self.pick(words.DROPPED))
        return Subject("3s", self.pick(PRONOUNS if self.chance(0.3) else PEOPLE))

    def _other(self, subject: Subject) -> Who:
        """A person other than the subject."""
        return self.pick([who for who in PEOPLE if who != subject.who])

    def _clause(self, subject: Subject, template: str, rest: Phrase | None = None) -> Phrase:
        """Fill `{who}` and, if there is one, `{rest}`.

        A subject that Spanish drops is still told in English, by the verb: the word marked v.
        """
        slots = {} if rest is None else {"rest": rest}
        if subject.who is not None:
            return fill(template, who=subject.who.subject, **slots)
        source, target = template.split("|")
        told = target.replace("{who}", f"{english.PRONOUNS[subject.person]}:v")
        return fill(f"{source.replace('{who}', '')}|{told}", **slots)

    def _stated(self, subject: Subject, verb: Verb, rest: Phrase) -> Phrase:
        told = english.present(verb.english, subject.person)
        template = f"{{who}} {verb.form(subject.person)}:v {{rest}} | {{who}} {told}:v {{rest}}"
        return self._clause(subject, template, rest)

    def _negated(self, subject: Subject, verb: Verb, rest: Phrase) -> Phrase:
        does = english.do(subject.person)
        template = f"{{who}} no:n {verb.form(subject.person)}:v {{rest}} | {{who}} {does}:n not:n"
        return self._clause(subject, f"{template} {verb.english}:v {{rest}}", rest)

    def _asked(self, subject: Subject, verb: Verb, rest: Phrase) -> Phrase:
        does = english.do(subject.person)
        template = f"¿:q {{who}} {verb.form(subject.person)}:v {{rest}} ?:e | {does}:q {{who}}"
        return self._clause(subject, f"{template} {verb.english}:v {{rest}} ?:e", rest)

    def _seen(self, subject: Subject, verb: Verb) -> Phrase:
        told = english.present(verb.english, subject.person)
        template = f"{{who}} {{rest}} {verb.form(subject.person)}:v | {{who}} {told}:v {{rest}}"
        return self._clause(subject, template, self._clitic(subject))

    def _helped(self, helper: Verb, a: str) -> Phrase:
        subject, verb = self._subject(), self.pick(words.TO_DO)
        template = f"{{who}} {helper.form(subject.person)}:v {a} {verb.spanish}:i {{rest}}"
        template = f"{template} | {{who}} {helper.english}:v {verb.english}:i {{rest}}"
        return self._clause(subject, template, self._thing(verb).phrase)

    def _to(self, verb: Verb, *, counted: bool) -> Phrase:
        what = self._thing(verb, counted=counted).phrase
        return fill(f"{verb.spanish}:1 {{what}} | to:1 {verb.english}:1 {{what}}", what=what)

    def _clitic(self, subject: Subject) -> Phrase:
        """An object pronoun for another person; a third person may be different from the subject."""
        able = [
            (word, told)
            for word, told, person in words.CLITICS
            if person == "3" or person != subject.person[0]
        ]
        word, told = self.pick(able)
        return fill(f"{word}:1 | {told}:1")

    def _timed(self, clause: Phrase) -> Phrase:
        when = self._of(words.HABITS)
        return fill("{when} {clause} | {clause} {when}", when=when, clause=clause)

    def _thing(self, verb: Verb, *, counted: bool = True) -> Thing:
        """A thing for a verb; `counted` allows `un libro`, which is not used after `no`."""
        noun = self.pick(verb.things)
        if noun.mass:
            return self._some(noun) if self.chance(0.65) else self._mine(noun)
        kind = self.weighted(((3, "bare"), (7 if counted else 0, "counted"), (7, "definite")))
        if kind == "bare":
            return self._named("", "", noun, plural=True, adjective=False)
        return self._counted(noun) if kind == "counted" else self._definite(noun)

    def _definite(self, noun: Noun, *, adjective: bool = True) -> Thing:
        kinds = (
            (30, self._mine), (20, self._this), (20, self._the), (25, self._owned),
            (15, self._related),
        )  # fmt: skip
        return self.weighted(kinds)(noun, adjective=adjective)

    def _pleasing(self) -> Thing:
        if self.chance(0.12):
            noun = self.pick(words.MASS)
            return Thing(fill(f"{the(noun)} {noun.spanish}:1 | {noun.english}:1"))
        return self._definite(self.pick(words.COUNTABLE))

    def _named(self, word: str, told: str, noun: Noun, *, plural: bool, adjective: bool) -> Thing:
        """A noun after a determiner; `a` becomes `an` if the next English word requires it."""
        name = english.plural(noun.english) if plural else noun.english
        spanish = f"{noun.spanish}s" if plural else noun.spanish
        before, after, following = "", "", name
        if adjective:
            quality = self.pick(noun.adjectives)
            after = f"{bend(quality, feminine=noun.feminine, plural=plural)}:3"
            following = words.ADJECTIVES[quality]
            before = f"{following}:3"
        told = english.article(following) if told == "a" else told
        left, right = (f"{word}:1", f"{told}:1") if word else ("", "")
        return Thing(fill(f"{left} {spanish}:2 {after} | {right} {before} {name}:2"), plural)

    def _some(self, noun: Noun) -> Thing:
        adjective = bool(noun.adjectives) and self.chance(0.5)
        return self._named("", "", noun, plural=False, adjective=adjective)

    def _counted(self, noun: Noun) -> Thing:
        adjective = self.chance(0.5)
        if self.chance(0.4):
            one = "una" if noun.feminine else "un"
            return self._named(one, "a", noun, plural=False, adjective=adjective)
        return self._named(*self.pick(words.NUMBERS), noun, plural=True, adjective=adjective)

    def _mine(self, noun: Noun, *, adjective: bool = False) -> Thing:
        owner, told = self.pick(words.OWNERS)
        plural = not noun.mass and self.chance(0.4)
        word = bend(owner, feminine=noun.feminine, plural=plural)
        adjective = adjective and self.chance(0.5)
        return self._named(word, told, noun, plural=plural, adjective=adjective)

    def _this(self, noun: Noun, *, adjective: bool = False) -> Thing:
        plural = self.chance(0.4)
        singular, plurals = ("esta", "estas") if noun.feminine else ("este", "estos")
        word, told = (plurals, "these") if plural else (singular, "this")
        adjective = adjective and self.chance(0.5)
        return self._named(word, told, noun, plural=plural, adjective=adjective)

    def _the(self, noun: Noun, *, adjective: bool = False) -> Thing:
        plural = self.chance(0.4)
        adjective = adjective and self.chance(0.5)
        return self._named(
            the(noun, plural=plural), "the", noun, plural=plural, adjective=adjective
        )

    def _owned(self, noun: Noun, *, adjective: bool = False) -> Thing:
        """`la carta del médico`: the article has no counterpart in `the doctor's letter`."""
        template = f"{the(noun)} {noun.spanish}:1 {{owner}} | {{owner}} {noun.english}:1"
        return Thing(fill(template, owner=self.pick(PEOPLE).owner))

    def _related(self, noun: Noun, *, adjective: bool = False) -> Thing:
        """`la carta que (maría) lee`."""
        verbs = [verb for verb in words.OF_THINGS if noun in verb.things]
        subject, verb = self._subject(), self.pick(verbs)
        told = english.present(verb.english, subject.person)
        clause = self._clause(subject, f"{{who}} {verb.form(subject.person)}:v | {{who}} {told}:v")
        template = f"{the(noun)}:1 {noun.spanish}:2 que:3 {{clause}}"
        return Thing(fill(f"{template} | the:1 {noun.english}:2 that:3 {{clause}}", clause=clause))

"""Spanish sentences with English translations.

Adjectives follow the noun and agree with it, object pronouns precede the verb, the subject is omitted
if the verb form identifies it, and `no` alone negates a sentence.
"""

from collections.abc import Callable

from phrasebook import english
from phrasebook import spanish_words as words
from phrasebook.sentence_generator import Weighted
from phrasebook.spanish_phrases import SpanishPhrases, Subject, bend
from phrasebook.templates import Phrase, fill


class Spanish(SpanishPhrases):
    """Generates Spanish sentences."""

    def forms(self) -> Weighted[Callable[[], Phrase]]:
        """Return the forms; a weight is roughly the number of sentences of that form among 4,200."""
        return (
            (260, self.somewhere), (230, self.habit), (170, self.statement), (220, self.negation),
            (230, self.question), (130, self.person_seen), (120, self.person_not_seen),
            (120, self.person_asked), (220, self.clitic), (140, self.clitic_negated),
            (135, self.clitic_asked), (220, self.clitic_with_infinitive), (110, self.always),
            (100, self.clitic_somewhere), (45, self.who), (150, self.wish), (160, self.no_wish),
            (120, self.ability), (120, self.future), (190, self.tomorrow), (260, self.pleasure),
            (50, self.what), (40, self.what_wished), (40, self.whom), (35, self.where),
            (270, self.compared), (85, self.there_is), (140, self.lying), (300, self.quality),
        )  # fmt: skip

    def statement(self) -> Phrase:
        """`(maría) ve un coche`."""
        subject, verb = self._subject(), self.pick(words.OF_THINGS)
        return self._stated(subject, verb, self._thing(verb).phrase)

    def habit(self) -> Phrase:
        """`por la noche (maría) lee cartas`."""
        subject, verb = self._subject(), self.pick(words.TO_DO)
        clause = self._stated(subject, verb, self._thing(verb).phrase)
        return self._timed(clause)

    def somewhere(self) -> Phrase:
        """`hoy (maría) canta en el parque`."""
        verb = self.pick(words.INTRANSITIVE)
        return self._timed(self._stated(self._subject(), verb, self._of(words.PLACES)))

    def negation(self) -> Phrase:
        """`(maría) no ve libros`."""
        subject, verb = self._subject(), self.pick(words.OF_THINGS)
        return self._negated(subject, verb, self._thing(verb, counted=False).phrase)

    def question(self) -> Phrase:
        """`¿ (maría) ve un coche ?`."""
        subject, verb = self._subject(), self.pick(words.OF_THINGS)
        return self._asked(subject, verb, self._thing(verb).phrase)

    def person_seen(self) -> Phrase:
        """`(maría) ve a pedro`."""
        subject = self._subject(0.35)
        return self._stated(subject, self.pick(words.OF_PEOPLE), self._other(subject).object)

    def person_not_seen(self) -> Phrase:
        """`(maría) no ve a pedro`."""
        subject = self._subject(0.35)
        return self._negated(subject, self.pick(words.OF_PEOPLE), self._other(subject).object)

    def person_asked(self) -> Phrase:
        """`¿ (maría) ve a pedro ?`."""
        subject = self._subject(0.3)
        return self._asked(subject, self.pick(words.OF_PEOPLE), self._other(subject).object)

    def clitic(self) -> Phrase:
        """`(maría) te ve`."""
        return self._seen(self._subject(0.4), self.pick(words.OF_PEOPLE))

    def clitic_somewhere(self) -> Phrase:
        """`(maría) te ve en madrid`."""
        clause = self._seen(self._subject(0.35), self.pick(words.MEETING))
        place = self._of(words.PLACES)
        return fill("{clause} {place} | {clause} {place}", clause=clause, place=place)

    def clitic_negated(self) -> Phrase:
        """`(maría) no te ve`."""
        subject, verb = self._subject(), self.pick(words.OF_PEOPLE)
        does = english.do(subject.person)
        template = f"{{who}} no:n {{rest}} {verb.form(subject.person)}:v | {{who}} {does}:n not:n"
        return self._clause(subject, f"{template} {verb.english}:v {{rest}}", self._clitic(subject))

    def clitic_asked(self) -> Phrase:
        """`¿ (maría) te ve ?`."""
        subject, verb = self._subject(), self.pick(words.OF_PEOPLE)
        does = english.do(subject.person)
        template = f"¿:q {{who}} {{rest}} {verb.form(subject.person)}:v ?:e | {does}:q {{who}}"
        whom = self._clitic(subject)
        return self._clause(subject, f"{template} {verb.english}:v {{rest}} ?:e", whom)

    def clitic_with_infinitive(self) -> Phrase:
        """`(maría) te puede ver`, `(maría) te va a ver`."""
        subject, verb = self._subject(), self.pick(words.OF_PEOPLE)
        helper, a = self.pick(((words.CAN, ""), (words.WILL, "a")))
        template = f"{{who}} {{rest}} {helper.form(subject.person)}:v {a} {verb.spanish}:i"
        template = f"{template} | {{who}} {helper.english}:v {verb.english}:i {{rest}}"
        return self._clause(subject, template, self._clitic(subject))

    def always(self) -> Phrase:
        """`(maría) siempre te ve`."""
        subject, verb = self._subject(), self.pick(words.OF_PEOPLE)
        told = english.present(verb.english, subject.person)
        template = f"{{who}} siempre:s {{rest}} {verb.form(subject.person)}:v | {{who}} always:s"
        return self._clause(subject, f"{template} {told}:v {{rest}}", self._clitic(subject))

    def who(self) -> Phrase:
        """`¿ quién te ve ?`."""
        verb = self.pick(words.OF_PEOPLE)
        template = f"¿ quién:1 {{rest}} {verb.form('3s')}:2 ?:3 | who:1"
        told = f"{english.present(verb.english, '3s')}:2 {{rest}} ?:3"
        return fill(f"{template} {told}", rest=self._clitic(Subject("3s")))

    def wish(self) -> Phrase:
        """`(maría) quiere leer un libro`."""
        subject, verb = self._subject(), self.pick(words.TO_DO)
        return self._stated(subject, words.WANT, self._to(verb, counted=True))

    def no_wish(self) -> Phrase:
        """`(maría) no quiere leer libros`."""
        subject, verb = self._subject(), self.pick(words.TO_DO)
        return self._negated(subject, words.WANT, self._to(verb, counted=False))

    def ability(self) -> Phrase:
        """`(maría) puede leer un libro`."""
        return self._helped(words.CAN, "")

    def future(self) -> Phrase:
        """`(maría) va a leer un libro`."""
        return self._helped(words.WILL, "a")

    def tomorrow(self) -> Phrase:
        """`mañana (maría) va a leer un libro`."""
        return fill("mañana:1 {clause} | {clause} tomorrow:1", clause=self.future())

    def pleasure(self) -> Phrase:
        """`me gusta el libro`, `no me gusta el libro`, `¿ te gusta el libro ?`."""
        liker, person = self.pick(words.LIKERS)
        thing = self._pleasing()
        gusta = "gustan:l" if thing.plural else "gusta:l"
        they = english.PRONOUNS[person]
        forms = (
            f"{liker}:w {gusta} {{what}} | {they}:w like:l {{what}}",
            f"no:n {liker}:w {gusta} {{what}} | {they}:w do:n not:n like:l {{what}}",
            f"¿:q {liker}:w {gusta} {{what}} ?:e | do:q {they}:w like:l {{what}} ?:e",
        )
        return fill(self.pick(forms), what=thing.phrase)

    def what(self) -> Phrase:
        """`¿ qué ve (maría) ?`."""
        subject, verb = self._subject(), self.pick(words.OF_THINGS)
        does = english.do(subject.person)
        template = f"¿ qué:q {verb.form(subject.person)}:v {{who}} ?:e | what:q {does}:v {{who}}"
        return self._clause(subject, f"{template} {verb.english}:v ?:e")

    def what_wished(self) -> Phrase:
        """`¿ qué quiere leer (maría) ?`."""
        subject, verb = self._subject(), self.pick(words.TO_DO)
        form, does = words.WANT.form(subject.person), english.do(subject.person)
        template = f"¿ qué:q {form}:v {verb.spanish}:i {{who}} ?:e | what:q {does}:v {{who}}"
        return self._clause(subject, f"{template} want:v to:i {verb.english}:i ?:e")

    def whom(self) -> Phrase:
        """`¿ a quién ve (maría) ?`."""
        subject, verb = self._subject(), self.pick(words.OF_PEOPLE)
        does = english.do(subject.person)
        template = f"¿ a quién:q {verb.form(subject.person)}:v {{who}} ?:e | who:q {does}:v {{who}}"
        return self._clause(subject, f"{template} {verb.english}:v ?:e")

    def where(self) -> Phrase:
        """`¿ dónde canta (maría) ?`."""
        subject, verb = self._subject(), self.pick(words.INTRANSITIVE)
        does = english.do(subject.person)
        template = f"¿ dónde:q {verb.form(subject.person)}:v {{who}} ?:e | where:q {does}:v {{who}}"
        return self._clause(subject, f"{template} {verb.english}:v ?:e")

    def compared(self) -> Phrase:
        """`mi casa es más cara que la casa de pedro`."""
        noun = self.pick(words.COUNTABLE)
        kinds = ((50, self._mine), (20, self._this), (20, self._the), (10, self._related))
        one = self.weighted(kinds)(noun, adjective=False)
        able = ("caro", "interesante") if "interesante" in noun.adjectives else ("caro",)
        quality = self.pick(able)
        form = bend(quality, feminine=noun.feminine, plural=one.plural)
        be, told = ("son", "are") if one.plural else ("es", "is")
        return fill(
            f"{{one}} {be}:1 más:2 {form}:3 que:4 {{other}} | "
            f"{{one}} {told}:1 more:2 {words.ADJECTIVES[quality]}:3 than:4 {{other}}",
            one=one.phrase,
            other=self._owned(noun).phrase,
        )

    def there_is(self) -> Phrase:
        """`hay un gato blanco en la silla`."""
        thing = self._counted(self.pick(words.SMALL))
        be = "are" if thing.plural else "is"
        template = f"hay:1 {{what}} {{spot}} | there:1 {be}:1 {{what}} {{spot}}"
        return fill(template, what=thing.phrase, spot=self._of(words.SPOTS))

    def lying(self) -> Phrase:
        """`la carta de pedro está en la mesa`."""
        thing = self._definite(self.pick(words.SMALL))
        be, told = ("están", "are") if thing.plural else ("está", "is")
        template = f"{{what}} {be}:1 {{spot}} | {{what}} {told}:1 {{spot}}"
        return fill(template, what=thing.phrase, spot=self._of(words.SPOTS))

    def quality(self) -> Phrase:
        """`mi casa es blanca`, `mi casa no es blanca`, `¿ es blanca mi casa ?`."""
        noun = self.pick(words.COUNTABLE)
        thing = self._definite(noun, adjective=False)
        adjective = self.pick(noun.adjectives)
        form = bend(adjective, feminine=noun.feminine, plural=thing.plural)
        told = words.ADJECTIVES[adjective]
        be, is_ = ("son", "are") if thing.plural else ("es", "is")
        forms = (
            f"{{what}} {be}:1 {form}:2 | {{what}} {is_}:1 {told}:2",
            f"{{what}} no:3 {be}:1 {form}:2 | {{what}} {is_}:1 not:3 {told}:2",
            f"¿ {be}:1 {form}:2 {{what}} ?:3 | {is_}:1 {{what}} {told}:2 ?:3",
        )
        return fill(self.pick(forms), what=thing.phrase)

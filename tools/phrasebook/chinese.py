"""Chinese sentences with English translations.

Time and place precede the verb, 的 joins an owner or a whole clause to a noun, nouns are counted
with measure words, and 吗 marks a question; verbs are never inflected.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from phrasebook import chinese_words as words
from phrasebook import english
from phrasebook.chinese_words import Noun, Verb
from phrasebook.english import Person
from phrasebook.sentence_generator import SentenceGenerator, Weighted
from phrasebook.templates import EMPTY, Phrase, fill


@dataclass(frozen=True, slots=True)
class Who:
    """A person, as agent, patient and owner."""

    subject: Phrase
    object: Phrase
    owner: Phrase
    person: Person = "3s"

    @property
    def party(self) -> str:
        """The same for two persons if one includes the other: i and we."""
        return self.person[0] if self.person[0] != "3" else " ".join(self.subject.source)


def _named(name: Phrase) -> Who:
    """A person with a name; 的 and the name both become the English possessive."""
    last = len(name.target) - 1
    owner = Phrase(
        (*name.source, "的"),
        (*name.target[:-1], english.possessive(name.target[-1])),
        name.links | {(len(name.source), last)},
    )
    return Who(name, name, owner)


def _pronoun(chinese: str, person: Person, subject: str, whom: str, whose: str) -> Who:
    return Who(
        fill(f"{chinese}:1 | {subject}:1"),
        fill(f"{chinese}:1 | {whom}:1"),
        fill(f"{chinese}:1 的:1 | {whose}:1"),
        person,
    )


PEOPLE = (
    *(_pronoun(*pronoun) for pronoun in words.PRONOUNS),
    *(_named(fill(name)) for name in words.NAMES),
)
RELATIVES = tuple(
    _named(fill("{owner} {relative} | {owner} {relative}", owner=who.owner, relative=fill(name)))
    for who in PEOPLE
    for name in words.RELATIVES
)
THIRD = "3s"


class Chinese(SentenceGenerator):
    """Generates Chinese sentences."""

    def forms(self) -> Weighted[Callable[[], Phrase]]:
        """Return the forms; a weight is roughly the number of sentences of that form among 4,200."""
        return (
            (550, self.statement), (240, self.negation), (250, self.question),
            (270, self.habit), (70, self.done_somewhere), (270, self.somewhere),
            (170, self.wish), (170, self.no_wish), (170, self.ability), (180, self.ability_asked),
            (380, self.yesterday), (180, self.not_yesterday), (160, self.tomorrow),
            (100, self.what_or_whom), (100, self.who), (110, self.where),
            (110, self.people_compared), (160, self.things_compared),
            (155, self.lying), (100, self.there_is), (370, self.quality),
        )  # fmt: skip

    def statement(self) -> Phrase:
        """`老师 爱 音乐`."""
        who = self._who()
        does = self._does(words.STATES if self.chance(0.6) else words.ACTIONS, who)
        return fill("{who} {does} | {who} {does}", who=who.subject, does=does)

    def negation(self) -> Phrase:
        """`老师 不 爱 音乐`."""
        who = self._who()
        template = f"{{who}} 不:1 {{does}} | {{who}} {english.do(who.person)}:1 not:1 {{does}}"
        return fill(template, who=who.subject, does=self._do(words.STATES, who))

    def question(self) -> Phrase:
        """`老师 爱 音乐 吗 ?`."""
        who = self._who()
        template = f"{{who}} {{does}} 吗:1 ?:2 | {english.do(who.person)}:1 {{who}} {{does}} ?:2"
        return fill(template, who=who.subject, does=self._do(words.STATES, who))

    def habit(self) -> Phrase:
        """`老师 每天 喝 茶`."""
        who = self._who()
        template = "{who} {when} {does} | {who} {does} {when}"
        return fill(
            template,
            who=who.subject,
            when=self._of(words.HABITS),
            does=self._does(words.ACTIONS, who),
        )

    def done_somewhere(self) -> Phrase:
        """`老师 早上 在 学校 读 小说`."""
        who = self._who()
        does = self._does((words.READ, words.STUDY, words.MEET), who)
        return self._placed(who, does, 0.7)

    def somewhere(self) -> Phrase:
        """`老师 晚上 在 公园 跑步`."""
        who = self._who()
        chinese, verb = self.pick(words.INTRANSITIVE)
        does = fill(f"{chinese}:1 | {english.present(verb, who.person)}:1")
        return self._placed(who, does, 0.75)

    def wish(self) -> Phrase:
        """`老师 想 买 一 本 书`."""
        who = self._who()
        template = (
            f"{{who}} 想:1 {{do}} | {{who}} {english.present('want', who.person)}:1 to:1 {{do}}"
        )
        return fill(template, who=who.subject, do=self._do(words.ACTIONS, who, counted=True))

    def no_wish(self) -> Phrase:
        """`老师 不 想 买 书`."""
        who = self._who()
        does = english.do(who.person)
        template = f"{{who}} 不:1 想:2 {{do}} | {{who}} {does}:1 not:1 want:2 to:2 {{do}}"
        return fill(template, who=who.subject, do=self._do(words.ACTIONS, who))

    def ability(self) -> Phrase:
        """`老师 能 买 一 本 书`."""
        who = self._who()
        do = self._do(words.ACTIONS, who, counted=True)
        return fill("{who} 能:1 {do} | {who} can:1 {do}", who=who.subject, do=do)

    def ability_asked(self) -> Phrase:
        """`老师 能 买 一 本 书 吗 ?`."""
        who = self._who()
        do = self._do(words.ACTIONS, who, counted=True)
        return fill("{who} 能:1 {do} 吗 ?:2 | can:1 {who} {do} ?:2", who=who.subject, do=do)

    def yesterday(self) -> Phrase:
        """`老师 昨天 买 了 一 本 书`."""
        who, verb = self._who(), self.pick(words.ACTIONS)
        done = f"{verb.chinese}:2 了 {{what}} | {{who}} {english.past(verb.english)}:2 {{what}}"
        template = f"{{who}} 昨天:1 {done} yesterday:1"
        return fill(template, who=who.subject, what=self._object(verb, who, counted=True))

    def not_yesterday(self) -> Phrase:
        """`老师 昨天 没 买 书`."""
        who = self._who()
        template = "{who} 昨天:1 没:2 {do} | {who} did:2 not:2 {do} yesterday:1"
        return fill(template, who=who.subject, do=self._do(words.ACTIONS, who))

    def tomorrow(self) -> Phrase:
        """`老师 明天 会 买 一 本 书`."""
        who = self._who()
        template = "{who} 明天:1 会:2 {do} | {who} will:2 {do} tomorrow:1"
        return fill(template, who=who.subject, do=self._do(words.ACTIONS, who, counted=True))

    def what_or_whom(self) -> Phrase:
        """`老师 喝 什么 ?`."""
        who, verb = self._who(), self.pick(words.COMMANDS)
        what = verb.things or verb.fields
        if what and verb.people:
            what = self.chance(0.5)
        asked = "什么:1 ?:3 | what:1" if what else "谁:1 ?:3 | who:1"
        template = f"{{who}} {verb.chinese}:2 {asked} {english.do(who.person)}:2 {{who}}"
        return fill(f"{template} {verb.english}:2 ?:3", who=who.subject)

    def who(self) -> Phrase:
        """`谁 喝 茶 ?`."""
        does = self._does(words.COMMANDS, None)
        return fill("谁:1 {does} ?:2 | who:1 {does} ?:2", does=does)

    def where(self) -> Phrase:
        """`老师 在 哪儿 工作 ?`."""
        who = self._who()
        chinese, verb = self.pick(words.INTRANSITIVE)
        asked = f"{english.do(who.person)}:2 {{who}} {verb}:2 ?:3"
        return fill(f"{{who}} 在 哪儿:1 {chinese}:2 ?:3 | where:1 {asked}", who=who.subject)

    def people_compared(self) -> Phrase:
        """`老师 比 我 高`."""
        one = self._who()
        return self._compared(
            one.subject, self._other(one).object, one.person, words.OF_PEOPLE_COMPARED
        )

    def things_compared(self) -> Phrase:
        """`老师 的 车 比 我 的 车 新`."""
        noun, one = self.pick((*words.LASTING, words.MOVIE)), self._who(0.15)
        other = self.pick([who for who in PEOPLE if who.owner != one.owner])
        return self._compared(
            self._owned(one, noun), self._owned(other, noun), THIRD, words.OF_THINGS
        )

    def lying(self) -> Phrase:
        """`老师 的 书 在 桌子 上`."""
        noun = self.pick(words.SMALL)
        makers = ((55, self._someones), (27, self._related), (18, self._this))
        return fill(
            "{what} 在:1 {spot} | {what} is:1 {spot}",
            what=self.weighted(makers)(noun),
            spot=self._of(words.SPOTS),
        )

    def there_is(self) -> Phrase:
        """`桌子 上 有 两 本 旧 书`."""
        noun, count = self.pick(words.SMALL), self.pick(words.COUNTS)
        be = "is" if count == words.COUNTS[0] else "are"
        return fill(
            f"{{spot}} 有:1 {{what}} | there:1 {be}:1 {{what}} {{spot}}",
            what=self._counted(noun, count),
            spot=self._of(words.SPOTS),
        )

    def quality(self) -> Phrase:
        """`老师 很 忙`, `那 本 书 不 贵`, `你 累 吗 ?`."""
        adjectives, person, what = words.OF_THINGS, THIRD, EMPTY
        noun = self.pick((*words.LASTING, words.MOVIE))
        kind = self.weighted(((38, "who"), (31, "someones"), (15, "this"), (16, "related")))
        if kind == "who":
            who = self._who()
            adjectives, person, what = words.OF_PEOPLE, who.person, who.subject
        else:
            makers = {"someones": self._someones, "this": self._this, "related": self._related}
            what = makers[kind](noun)
        chinese, quality = self.pick(adjectives)
        be = english.be(person)
        forms = (
            f"{{what}} 很:1 {chinese}:2 | {{what}} {be}:1 {quality}:2",
            f"{{what}} 不:1 {chinese}:2 | {{what}} {be}:1 not:1 {quality}:2",
            f"{{what}} {chinese}:2 吗:1 ?:3 | {be}:1 {{what}} {quality}:2 ?:3",
        )
        return fill(self.pick(forms), what=what)

    def _of(self, templates: Sequence[str]) -> Phrase:
        return fill(self.pick(templates))

    def _who(self, relatives: float = 0.4) -> Who:
        return self.pick(RELATIVES if self.chance(relatives) else PEOPLE)

    def _other(self, first: Who | None) -> Who:
        """A person other than the subject: there are no reflexive sentences."""
        people = RELATIVES if self.chance(0.35) else PEOPLE
        return self.pick([who for who in people if first is None or who.party != first.party])

    def _placed(self, who: Who, does: Phrase, habit: float) -> Phrase:
        when = self._of(words.HABITS) if self.chance(habit) else EMPTY
        template = "{who} {when} {where} {does} | {who} {does} {where} {when}"
        return fill(template, who=who.subject, when=when, where=self._of(words.PLACES), does=does)

    def _compared(
        self, one: Phrase, other: Phrase, person: Person, adjectives: Sequence[tuple[str, str]]
    ) -> Phrase:
        chinese, quality = self.pick(adjectives)
        degree = " ".join(f"{word}:2" for word in english.comparative(quality).split())
        template = f"{{one}} 比:1 {{other}} {chinese}:2 | {{one}} {english.be(person)}:2"
        return fill(f"{template} {degree} than:1 {{other}}", one=one, other=other)

    def _does(self, verbs: Sequence[Verb], who: Who | None) -> Phrase:
        """A verb in the present tense, agreeing with its subject, and its object."""
        verb = self.pick(verbs)
        form = english.present(verb.english, who.person if who else THIRD)
        what = self._object(verb, who)
        return fill(f"{verb.chinese}:1 {{what}} | {form}:1 {{what}}", what=what)

    def _do(self, verbs: Sequence[Verb], who: Who, *, counted: bool = False) -> Phrase:
        """A bare verb and its object."""
        verb = self.pick(verbs)
        what = self._object(verb, who, counted=counted)
        return fill(f"{verb.chinese}:1 {{what}} | {verb.english}:1 {{what}}", what=what)

    def _object(self, verb: Verb, who: Who | None, *, counted: bool = False) -> Phrase:
        kinds = ((verb.people, "people"), (verb.fields, "fields"), (bool(verb.things), "things"))
        match self.pick([kind for able, kind in kinds if able]):
            case "people":
                return self._other(who).object
            case "fields":
                return self._of(words.FIELDS)
            case _:
                return self._thing(self.pick(verb.things), counted=counted)

    def _thing(self, noun: Noun, *, counted: bool) -> Phrase:
        if noun.mass:
            return self.weighted(
                (
                    (2, self._bare),
                    (2 if noun.measure else 0, self._hot),
                    (2, self._someones),
                    (3 if counted and noun.measure else 0, self._cups),
                )
            )(noun)
        if counted and self.chance(0.5):
            return self._counted(noun, self.pick(words.COUNTS))
        bare = 0 if counted else 3
        return self.weighted(
            ((bare, self._bare), (3, self._someones), (2, self._this), (1, self._related))
        )(noun)

    def _bare(self, noun: Noun) -> Phrase:
        name = noun.english if noun.mass else english.plural(noun.english)
        return fill(f"{noun.chinese}:1 | {name}:1")

    def _hot(self, noun: Noun) -> Phrase:
        hot, name = words.HOT
        return fill(f"{hot}:1 {noun.chinese}:2 | {name}:1 {noun.english}:2")

    def _someones(self, noun: Noun) -> Phrase:
        return self._owned(self._who(0.3), noun)

    def _owned(self, who: Who, noun: Noun) -> Phrase:
        template = f"{{owner}} {noun.chinese}:1 | {{owner}} {noun.english}:1"
        return fill(template, owner=who.owner)

    def _this(self, noun: Noun) -> Phrase:
        chinese, name = self.pick(words.THIS)
        return fill(f"{chinese}:1 {noun.measure} {noun.chinese}:2 | {name}:1 {noun.english}:2")

    def _related(self, noun: Noun) -> Phrase:
        """`医生 买 的 书`: the book that the doctor bought."""
        who = self.pick(PEOPLE)
        verbs = (words.LIKE,) if noun == words.MOVIE else (words.BUY, words.SELL, words.LIKE)
        verb = self.pick(verbs)
        form = (
            english.present(verb.english, who.person) if verb.state else english.past(verb.english)
        )
        template = f"{{who}} {verb.chinese}:1 的:2 {noun.chinese}:3"
        return fill(f"{template} | the:3 {noun.english}:3 that:2 {{who}} {form}:1", who=who.subject)

    def _counted(self, noun: Noun, count: tuple[str, str]) -> Phrase:
        chinese, number = count
        name = noun.english if number == "a" else english.plural(noun.english)
        quality = self.pick(noun.adjectives) if self.chance(0.6) else ""
        marked = " ".join(f"{word}:2" for word in quality.split())
        adjective = words.ADJECTIVES.get(quality, "")
        number = english.article(adjective or name) if number == "a" else number
        told = f"{adjective}:2 {name}:3" if adjective else f"{name}:3"
        return fill(f"{chinese}:1 {noun.measure} {marked} {noun.chinese}:3 | {number}:1 {told}")

    def _cups(self, noun: Noun) -> Phrase:
        chinese, number = self.pick(words.COUNTS)
        cup = "cup" if number == "a" else "cups"
        template = f"{chinese}:1 {noun.measure}:2 {noun.chinese}:3 | {number}:1 {cup}:2 of:2"
        return fill(f"{template} {noun.english}:3")

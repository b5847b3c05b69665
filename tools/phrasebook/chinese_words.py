"""The Chinese words in the phrasebook with English translations."""

from dataclasses import dataclass

from phrasebook.english import Person

PRONOUNS: tuple[tuple[str, Person, str, str, str], ...] = (
    ("我", "1s", "i", "me", "my"),
    ("你", "2s", "you", "you", "your"),
    ("他", "3s", "he", "him", "his"),
    ("她", "3s", "she", "her", "her"),
    ("我们", "1p", "we", "us", "our"),
    ("他们", "3p", "they", "them", "their"),
)
"""Chinese, person, and the English subject, object and owner."""

NAMES = ("玛丽:1 | mary:1", "老师:1 | the:1 teacher:1", "医生:1 | the:1 doctor:1")
RELATIVES = ("妈妈:1 | mother:1", "爸爸:1 | father:1", "朋友:1 | friend:1", "妹妹:1 | sister:1")

FIELDS = (
    "机器:1 学习:2 | machine:1 learning:2",
    "深度:1 学习:2 | deep:1 learning:2",
    "人工:1 智能:2 | artificial:1 intelligence:2",
    "量子:1 物理:2 | quantum:1 physics:2",
    "计算机:1 科学:2 | computer:1 science:2",
    "中国:1 历史:2 | chinese:1 history:2",
    "数学:1 | math:1",
    "英语:1 | english:1",
    "音乐:1 | music:1",
)
"""What people study, teach and understand."""

PLACES = (
    "在:1 学校:2 | at:1 school:2",
    "在:1 家:2 | at:1 home:2",
    "在:1 北京:2 | in:1 beijing:2",
    "在:1 公园:2 | in:1 the:2 park:2",
    "在:1 图书馆:2 | in:1 the:2 library:2",
)
"""Where something is done."""

SPOTS = (
    "桌子:1 上:2 | on:2 the:1 table:1",
    "盒子:1 里:2 | in:2 the:1 box:1",
    "房子:1 里:2 | in:2 the:1 house:1",
)
"""Where a thing is."""

HABITS = (
    "早上:1 | in:1 the:1 morning:1",
    "晚上:1 | in:1 the:1 evening:1",
    "每天:1 | every:1 day:1",
)
"""When something is done regularly."""

THIS = (("这", "this"), ("那", "that"))
COUNTS = (("一", "a"), ("两", "two"), ("三", "three"))
INTRANSITIVE = (
    ("工作", "work"), ("睡觉", "sleep"), ("跑步", "run"), ("跳舞", "dance"), ("唱歌", "sing"),
)  # fmt: skip

HOT = ("热", "hot")
ADJECTIVES = {"新": "new", "旧": "old", "大": "big", "小": "small", "有趣 的": "interesting"}
"""Adjectives before a noun; the longer ones are followed by 的."""

OF_PEOPLE = (("高", "tall"), ("忙", "busy"), ("高兴", "happy"), ("累", "tired"))
OF_PEOPLE_COMPARED = OF_PEOPLE[:3]
OF_THINGS = (("新", "new"), ("旧", "old"), ("贵", "expensive"), ("便宜", "cheap"))


@dataclass(frozen=True, slots=True)
class Noun:
    """A thing, the measure word that it is counted with, and adjectives that suit it."""

    chinese: str
    english: str
    measure: str
    adjectives: tuple[str, ...] = ()
    mass: bool = False
    """Has no plural: tea, rice."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb and its possible objects."""

    chinese: str
    english: str
    things: tuple[Noun, ...] = ()
    people: bool = False
    fields: bool = False
    state: bool = False
    """Whether the verb denotes a state, such as to know: not used with yesterday or every morning."""


BOOK = Noun("书", "book", "本", ("新", "旧", "有趣 的"))
NOVEL = Noun("小说", "novel", "本", ("新", "旧", "有趣 的"))
NEWSPAPER = Noun("报纸", "newspaper", "份", ("旧", "有趣 的"))
MOVIE = Noun("电影", "movie", "部", ("新", "旧", "有趣 的"))
PHONE = Noun("手机", "phone", "部", ("新", "旧"))
CAR = Noun("车", "car", "辆", ("新", "旧", "大", "小"))
CHAIR = Noun("椅子", "chair", "把", ("新", "旧", "大", "小"))
APPLE = Noun("苹果", "apple", "个", ("大", "小"))
EGG = Noun("鸡蛋", "egg", "个", ("大", "小"))
TEA = Noun("茶", "tea", "杯", mass=True)
COFFEE = Noun("咖啡", "coffee", "杯", mass=True)
MILK = Noun("牛奶", "milk", "杯", mass=True)
BREAD = Noun("面包", "bread", "", mass=True)
RICE = Noun("米饭", "rice", "", mass=True)

LASTING = (BOOK, NOVEL, NEWSPAPER, PHONE, CAR, CHAIR)
"""Things to find, which can be old or new."""
SMALL = (BOOK, NOVEL, NEWSPAPER, PHONE, APPLE, EGG)
"""Things that can be on a table or in a box."""
DRINKS = (TEA, COFFEE, MILK)
FOOD = (APPLE, EGG, BREAD, RICE)
GOODS = (*LASTING, *DRINKS, *FOOD)

BUY, SELL = Verb("买", "buy", GOODS), Verb("卖", "sell", GOODS)
LIKE = Verb("喜欢", "like", (*GOODS, MOVIE), people=True, fields=True, state=True)
READ = Verb("读", "read", (BOOK, NOVEL, NEWSPAPER))
STUDY = Verb("学", "study", fields=True)
MEET = Verb("见", "meet", people=True)
COMMANDS = (
    BUY, SELL, LIKE, READ, STUDY, MEET,
    Verb("爱", "love", people=True, fields=True, state=True),
    Verb("懂", "understand", fields=True, state=True),
    Verb("认识", "know", people=True, state=True),
    Verb("教", "teach", fields=True),
    Verb("帮助", "help", people=True),
    Verb("找到", "find", LASTING, people=True),
    Verb("看", "watch", (MOVIE,)),
    Verb("吃", "eat", FOOD),
    Verb("喝", "drink", DRINKS),
)  # fmt: skip
STATES = tuple(verb for verb in COMMANDS if verb.state)
ACTIONS = tuple(verb for verb in COMMANDS if not verb.state)

import json
import pickle
import unicodedata
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from regard.config import TextConfig, Unit
from regard.errors import ConfigError, DataError, FolderError
from regard.text import (
    BOS,
    EOS,
    PAD,
    SPECIAL_TOKENS,
    UNK,
    Encoding,
    Tokenizer,
    choose_unit,
    format_source,
)
from regard.text.matching import match_tokens

UNITS = [unit for unit in get_args(Unit) if unit != "auto"]
SUBWORDS = ["bpe", "unigram"]
SENTENCES = [
    "Yo lo sé.",
    "¿Lo sé yo?",
    "No lo sé, yo no lo sé.",
    "¡Ya lo sé! Ya lo sabe él.",
    "Él lo sabe todo y yo lo sé.",
    "l'homme don't well-known",
]
TOKENIZERS = {
    unit: Tokenizer.train(SENTENCES, TextConfig(unit=unit, vocabulary_size=60)) for unit in UNITS
}
SPELLINGS = "<pad> <unk> <s> </s> [UNK] ▁ ‿ ▁▁ ‿‿ x‿y ‿́ ▁́ .‿ 👩‍👧❤️ कि_क \u200d"
any_text = st.text() | st.lists(st.sampled_from("aé.,'-¿ ▁‿_<>\u0301"), max_size=12).map("".join)
spaced_once = any_text.map(lambda text: " ".join(text.split()))


def train(texts: Sequence[str], **settings: Any) -> Tokenizer:
    return Tokenizer.train(texts, TextConfig(**settings))


@pytest.mark.parametrize("unit", UNITS)
@given(text=spaced_once)
@example(text=SPELLINGS)
def test_tokens_join_to_the_text_they_came_from(unit: Unit, text: str) -> None:
    tokenizer = TOKENIZERS[unit]
    encoding = tokenizer.encode(text)
    assert tokenizer.detokenize(encoding.tokens) == " ".join(tokenizer.normalize(text).split())
    assert len(encoding.ids) == len(encoding.tokens)
    assert not {PAD, BOS, EOS} & set(encoding.ids)


@pytest.mark.parametrize("unit", ["char", "grapheme", *SUBWORDS])
@given(text=any_text)
@example(text="  a  b\t c\u00a0d\r\n ")
def test_char_grapheme_and_subword_units_keep_every_inner_space(unit: Unit, text: str) -> None:
    tokenizer = TOKENIZERS[unit]
    expected = tokenizer.normalize(text)
    if unit in SUBWORDS:  # no other whitespace is in their vocabulary
        expected = "".join(" " if character.isspace() else character for character in expected)
    (encoding,) = tokenizer.encode_batch([text], outer_spaces=True)
    assert tokenizer.detokenize(encoding.tokens) == expected
    assert tokenizer.detokenize(tokenizer.encode(text).tokens) == expected.strip()


@pytest.mark.parametrize("unit", UNITS)
def test_whitespace_around_a_text_is_no_part_of_it(unit: Unit) -> None:
    tokenizer = TOKENIZERS[unit]
    assert tokenizer.encode("\u3000\t lo sé \u00a0\u2028") == tokenizer.encode("lo sé")


@pytest.mark.parametrize("unit", SUBWORDS)
def test_subwords_take_unknown_whitespace_for_a_space(unit: Unit) -> None:
    assert TOKENIZERS[unit].encode("lo\u00a0sé\ttodo") == TOKENIZERS[unit].encode("lo sé todo")
    known = train(["lo\u00a0sé"] * 9 + SENTENCES, unit=unit)
    assert "\u00a0" in known.encode("lo\u00a0sé").tokens
    assert known.encode("lo\u00a0sé").unknown == []


@pytest.mark.parametrize("unit", ["word", *SUBWORDS])
@given(text=any_text)
@example(text="a\x1cb c")
@example(text=SPELLINGS)
def test_word_ids_count_the_whitespace_words_of_the_text(unit: Unit, text: str) -> None:
    tokenizer = TOKENIZERS[unit]
    tokens = tokenizer.encode(text).tokens
    numbers = tokenizer.word_ids(tokens)
    joined = tokenizer.detokenize(tokens)
    assert len(numbers) == len(tokens)
    for number, word in enumerate(joined.split()):
        part = [token for token, own in zip(tokens, numbers, strict=True) if own == number]
        assert tokenizer.detokenize(part).strip() == word
    assert {number for number in numbers if number is not None} == set(range(len(joined.split())))


@pytest.mark.parametrize("unit", UNITS)
@given(ids=st.lists(st.integers(0, 29)))
def test_decode_omits_special_tokens_but_unk(unit: Unit, ids: list[int]) -> None:
    tokenizer = TOKENIZERS[unit]
    ids = [id for id in ids if id < len(tokenizer)]
    ordinary_ids = [id for id in ids if id not in (PAD, BOS, EOS)]
    assert tokenizer.decode(ids) == tokenizer.detokenize(tokenizer.ids_to_tokens(ordinary_ids))
    assert len(tokenizer.word_ids(tokenizer.ids_to_tokens(ids))) == len(ids)


@pytest.mark.parametrize("unit", UNITS)
def test_known_text_round_trips_through_ids(unit: Unit) -> None:
    tokenizer = train(SENTENCES, unit=unit)
    for sentence, encoding in zip(SENTENCES, tokenizer.encode_batch(SENTENCES), strict=True):
        assert not encoding.unknown
        assert tokenizer.ids_to_tokens(encoding.ids) == encoding.tokens
        assert tokenizer.decode([BOS, *encoding.ids, EOS, PAD]) == sentence


@pytest.mark.parametrize("unit", UNITS)
def test_text_that_spells_a_special_token_is_ordinary_text(unit: Unit) -> None:
    tokenizer = train([SPELLINGS] * 3, unit=unit)
    encoding = tokenizer.encode(SPELLINGS)
    assert min(encoding.ids) >= len(SPECIAL_TOKENS)
    assert tokenizer.decode(encoding.ids) == unicodedata.normalize("NFC", SPELLINGS)


@pytest.mark.parametrize(
    ("unit", "text", "tokens"),
    [
        ("char", "कि a", ["क", "ि", " ", "a"]),
        ("grapheme", "t͡ʃकि 👩‍👧", ["t͡", "ʃ", "कि", " ", "👩‍👧"]),
        ("whitespace", "AA  N t͡ʃ. K", ["AA", "N", "t͡ʃ.", "K"]),
        ("word", "¿Qué? Lo sé.", ["¿‿", "Qué", "‿?", "Lo", "sé", "‿."]),
        ("word", "lo sé .", ["lo", "sé", "."]),
        ("word", 'I don’t: "a--b" (x).', ["I", "don’t", "‿:", '"‿', "a", "‿-", "‿-‿", "b", "‿\"", "(‿", "x", "‿)", "‿."]),
        ("word", "l'homme well-known col·lega कि", ["l'homme", "well-known", "col·lega", "कि"]),
        ("word", "a‿b ‿ ▁", ["a", "‿‿", "‿b", "‿", "▁"]),
    ],
)  # fmt: skip
def test_tokens_of_each_unit(unit: Unit, text: str, tokens: list[str]) -> None:
    assert TOKENIZERS[unit].encode(text).tokens == tokens


@pytest.mark.parametrize("unit", SUBWORDS)
def test_subwords_stay_within_words_and_punctuation(unit: Unit) -> None:
    stems = ["cant", "habl", "and", "salt", "mir"]
    texts = [f"¿{stem}amos? ¡{stem}ando, {stem}ar!" for stem in stems] * 9
    tokenizer = train(texts, unit=unit)
    encoding = tokenizer.encode("¡mirar! ▁")
    assert len(encoding.tokens) < len("▁¡mirar!▁▁")
    assert encoding.tokens[-1] == "▁▁"
    for token in tokenizer.vocabulary:
        assert " " not in token[1:]
        assert token.strip() in "¿?¡!," or not set(token) & set("¿?¡!,")


@pytest.mark.parametrize("unit", UNITS)
def test_unknown_tokens_are_listed_with_their_spelling(unit: Unit) -> None:
    text = "sé ☃☃ ."
    encoding = TOKENIZERS[unit].encode(text)
    assert "".join(encoding.unknown).strip("▁‿ ").count("☃") == 2
    assert encoding.ids.count(UNK) == len(encoding.unknown) >= 1
    assert TOKENIZERS[unit].detokenize(encoding.tokens) == text
    assert "<unk>" in TOKENIZERS[unit].decode(encoding.ids)


def test_word_ids_merge_subwords_and_punctuation() -> None:
    tokens = ["▁", "¿", "Lo", "▁s", "é", "?", "▁"]
    assert TOKENIZERS["bpe"].detokenize(tokens) == "¿Lo sé? "
    assert TOKENIZERS["bpe"].word_ids(tokens) == [0, 0, 0, 1, 1, 1, None]
    assert TOKENIZERS["word"].word_ids(["¿‿", "Lo", "sé", "‿?", "."]) == [0, 0, 1, 1, 2]
    for unit in ("char", "grapheme", "whitespace"):
        assert TOKENIZERS[unit].word_ids(["a", " ", "b"]) == [0, 1, 2]


def test_copied_source_tokens_join_by_the_rules_of_the_unit() -> None:
    assert (
        TOKENIZERS["word"].detokenize(["Ana", "‿,", "<unk>", "¿‿", "Zoë", "‿?"])
        == "Ana, <unk> ¿Zoë?"
    )
    assert TOKENIZERS["whitespace"].detokenize(["AA", "N"]) == "AA N"


@pytest.mark.parametrize("unit", UNITS)
def test_empty_text_has_no_tokens(unit: Unit) -> None:
    tokenizer = TOKENIZERS[unit]
    assert tokenizer.encode("") == Encoding([], [])
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.decode([]) == tokenizer.detokenize([]) == ""
    assert tokenizer.word_ids([]) == []


@pytest.mark.parametrize("unit", UNITS)
def test_training_without_text_leaves_every_token_unknown(unit: Unit) -> None:
    tokenizer = train(["", ""], unit=unit)
    assert tokenizer.encode("ab").unknown
    assert Tokenizer.from_json(tokenizer.to_json()) == tokenizer


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("size", [5, 30, 8000])
def test_training_is_deterministic_and_respects_the_vocabulary_size(unit: Unit, size: int) -> None:
    letters = [chr(0x4E00 + n) for n in range(40)]
    texts = SENTENCES + [a + b + " " + a for a, b in zip(letters, letters[::-1], strict=True)]
    tokenizers = [train(texts, unit=unit, vocabulary_size=size) for _ in range(3)]
    assert tokenizers[0] == tokenizers[1] == tokenizers[2]
    assert len(tokenizers[0]) <= size
    assert len(tokenizers[0]) == len(tokenizers[0].vocabulary) + len(SPECIAL_TOKENS)


def test_the_rarest_tokens_are_dropped_ties_in_order() -> None:
    texts = ["c c c", "b a", "b a", "e d"]
    assert train(texts, unit="whitespace").vocabulary == ("c", "a", "b", "d", "e")
    assert train(texts, unit="whitespace", vocabulary_size=6).vocabulary == ("c", "a")
    assert train(texts, unit="word", min_frequency=2).vocabulary == ("c", "a", "b")


@pytest.mark.parametrize("unit", SUBWORDS)
def test_no_subword_contains_a_rare_character(unit: Unit) -> None:
    tokenizer = train(["abab ab", "abab ab", "abzab"], unit=unit, min_frequency=2)
    assert not [token for token in tokenizer.vocabulary if "z" in token]
    assert tokenizer.encode("abzab").unknown == ["z"]


def test_items_that_are_no_text_are_refused() -> None:
    for item in (None, 1.5, (None, "V"), ["a", "b"]):
        with pytest.raises(DataError, match="expected each text to be a string, got"):
            TOKENIZERS["word"].encode_batch(["a", item])  # pyright: ignore[reportArgumentType]


def test_a_vocabulary_must_exceed_the_special_tokens() -> None:
    with pytest.raises(ConfigError, match=r"vocabulary_size must be at least 5, got 4"):
        train(["a"], unit="char", vocabulary_size=4)


@pytest.mark.parametrize("unit", UNITS)
def test_a_lone_surrogate_is_rejected(unit: Unit) -> None:
    with pytest.raises(DataError, match="lone surrogate at character 2"):
        TOKENIZERS[unit].encode("a\ud83d")


@pytest.mark.parametrize("unit", UNITS)
def test_normalization_and_lowercasing_precede_splitting(unit: Unit) -> None:
    tokenizer = train(["İstanbul", "istanbul"], unit=unit, lowercase=True, normal_form="NFKC")
    encoding = tokenizer.encode("İSTANBUL ﬁ")
    assert tokenizer.detokenize(encoding.tokens) == "i̇stanbul fi"
    assert tokenizer.decode(tokenizer.encode("İSTANBUL").ids) == "i̇stanbul"


@pytest.mark.parametrize("text", ["μαΐου", "ǰ ẖ ẗ ẘ ẙ"])
def test_a_capital_without_a_composed_form_is_its_lower_case(text: str) -> None:
    tokenizer = train([text], unit="char", lowercase=True, normal_form="NFC")
    capital = text.upper()
    assert len(capital) > len(text)
    assert tokenizer.encode(capital) == tokenizer.encode(text)


def test_normal_forms_of_hangul() -> None:
    assert train(["각"], unit="char", normal_form="NFD").encode("각").tokens == ["ᄀ", "ᅡ", "ᆨ"]
    assert train(["각"], unit="grapheme", normal_form="NFD").encode("각").tokens == [
        unicodedata.normalize("NFD", "각")
    ]
    assert train(["각"], unit="char").encode(unicodedata.normalize("NFD", "각")).tokens == ["각"]
    assert train(["é"], unit="char", normal_form="none").encode("e\u0301").tokens == ["e", "\u0301"]


@pytest.mark.parametrize("unit", UNITS)
def test_json_and_pickle_give_the_same_tokenizer(unit: Unit) -> None:
    tokenizer = train(SENTENCES, unit=unit, lowercase=True, normal_form="NFKC")
    texts = [*SENTENCES, SPELLINGS, "☃ zz"]
    expected = tokenizer.encode_batch(texts)
    for copy in (
        Tokenizer.from_json(tokenizer.to_json()),
        pickle.loads(pickle.dumps(tokenizer)),
    ):
        assert copy == tokenizer
        assert copy.encode_batch(texts) == expected


@pytest.mark.parametrize(
    "change",
    [
        {"format": 4},
        {"unit": "auto"},
        {"unit": ["bpe"]},
        {"unit": "unigram"},
        {"normal_form": "NFX"},
        {"lowercase": "no"},
        {"vocabulary": None},
        {"vocabulary": ["a", 1]},
        {"vocabulary": ["a", "a"]},
        {"vocabulary": ["a", ""]},
        {"vocabulary": ["<unk>"]},
        {"merges": [["a"]]},
        {"merges": [["q", "q"]]},
        {"log_probs": [1.0]},
        {"unit": "unigram", "vocabulary": ["a"], "merges": [], "log_probs": [float("nan")]},
        {"unit": "unigram", "vocabulary": ["a"], "merges": [], "log_probs": [10**400]},
        {"more": 1},
    ],
)
def test_a_changed_document_is_refused(change: dict[str, Any]) -> None:
    document = json.loads(train(SENTENCES, unit="bpe").to_json())
    with pytest.raises(FolderError, match="the tokenizer cannot be read"):
        Tokenizer.from_json(json.dumps(document | change))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '"x"', "{}", "[" * 100_000])
def test_malformed_json_is_refused(text: str) -> None:
    with pytest.raises(FolderError, match="the tokenizer cannot be read"):
        Tokenizer.from_json(text)


def test_a_later_format_is_rejected_with_its_number() -> None:
    with pytest.raises(
        FolderError, match="its format is 9, but this version of regard reads formats up to 3"
    ):
        Tokenizer.from_json('{"format": 9, "novelty": true}')


ENGLISH = [f"The {a} {b} the {c} behind a hill." for a in ("old", "red", "sly") for b in
           ("fox saw", "dog chased", "hen fed") for c in ("cat", "owl", "pig")]  # fmt: skip
MONTHS = ["January", "March", "May", "September", "December"]


@pytest.mark.parametrize(
    ("texts", "unit"),
    [
        (["AA N K AO R", "AH B EH R", "AE1 B IY0", "K"], "whitespace"),
        (["a b ɔ̃ t͡ʃ", "a b i d ʒ ɑ̃", "k͈ a"], "whitespace"),
        (["3 1 4 1 5", "2 7 1 8"], "whitespace"),
        (["12 60 7", "64 9 127"], "whitespace"),
        (["abandon", "abbey", "AARON'S", "naïve"], "char"),
        (["我知道。", "跳进来。", "我很害羞。", "Tom 来了。"], "char"),
        (["각하", "학교"], "char"),
        (["किताब", "पानी"], "grapheme"),
        (["t͡ʃa"], "grapheme"),
        (ENGLISH, "word"),
        (["three hundred and five", "two hundred and thirty-one"] * 20, "word"),
        (["I'm free!", "Tom drove all night long.", "She knows nothing about it."], "bpe"),
        (["Yo lo sé.", "¡Soy libre!", "Tomás condujo toda la noche."], "bpe"),
        ([f"{day} mars {1900 + day * 3}" for day in range(1, 31)] * 20, "char"),
        ([f"{month} {day}, 19{day}" for day in range(10, 29) for month in MONTHS], "char"),
        ([f"{day} mai {day + 50}" for day in range(1, 29)], "char"),
        (["I am.", "No, I am.", "Go on!"], "bpe"),
        (["1999-03-12", "2004-11-30"], "char"),
        (["12 मार्च 1999", "3 मई 2004"], "grapheme"),
        ([], "char"),
        (["", "  "], "char"),
    ],
)
def test_the_unit_is_chosen_from_the_data(texts: list[str], unit: Unit) -> None:
    assert choose_unit(texts) == unit
    assert train(texts, unit="auto").unit == unit


def test_the_sample_covers_all_texts() -> None:
    assert choose_unit(["AA"] * 6000 + ["AA N K"] * 24000) == "whitespace"


@pytest.mark.parametrize("unit", ["char", "word", "bpe"])
def test_each_feature_is_a_token(unit: str) -> None:
    texts, features = ["big cat", "a cat", "dog"], ["V;PST|3", "V, PRS", None]
    tokenizer = Tokenizer.train(texts, TextConfig(unit=unit), features)
    assert tokenizer.features == ("3", "PRS", "PST", "V")
    plain = Tokenizer.train(texts, TextConfig(unit=unit))
    assert tokenizer.vocabulary == plain.vocabulary
    assert len(tokenizer) == len(plain) + 4
    encoding = tokenizer.encode("big cat", "V;PST;NEW")
    assert encoding.tokens == [*plain.encode("big cat").tokens, "V", "PST", "NEW"]
    assert encoding.num_features == 3
    assert encoding.unknown == ["NEW"]
    assert tokenizer.ids_to_tokens(encoding.ids[-3:-1]) == ["V", "PST"]
    assert encoding.ids[:-3] == plain.encode("big cat").ids
    words = tokenizer.word_ids(encoding.tokens, encoding.num_features)
    last = max(n for n in plain.word_ids(plain.encode("big cat").tokens) if n is not None)
    assert words[-3:] == [last + 1, last + 2, last + 3]
    assert tokenizer.encode("dog").num_features == 0
    assert Tokenizer.from_json(tokenizer.to_json()) == tokenizer


def test_a_tab_is_text_where_there_are_no_features() -> None:
    tokenizer = Tokenizer.train(["a\tb"], TextConfig(unit="char"))
    assert tokenizer.encode("a\tb").tokens == ["a", "\t", "b"]


def test_features_follow_a_tab_on_one_line() -> None:
    tokenizer = Tokenizer.train(["run"], TextConfig(unit="char"), ["V"])
    for line, source in (
        ("run\tV;PST", ("run", "V;PST")),
        ("run", ("run", None)),
        ("a\t", ("a", "")),
    ):
        assert tokenizer.parse_source(line) == source
        assert format_source(source) == line
    plain = Tokenizer.train(["run"], TextConfig(unit="char"))
    assert plain.parse_source("a\tb") == ("a\tb", None)
    with pytest.raises(ConfigError, match="reads no source features, got 'V'"):
        plain.encode("run", "V")


def test_a_tokenizer_stored_without_features_loads() -> None:
    document = json.loads(Tokenizer.train(["ab"], TextConfig(unit="char")).to_json())
    del document["features"]
    assert Tokenizer.from_json(json.dumps(document)).features is None


MATCHING = train(
    ["te quiero", "¿ leo libros ?", "我 爱 机器 学习", "我 学 机", "yo, no", "2 pizza", "我々"],
    unit="word",
    lowercase=True,
    normal_form="NFKC",
    match_vocabulary=True,
)


@pytest.mark.parametrize(
    ("text", "same", "left_out"),
    [
        ("Te quiero.", "te quiero", ["‿."]),
        ("¡Te quiero!", "te quiero", ["¡‿", "‿!"]),
        ("te quiero ...", "te quiero", [".", "‿.", "‿."]),
        ("¿Leo libros?", "¿ leo libros ?", []),
        ("¿leo libros？", "¿ leo libros ?", []),
        ("no , yo", "no, yo", []),
        ("我爱机器学习", "我 爱 机器 学习", []),
        ("我爱机器学习。", "我 爱 机器 学习", ["‿。"]),
        ("我爱 机器学习", "我 爱 机器 学习", []),
        ("我学机器", "我 学 机器", []),
        ("我爱2机器", "我 爱 2 机器", []),
        ("我々pizza", "我々 pizza", []),
        ("我爱pizza；", "我 爱 pizza", ["‿;"]),
        ("te quiero . . .", "te quiero", [".", ".", "."]),
        ("te quiero ❤\ufe0f", "te quiero", ["❤\ufe0f"]),
        ("te quiero👩\u200d🚀!", "te quiero", ["‿👩\u200d🚀", "‿!"]),
    ],
)
def test_tokens_are_matched_to_the_vocabulary(text: str, same: str, left_out: list[str]) -> None:
    encoding, expected = MATCHING.encode(text), MATCHING.encode(same)
    assert encoding.ids == expected.ids
    assert UNK not in expected.ids
    assert list(encoding.left_out) == left_out
    assert encoding.unknown == []


def test_matched_tokens_keep_the_spelling_of_the_text() -> None:
    for text in ("¿leo libros?", "我爱机器学习", "我 爱 机器", "te / quiero", "a/b", "..."):
        encoding = MATCHING.encode(text)
        assert MATCHING.detokenize(encoding.tokens) == text
        assert encoding.left_out == ()
    assert MATCHING.encode("我爱天气吗").tokens == ["我", "‿爱", "‿天气吗"]
    assert MATCHING.encode("我爱no22吗").tokens == ["我", "‿爱", "‿no22吗"]  # not 2, nor no
    assert MATCHING.encode("a/b te").ids.count(UNK) == 3


def test_matching_keeps_the_indices_of_words() -> None:
    for text in ("«Te quiero», yo no.", "¿Leo libros? no!", "no . te quiero ."):
        word_ids = MATCHING.word_ids(MATCHING.encode(text).tokens)
        assert [index for index in dict.fromkeys(word_ids)] == list(
            range(len(text.removesuffix(" .").split()))
        )
    for text, words in (("我爱・机器", [0, 1, 1, 2]), ("我爱：机器", [0, 1, 1, 2])):
        encoding = MATCHING.encode(text)
        assert (MATCHING.word_ids(encoding.tokens), encoding.left_out) == (words, ())
        assert MATCHING.detokenize(encoding.tokens) == MATCHING.normalize(text)
    for text in ("2我", "我2"):
        assert MATCHING.word_ids(MATCHING.encode(text).tokens) == [0, 1]
    split = ["我", "‿爱", "‿机器", "‿学习", "‿?"]
    assert MATCHING.word_ids(split) == [0, 1, 2, 3, 3]
    assert MATCHING.word_ids(["¿‿", *split]) == [0, 0, 1, 2, 3, 3]
    assert MATCHING.word_ids(["我", "‿爱", "机器"]) == [0, 0, 1]
    assert MATCHING.word_ids([]) == []


def test_words_with_the_joiner_or_a_mark_of_another_script_stay_one_word() -> None:
    encoding = MATCHING.encode("te libros\u203f- yo")
    assert MATCHING.word_ids(encoding.tokens)[-1] == 2
    matched = match_tokens(["a学b\u203f", "c"], {"学": 5}, 1)
    assert matched.tokens == ["a", "\u203f学", "\u203fb\u203f", "c"]
    assert match_tokens(["学\u203f", "!"], {"学": 5}, 1).tokens == ["学"]


_PIECES = ["te", "libros", "?", ".", "¿", "!", "«", "»", "“", "(", ")", "7", "x-y"]


@given(st.lists(st.tuples(st.sampled_from(_PIECES), st.sampled_from(["", " "])), max_size=8))
def test_tokens_that_are_left_out_move_no_word(pieces: list[tuple[str, str]]) -> None:
    text = "".join(map("".join, pieces)) + " yo"  # which is never left out
    encoding = MATCHING.encode(text)
    assert MATCHING.word_ids(encoding.tokens)[-1] == len(text.split()) - 1


def test_matching_changes_no_text_of_the_training_data() -> None:
    texts = [*SENTENCES, "我 爱 机器 学习"]
    plain, matching = train(texts, unit="word"), train(texts, unit="word", match_vocabulary=True)
    assert plain.vocabulary == matching.vocabulary
    assert plain.encode_batch(texts) == matching.encode_batch(texts)
    assert Tokenizer.from_json(matching.to_json()) == matching


@given(st.text(alphabet="我爱机 aé.?¿‿-", max_size=12))
def test_any_text_can_be_matched(text: str) -> None:
    encoding = MATCHING.encode(text)
    assert len(encoding.ids) == len(encoding.tokens) == len(MATCHING.word_ids(encoding.tokens))
    assert bool(encoding.tokens) == bool(MATCHING.normalize(text).split())


@pytest.mark.parametrize("id", [-1, 10**6, 1.5, "a"])
def test_ids_outside_the_vocabulary_are_named(id: Any, unchecked: None) -> None:
    with pytest.raises(DataError, match=f"expected ids from 0 to .*, got {id!r}"):
        TOKENIZERS["word"].decode([4, id])


@pytest.mark.parametrize("text", [None, 5, b"hello"])
def test_a_text_is_a_string(text: Any, unchecked: None) -> None:
    with pytest.raises(DataError, match="each text to be a string, got"):
        TOKENIZERS["char"].encode(text)

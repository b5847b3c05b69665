"""Strings, tokens, ids and words: how text becomes symbols, and symbols text again.

    unit       a symbol is                              "¿Qué es?" as tokens
    char       a code point                             ¿ Q u é (space) e s ?
    grapheme   what a reader calls a letter: t͡, कि      ¿ Q u é (space) e s ?
    word       a word, or one mark of punctuation       ¿‿ Qué es ‿?
    symbol     what stands between spaces               ¿Qué es?
    bpe        a part of a word, by byte-pair merges    ▁¿ Qu é ▁es ?
    unigram    a part of a word, by a unigram model     ▁¿ Qu é ▁es ?

Two marks keep the spacing, so that tokens join to the text they came from:

- word: `‿` stands where a punctuation mark touches its neighbour; elsewhere a space divides tokens.
  Words carry no mark, and keep the apostrophes, hyphens and middle dots inside them.
- bpe, unigram: `▁` at the start of a token is the space before it, and the first word has one too.
  A `▁` that the text itself holds is written `▁▁`.

The marks are notation and reserve no spelling: text that holds them, or that spells `<pad>` or
`</s>`, is ordinary text.
"""

import dataclasses
import functools
import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from regard.config import NormalForm, TextConfig, Unit
from regard.errors import ConfigError, DataError, FolderError

if TYPE_CHECKING:
    import tokenizers

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")
EOS_TOKEN = SPECIAL_TOKENS[EOS]

_FORMAT = 1
_JOINT = "‿"
_SPACE = "▁"
_SAMPLE = 5000
_FEATURES = re.compile("[;|,]")

# Whitespace as str.split sees it, so that words() and text().split() count alike.
_BLANK = r"\s\x1c-\x1f"
_LETTERS = rf"[^{_BLANK}\p{{P}}\p{{S}}]+"
_WORD = rf"{_LETTERS}(?:['’\-‐‑·]{_LETTERS})*"
_WORDS_AND_MARKS = rf"{_JOINT}|{_WORD}|\X"
# A piece holds a space at its start only, and the sign that writes a space stands alone.
_SUBWORD_PIECES = rf"{_SPACE}| ?(?:{_WORD}|(?![{_BLANK}{_SPACE}])\X)|[{_BLANK}]"


class Encoding(NamedTuple):
    """One text as the model takes it, without start and end symbols; both lists are equally long."""

    ids: list[int]
    """Vocabulary entries; UNK where the vocabulary has none."""
    tokens: list[str]
    """What stands there: an unknown symbol by its own (normalised) spelling."""
    features: int = 0
    """How many of them, at the end, are features."""

    @property
    def unknown(self) -> list[str]:
        """The symbols that the vocabulary does not hold, in order, repeats included."""
        return [token for id, token in zip(self.ids, self.tokens, strict=True) if id == UNK]


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A vocabulary and the way to cut text into it; made by `learn` or `from_json`.

    Ids 0 to 3 are PAD, UNK, BOS and EOS; symbol number k has id k + 4. No text encodes to the
    ids 0, 2 and 3, whatever it spells.
    """

    unit: Unit
    """Unit of text, never auto."""
    symbols: tuple[str, ...] = dataclasses.field(repr=False)
    """The vocabulary without the four specials; bpe and unigram hold a space as a space."""
    normal_form: NormalForm = "NFC"
    """Unicode normal form applied first."""
    lowercase: bool = False
    """Lower-case the text after that."""
    merges: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    """Pairs that bpe joins, in order."""
    scores: tuple[float, ...] = dataclasses.field(default=(), repr=False)
    """Natural logarithms of the unigram probabilities, one per symbol."""
    features: tuple[str, ...] | None = dataclasses.field(default=None, repr=False)
    """Entries after the symbols for what stands behind a TAB, `V;PST`; None where a TAB is text."""

    @classmethod
    def learn(cls, texts: Iterable[str], config: TextConfig, features: bool = False) -> "Tokenizer":
        """Learn a vocabulary: the same texts and settings always give the same one.

        Symbols (for bpe and unigram: characters) that occur less than `min_frequency` times are
        left out, then the rarest until `vocabulary_size` holds, ties in the order of the symbols.
        A bpe merge must occur at least twice.

        Args:
            texts: one side of the training pairs.
            config: how to cut them; unit auto is settled by `choose_unit`.
            features: behind a TAB each text has features, cut at `;`, `|`, `,` and spaces, which are
                symbols of their own, all of them (Kann and Schütze 2016, "MED: The LMU System for
                the SIGMORPHON 2016 Shared Task", section 3, whose order is features first). They
                are normalised, and never lower-cased.

        Raises:
            ConfigError: the vocabulary has no room for a symbol beside the four specials.
            DataError: a text holds half a surrogate pair.
        """
        room = config.vocabulary_size - len(SPECIAL_TOKENS)
        if room < 1:
            raise ConfigError(
                f"vocabulary_size must be above {len(SPECIAL_TOKENS)}, which padding, unknown, start and "
                f"end take up, got {config.vocabulary_size}"
            )
        found: set[str] | None = None
        if features:
            parts = [_split_features(text, config.normal_form) for text in texts]
            texts = [text for text, _ in parts]
            found = set(chain.from_iterable(tags for _, tags in parts))
        clean = [_normalised(text, config.normal_form, config.lowercase) for text in texts]
        unit = choose_unit(clean) if config.unit == "auto" else config.unit
        learned = _learn(unit, clean, room, config.min_frequency)
        tags = None if found is None else tuple(sorted(found))
        return cls(
            unit,
            normal_form=config.normal_form,
            lowercase=config.lowercase,
            features=tags,
            **learned,
        )

    def __len__(self) -> int:
        """Size V of the vocabulary, the four specials and the features included."""
        return len(SPECIAL_TOKENS) + len(self.symbols) + len(self.features or ())

    def normalised(self, text: str) -> str:
        """The text as it is cut: in the normal form, lower-cased if that was asked for."""
        return _normalised(text, self.normal_form, self.lowercase)

    def encode(self, text: str) -> Encoding:
        """Cut one text; start and end symbols are not added."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[Encoding]:
        """Cut many texts, in order."""
        if self.features is not None:
            return self._encode_featured(texts)
        return self._encode_plain(texts)

    def _encode_featured(self, texts: Sequence[str]) -> list[Encoding]:
        parts = [_split_features(text, self.normal_form) for text in texts]
        plain = self._encode_plain([text for text, _ in parts])
        first = len(SPECIAL_TOKENS) + len(self.symbols)
        known = {feature: id for id, feature in enumerate(self.features or (), start=first)}
        return [
            Encoding([*ids, *(known.get(tag, UNK) for tag in tags)], [*tokens, *tags], len(tags))
            for (ids, tokens, _), (_, tags) in zip(plain, parts, strict=True)
        ]

    def _encode_plain(self, texts: Sequence[str]) -> list[Encoding]:
        clean = [self.normalised(text) for text in texts]
        if self.unit in _SUBWORD_UNITS:
            return self._encode_subwords(clean)
        return [
            Encoding([self._ids.get(token, UNK) for token in tokens], tokens)
            for tokens in map(_CUT[self.unit], clean)
        ]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """How each id is written, specials included."""
        return [self._shown[id] for id in ids]

    def text(self, tokens: Sequence[str]) -> str:
        """Join tokens, of this vocabulary or copied from a source, to readable text."""
        return "".join(_SPELL[self.unit](tokens))

    def ids_of(self, tokens: Sequence[str]) -> list[int]:
        """The entries that are written so; UNK for others."""
        return [self._written_ids.get(token, UNK) for token in tokens]

    def decode(self, ids: Sequence[int]) -> str:
        """Readable text; of the specials only UNK shows, as `<unk>`."""
        shown = [id for id in ids if id == UNK or id >= len(SPECIAL_TOKENS)]
        return self.text(self.tokens(shown))

    def words(self, tokens: Sequence[str], features: int = 0) -> list[int | None]:
        """For each token the number of the word it belongs to, from 0: what alignments count.

        For word, bpe and unigram these are the words of `text(tokens).split()`: subwords and glued
        punctuation share a number, a lone space goes with the word after it, and with None where
        none follows. For char, grapheme and symbol every token, a space too, has its own number, and
        so has each of the `features` at the end.
        """
        if features:
            numbered = self.words(tokens[:-features])
            first = 1 + max((number for number in numbered if number is not None), default=-1)
            return [*numbered, *range(first, first + features)]
        if self.unit not in ("word", *_SUBWORD_UNITS):
            return list(range(len(tokens)))
        numbers: list[int] = []
        count, inside = 0, False
        for piece in _SPELL[self.unit](tokens):
            blank = not piece.strip()
            count += not blank and (not inside or piece[0].isspace())
            numbers.append(count if blank else count - 1)
            inside = not blank and not piece[-1].isspace()
        return [number if number < count else None for number in numbers]

    def to_json(self) -> str:
        """One JSON document that holds everything; nothing in it can execute."""
        return json.dumps({"format": _FORMAT, **dataclasses.asdict(self)}, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Tokenizer":
        """Read what `to_json` wrote.

        Raises:
            FolderError: the document is malformed, or of a format that this version does not know.
        """
        try:
            document = json.loads(text)
            version = document.pop("format")
            if version != _FORMAT:
                raise ValueError(f"format {version!r}, this version of regard reads {_FORMAT}")
            document["symbols"] = tuple(document["symbols"])
            document["scores"] = tuple(document["scores"])
            if document.get("features") is not None:
                document["features"] = tuple(document["features"])
            document["merges"] = tuple((left, right) for left, right in document["merges"])
            return _sound(cls(**document))
        except Exception as error:  # a damaged document fails in whatever way it likes
            raise FolderError(
                f"the tokenizer cannot be read ({type(error).__name__}: {error}); "
                "copy the model folder again, or update regard"
            ) from None

    def _encode_subwords(self, texts: Sequence[str]) -> list[Encoding]:
        marked = [" " + text if text else "" for text in texts]
        encodings: list[Encoding] = []
        for text, cut in zip(marked, self._subwords.encode_batch(marked), strict=True):
            tokens = [
                _written(text[start:end]) if id == UNK else self._shown[id]
                for id, (start, end) in zip(cut.ids, cut.offsets, strict=True)
            ]
            encodings.append(Encoding(cut.ids, tokens))
        return encodings

    @functools.cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: id for id, symbol in enumerate(self.symbols, start=len(SPECIAL_TOKENS))}

    @functools.cached_property
    def _written_ids(self) -> dict[str, int]:
        first = len(SPECIAL_TOKENS)
        return {token: id for id, token in enumerate(self._shown[first:], start=first)}

    @functools.cached_property
    def _shown(self) -> list[str]:
        subwords = self.unit in _SUBWORD_UNITS
        symbols = map(_written, self.symbols) if subwords else self.symbols
        return [*SPECIAL_TOKENS, *symbols, *(self.features or ())]

    @functools.cached_property
    def _subwords(self) -> "tokenizers.Tokenizer":
        from tokenizers import models

        # The specials fill ids 0 to 3; no piece can spell one, since "<" is cut from what follows.
        entries = [*SPECIAL_TOKENS, *self.symbols]
        if self.unit == "bpe":
            vocabulary = {entry: id for id, entry in enumerate(entries)}
            return _library(
                models.BPE(vocabulary, list(self.merges), unk_token=SPECIAL_TOKENS[UNK])
            )
        scores = [0.0] * len(SPECIAL_TOKENS) + list(self.scores)
        return _library(models.Unigram(list(zip(entries, scores, strict=True)), unk_id=UNK))


def _split_features(text: str, form: NormalForm) -> tuple[str, list[str]]:
    """What stands before the TAB, and the features behind it."""
    text, _, features = text.partition("\t")
    return text, _FEATURES.sub(" ", _normalised(features, form, False)).split()


def choose_unit(texts: Sequence[str]) -> Unit:
    """The unit that suits one side of the pairs, from a sample of about 5,000 texts.

    - symbol: spaced short pieces, at most 200 different ones (phones: `AA N K AO R`);
    - word: sentences of few words (at most 2,000) that recur, ten times on average;
    - bpe: other sentences;
    - char: texts without spaces (spellings, Chinese) and texts of which a fifth is digits (dates),
      or grapheme where some letter takes several code points.
    """
    every = math.ceil(len(texts) / _SAMPLE) or 1
    sample = [unicodedata.normalize("NFC", text) for text in texts[::every] if text.strip()]
    spaced = [text for text in sample if len(text.split()) > 1]
    if len(spaced) > len(sample) / 2:
        if _are_phones(Counter(chain.from_iterable(map(str.split, sample)))):
            return "symbol"
        if not _are_mostly_digits(sample):
            words = Counter(chain.from_iterable(map(_words, sample)))
            return "word" if len(words) <= 2000 and words.total() >= 10 * len(words) else "bpe"
    together = "\n".join(sample)
    return "char" if len(_graphemes(together)) == len(together) else "grapheme"


def _are_phones(counts: Counter[str]) -> bool:
    numbers = any(len(piece) > 1 and piece.isdigit() for piece in counts)
    dated = numbers and any(piece.isalpha() for piece in counts)
    punctuated = any(len(piece) > 1 and piece[-1] in ".,!?" for piece in counts)
    length = sum(len(piece) * count for piece, count in counts.items()) / counts.total()
    return len(counts) <= 200 and length <= 3 and not dated and not punctuated


def _are_mostly_digits(texts: Sequence[str]) -> bool:
    characters = "".join(chain.from_iterable(map(str.split, texts)))
    return sum(map(str.isdigit, characters)) >= len(characters) / 5


def _normalised(text: str, form: NormalForm, lowercase: bool) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(
            f"text cannot be UTF-8: half a surrogate pair at character {error.start + 1}; "
            "read the text with its right encoding"
        ) from None
    if form != "none":
        text = unicodedata.normalize(form, text)
    return text.lower() if lowercase else text


@functools.cache
def _splitter(pattern: str) -> "tokenizers.pre_tokenizers.Split":
    from tokenizers import Regex, pre_tokenizers

    return pre_tokenizers.Split(Regex(pattern), "isolated")


def _split(pattern: str, text: str) -> list[str]:
    return [piece for piece, _ in _splitter(pattern).pre_tokenize_str(text)]


_graphemes = functools.partial(_split, r"\X")


def _words(text: str) -> list[str]:
    tokens: list[str] = []
    for chunk in text.split():
        tokens += [chunk] if chunk.isalpha() else _glued(_split(_WORDS_AND_MARKS, chunk))
    return tokens


def _glued(pieces: Sequence[str]) -> list[str]:
    tokens = list(pieces)
    for left, right in pairwise(range(len(pieces))):
        if _is_punctuation(pieces[left]) and not _is_punctuation(pieces[right]):
            tokens[left] += _JOINT
        else:
            tokens[right] = _JOINT + tokens[right]
    return tokens


def _is_punctuation(piece: str) -> bool:
    # The joint itself counts as a word: were it to take a joint on its right, "‿‿" would be two things.
    return piece != _JOINT and unicodedata.category(piece[0])[0] in "PS"


def _spell_words(tokens: Sequence[str]) -> list[str]:
    pieces: list[str] = []
    touching = True
    for token in tokens:
        left = len(token) > 1 and token.startswith(_JOINT)
        piece = token[1:] if left else token
        right = len(piece) > 1 and piece.endswith(_JOINT)
        piece = piece[:-1] if right else piece
        pieces.append(piece if touching or left else " " + piece)
        touching = right
    return pieces


def _spell_symbols(tokens: Sequence[str]) -> list[str]:
    return [" " + token if number else token for number, token in enumerate(tokens)]


def _spell_subwords(tokens: Sequence[str]) -> list[str]:
    pieces = [
        token[1:] if token == 2 * _SPACE else " " + token[1:] if token.startswith(_SPACE) else token
        for token in tokens
    ]
    return [pieces[0].removeprefix(" "), *pieces[1:]] if pieces else []


def _written(piece: str) -> str:
    if piece == _SPACE:
        return 2 * _SPACE
    return _SPACE + piece[1:] if piece.startswith(" ") else piece


_SUBWORD_UNITS = ("bpe", "unigram")
_CUT: dict[str, Callable[[str], list[str]]] = {
    "char": list,
    "grapheme": _graphemes,
    "word": _words,
    "symbol": str.split,
}
# Tokens to strings that make up the text when put one after another.
_SPELL: dict[str, Callable[[Sequence[str]], Sequence[str]]] = {
    "char": list,
    "grapheme": list,
    "word": _spell_words,
    "symbol": _spell_symbols,
    "bpe": _spell_subwords,
    "unigram": _spell_subwords,
}


def _learn(unit: Unit, texts: Sequence[str], room: int, min_frequency: int) -> dict[str, Any]:
    if unit in _CUT:
        counts = Counter(chain.from_iterable(map(_CUT[unit], texts)))
        return {"symbols": tuple(_most_frequent(counts, room, min_frequency))}
    counts = Counter(chain.from_iterable(texts))
    del counts[" "]
    rare = counts.keys() - set(_most_frequent(counts, room - 1, min_frequency))
    without_rare = str.maketrans(dict.fromkeys(rare, " "))
    marked = [" " + text.translate(without_rare) for text in texts]
    if unit == "bpe":
        return _learn_bpe(marked, room, min_frequency)
    return _learn_unigram(marked, room)


def _most_frequent(counts: Counter[str], room: int, min_frequency: int) -> list[str]:
    kept = [symbol for symbol, count in counts.items() if count >= min_frequency]
    return sorted(kept, key=lambda symbol: (-counts[symbol], symbol))[:room]


def _learn_bpe(texts: Sequence[str], room: int, min_frequency: int) -> dict[str, Any]:
    from tokenizers import models, trainers

    # A merge seen once would make every rare word a symbol of its own.
    often = max(2, min_frequency)
    trainer = trainers.BpeTrainer(vocab_size=room, min_frequency=often, show_progress=False)
    model = _trained(models.BPE(), trainer, texts)
    symbols = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return {"symbols": tuple(symbols), "merges": tuple((a, b) for a, b in model["merges"])}


def _learn_unigram(texts: Sequence[str], room: int) -> dict[str, Any]:
    from tokenizers import models, trainers

    # One more, because the trainer counts an entry of its own and never ends where that lacks room.
    trainer = trainers.UnigramTrainer(vocab_size=room + 1, show_progress=False)
    entries: list[tuple[str, float]] = _trained(models.Unigram(), trainer, texts)["vocab"]
    # The trainer adds the characters it pruned at its lowest score, in an order that changes from
    # run to run and 0.0001 apart: give them one score, so that the same texts learn the same model.
    lowest = min((score for _, score in entries), default=0.0)
    added = lowest + 1e-4 * sum(len(symbol) == 1 for symbol, _ in entries)
    scores = {symbol: round(lowest if score < added else score, 4) for symbol, score in entries}
    # It also overshoots the size by some: characters stay, the least likely longer symbols go.
    symbols = sorted(scores, key=lambda symbol: (len(symbol) > 1, -scores[symbol], symbol))[:room]
    return {"symbols": tuple(symbols), "scores": tuple(scores[symbol] for symbol in symbols)}


def _trained(model: Any, trainer: Any, texts: Sequence[str]) -> dict[str, Any]:
    library = _library(model)
    library.train_from_iterator(texts, trainer)
    return json.loads(library.to_str())["model"]


def _library(model: Any) -> "tokenizers.Tokenizer":
    import tokenizers

    library = tokenizers.Tokenizer(model)
    library.pre_tokenizer = _splitter(_SUBWORD_PIECES)
    return library


def _sound(read: Tokenizer) -> Tokenizer:
    specials = SPECIAL_TOKENS if read.unit in _SUBWORD_UNITS else ()
    entries = {*specials, *read.symbols}
    if not (
        read.unit in _SPELL
        and read.normal_form in get_args(NormalForm)
        and read.lowercase in (True, False)
        and all(type(symbol) is str and symbol for symbol in read.symbols)
        and len(entries) == len(specials) + len(read.symbols)
        and all(entries.issuperset((left, right, left + right)) for left, right in read.merges)
        and len(read.scores) == (len(read.symbols) if read.unit == "unigram" else 0)
        and all(map(math.isfinite, read.scores))
        and all(type(feature) is str and feature for feature in read.features or ())
    ):
        raise ValueError("its parts do not agree")
    return read


def say_unknown(symbols: Counter[str]) -> str:
    """How many symbols the vocabulary does not hold, and the most frequent of them."""
    shown = ", ".join(f"{symbol!r} {count}x" for symbol, count in symbols.most_common(5))
    more = ", …" if len(symbols) > 5 else ""
    return f"symbols not in the vocabulary: {symbols.total():,} ({shown}{more})"

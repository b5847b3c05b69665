"""The tokenizer: text to tokens, vocabulary ids and word ids, and tokens back to text.

    unit         a token is                             "¿Qué es?" as tokens
    char         a code point                           ¿ Q u é (space) e s ?
    grapheme     a grapheme cluster: t͡, कि               ¿ Q u é (space) e s ?
    word         a word or a punctuation mark           ¿‿ Qué es ‿?
    whitespace   a string between whitespace            ¿Qué es?
    bpe          a subword of byte-pair encoding        ▁¿ Qu é ▁es ?
    unigram      a subword of a unigram model           ▁¿ Qu é ▁es ?

Tokens record the spacing, so that joining them restores the text:

- word: `‿` marks the side on which a punctuation mark touches its neighbour; all other tokens are
  separated by a space. Words have no `‿`, and keep apostrophes, hyphens and middle dots inside them.
- bpe, unigram: `▁` at the start of a token stands for the space before it; the first word has one
  too. A `▁` in the text itself is written `▁▁`.

Neither the marks nor the special tokens reserve a spelling: `‿`, `▁`, `<pad>` and `</s>` in a text
are ordinary characters.
"""

import contextlib
import dataclasses
import functools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from regard import migrations
from regard.config import NormalForm, TextConfig, Unit
from regard.errors import ConfigError, DataError, FolderError, shortened
from regard.files import parse_json
from regard.text import subwords
from regard.text.features import SourceLike, split_features, split_source
from regard.text.matching import match_tokens, segmented_word_ids
from regard.text.normalization import normalize
from regard.text.special_tokens import SPECIAL_TOKENS, UNK
from regard.text.units import UNITS, SizedIterable, choose_unit
from regard.text.words import display_token

if TYPE_CHECKING:
    import tokenizers


_LONGEST_EXAMPLE = 50
"""Maximum characters of a token in a message."""


class Encoding(NamedTuple):
    """One text as the model reads it, without BOS and EOS; `ids` and `tokens` have the same length."""

    ids: list[int]
    """Vocabulary ids; UNK for tokens that are not in the vocabulary."""
    tokens: list[str]
    """The tokens; unknown tokens keep their (normalised) spelling."""
    num_features: int = 0
    """Number of features among the tokens, which come last."""
    left_out: tuple[str, ...] = ()
    """Punctuation that is not in the vocabulary and was left out of the tokens."""

    @property
    def unknown(self) -> list[str]:
        """The tokens that are not in the vocabulary, in order, repeats included."""
        return [token for id, token in zip(self.ids, self.tokens, strict=True) if id == UNK]


class _Normalized:
    """Texts, normalised each time they are read."""

    def __init__(self, texts: SizedIterable, config: TextConfig) -> None:
        self._texts, self._config = texts, config

    def __iter__(self) -> Iterator[str]:
        form, lowercase = self._config.normal_form, self._config.lowercase
        return (normalize(text, form, lowercase) for text in self._texts)

    def __len__(self) -> int:
        return len(self._texts)


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A vocabulary and the rules for splitting text into tokens; create it with `train` or `from_json`.

    Ids 0 to 3 are PAD, UNK, BOS and EOS; the vocabulary starts at id 4. No text is encoded as
    ids 0, 2 or 3, even if it contains the spellings of these tokens.
    """

    unit: Unit
    """The unit that tokens represent; never `auto`."""
    vocabulary: tuple[str, ...] = dataclasses.field(repr=False)
    """Tokens by id, without the four special tokens; bpe and unigram store a space as a space, not as `▁`."""
    normal_form: NormalForm = "NFC"
    """Unicode normal form to which text is converted first."""
    lowercase: bool = False
    """Whether to lower-case the text after normalisation."""
    match_vocabulary: bool = False
    """Whether to match words and punctuation that are not in the vocabulary to tokens that are."""
    merges: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    """Byte-pair merges, in order; empty for other units."""
    log_probs: tuple[float, ...] = dataclasses.field(default=(), repr=False)
    """Natural logarithms of the unigram probabilities, one per vocabulary token."""
    features: tuple[str, ...] | None = dataclasses.field(default=None, repr=False)
    """Features of sources (`V`, `PST`), whose ids follow the vocabulary; None if there are none."""
    right_to_left: bool = dataclasses.field(default=False, compare=False)
    """Whether tokens are listed from the last to the first, for targets of a model that predicts them in
    this order (`model.right_to_left`, which alone is stored)."""

    @classmethod
    def train(
        cls,
        texts: Iterable[str],
        config: TextConfig,
        features: Iterable[str | None] | None = None,
    ) -> "Tokenizer":
        """Learn a vocabulary. The result is deterministic.

        Tokens (for bpe and unigram: characters) that occur fewer than `min_frequency` times
        are left out. If more than `vocabulary_size` remain, the most frequent are kept; ties are
        broken alphabetically, by code point. A bpe merge must occur at least twice.

        Args:
            texts: one side of the training pairs. An iterable with a length is iterated over several
                times and is never held in memory as a whole.
            config: text settings; `choose_unit` resolves the unit `auto`.
            features: features of each text, such as `V;PST`, split at `;`, `|`, `,` and spaces. Each
                is a token, and all are added to the vocabulary (Kann and Schütze 2016, "MED: The LMU System
                for the SIGMORPHON 2016 Shared Task", section 3, where the features come first). They
                are normalised but never lower-cased.

        Raises:
            DataError: a text contains a lone surrogate.
        """
        size = config.vocabulary_size - len(SPECIAL_TOKENS)
        if not isinstance(texts, Sized):
            texts = list(texts)
        normalized = _Normalized(texts, config)
        unit = choose_unit(normalized) if config.unit == "auto" else config.unit
        split = UNITS[unit].split
        fields: dict[str, Any]
        if split is None:
            fields = subwords.train(unit, normalized, size, config.min_frequency)
        else:
            counts = Counter(chain.from_iterable(map(split, normalized)))
            tokens = subwords.most_frequent(counts, size, config.min_frequency)
            fields = {"vocabulary": tuple(tokens)}
        if features is not None:
            tags = (split_features(line or "", config.normal_form) for line in features)
            fields["features"] = tuple(sorted(set(chain.from_iterable(tags))))
        names = ("normal_form", "lowercase", "match_vocabulary")
        return cls(unit, **{name: getattr(config, name) for name in names}, **fields)

    def in_order(self, right_to_left: bool) -> "Tokenizer":
        """Return a tokenizer that lists tokens in this order."""
        if right_to_left == self.right_to_left:
            return self
        return dataclasses.replace(self, right_to_left=right_to_left)

    def __len__(self) -> int:
        """Size V of the vocabulary, special tokens and features included."""
        return len(self._entries)

    def normalize(self, text: str) -> str:
        """Return the text in the normal form, lower-cased if `lowercase`."""
        return normalize(text, self.normal_form, self.lowercase)

    def parse_source(self, line: str) -> tuple[str, str | None]:
        """Split an input line at its TAB into text and features; without features, a TAB is text."""
        text, tab, features = line.partition("\t") if self.features is not None else (line, "", "")
        return text, features if tab else None

    def encode(self, text: str, features: str | None = None) -> Encoding:
        """Tokenize one text and its features, without adding BOS and EOS."""
        return self.encode_batch([(text, features)])[0]

    def encode_batch(
        self, sources: Sequence[SourceLike], outer_spaces: bool = False
    ) -> list[Encoding]:
        """Tokenize several sources, each a text or a pair (text, features), in order.

        Subwords take whitespace that is not in the vocabulary for a space.

        Args:
            sources: the sources.
            outer_spaces: keep whitespace at both ends of a text, which is then the beginning of a longer
                one; otherwise it is left out.

        Raises:
            ConfigError: features are given, but this tokenizer was trained without them.
            DataError: a text is not a string, or contains a lone surrogate.
        """
        for source in sources:
            text: Any = source[0] if isinstance(source, tuple) and len(source) == 2 else source
            if not isinstance(text, str):
                raise DataError(f"expected each text to be a string, got {text!r}")
        parts = [split_source(source) for source in sources]
        texts = [self.normalize(text) for text, _ in parts]
        if not outer_spaces:
            texts = [text.strip() for text in texts]
        split = UNITS[self.unit].split
        if split is None:
            encodings = self._encode_subwords(texts)
        elif self._matches_vocabulary:
            known = self._token_ids, self._longest
            matched = (match_tokens(tokens, *known) for tokens in map(split, texts))
            encodings = [Encoding(ids, tokens, left_out=rest) for ids, tokens, rest in matched]
        else:
            encodings = [
                Encoding(self.tokens_to_ids(tokens), tokens) for tokens in map(split, texts)
            ]
        if self.right_to_left:
            encodings = [
                each._replace(ids=each.ids[::-1], tokens=each.tokens[::-1]) for each in encodings
            ]
        return [
            encoding if features is None else self._add_features(encoding, features)
            for encoding, (_, features) in zip(encodings, parts, strict=True)
        ]

    def _add_features(self, encoding: Encoding, features: str) -> Encoding:
        if self.features is None:
            raise ConfigError(
                f"this model reads no source features, got {shortened(features)!r}: omit them, or "
                "train with data.features_column"
            )
        tags = split_features(features, self.normal_form)
        ids = [self._feature_ids.get(tag, UNK) for tag in tags]
        return encoding._replace(
            ids=[*encoding.ids, *ids], tokens=[*encoding.tokens, *tags], num_features=len(tags)
        )

    def ids_to_tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the token of each id, special tokens included.

        Raises:
            DataError: an id is not in this vocabulary.
        """
        entries = self._entries
        with contextlib.suppress(IndexError, TypeError):
            if min(ids, default=0) >= 0:
                return [entries[id] for id in ids]
        wrong = next(id for id in ids if not (hasattr(id, "__index__") and 0 <= id < len(entries)))
        raise DataError(f"expected ids from 0 to {len(entries) - 1}, got {wrong!r}")

    def tokens_to_ids(self, tokens: Sequence[str]) -> list[int]:
        """Return the vocabulary id of each token; UNK for tokens that are not in the vocabulary."""
        return [self._token_ids.get(token, UNK) for token in tokens]

    def detokenize(self, tokens: Sequence[str]) -> str:
        """Join tokens, from this vocabulary or copied from a source, into text."""
        return "".join(UNITS[self.unit].join(tokens[:: -1 if self.right_to_left else 1]))

    def decode(self, ids: Sequence[int]) -> str:
        """Convert ids to text; UNK becomes `<unk>`, and other special tokens are omitted.

        Raises:
            DataError: an id is not in this vocabulary.
        """
        pairs = zip(ids, self.ids_to_tokens(ids), strict=True)
        return self.detokenize(
            [token for id, token in pairs if id == UNK or id >= len(SPECIAL_TOKENS)]
        )

    def word_ids(self, tokens: Sequence[str], num_features: int = 0) -> list[int | None]:
        """Return the index of the word of each token, from 0, as used in alignments.

        For word, bpe and unigram, the words are those of `detokenize(tokens).split()`: subwords and
        attached punctuation share an index; a space alone has the index of the word after it, or
        None at the end. For char, grapheme and whitespace, every token, spaces included, has its own
        index. So do each of the last `num_features` tokens, which are features, and each word in
        a text without spaces that `match_vocabulary` has split.
        """
        if self.right_to_left:
            return self.in_order(False).word_ids(tokens[::-1])[::-1]
        if num_features:
            word_ids = self.word_ids(tokens[:-num_features])
            first = 1 + max((index for index in word_ids if index is not None), default=-1)
            return [*word_ids, *range(first, first + num_features)]
        if not UNITS[self.unit].has_words:
            return list(range(len(tokens)))
        segmented = segmented_word_ids(tokens) if self._matches_vocabulary else None
        if segmented is not None:
            return [*segmented]
        indices: list[int] = []
        count, inside = 0, False
        for piece in UNITS[self.unit].join(tokens):
            blank = not piece.strip()
            count += not blank and (not inside or piece[0].isspace())
            inside = not (blank or piece[-1].isspace())
            indices.append(count if blank else count - 1)
        return [index if index < count else None for index in indices]

    def words_of(self, encoding: Encoding) -> list[int | None]:
        """Return the index of the word of each token of an encoding (see `word_ids`)."""
        return self.word_ids(encoding.tokens, encoding.num_features)

    def to_json(self) -> str:
        """Return a JSON document that contains the whole tokenizer."""
        document = {"format": migrations.FORMAT, **dataclasses.asdict(self)}
        document.pop("right_to_left")
        return json.dumps(document, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> "Tokenizer":
        """Create a tokenizer from the result of `to_json`, in this or an earlier format.

        Raises:
            FolderError: the document is malformed, or in a later format.
        """
        try:
            document = migrations.convert_tokenizer(parse_json(text))
            version = document.pop("format")
            if version > migrations.FORMAT:
                raise ValueError(
                    f"its format is {version}, but this version of regard reads formats up to "
                    f"{migrations.FORMAT}"
                )
            for name in ("vocabulary", "log_probs", "features"):
                if document.get(name) is not None:
                    document[name] = tuple(document[name])
            document["merges"] = tuple((left, right) for left, right in document["merges"])
            return cls(**document)._validate()
        except Exception as error:  # a damaged document can raise any exception
            raise FolderError(
                f"the tokenizer cannot be read ({type(error).__name__}: {error}); "
                "copy the model folder again, or update regard"
            ) from None

    def _validate(self) -> "Tokenizer":
        subword = UNITS[self.unit].split is None
        special = SPECIAL_TOKENS if subword else ()
        entries = {*special, *self.vocabulary}
        if not (
            self.normal_form in get_args(NormalForm)
            and self.lowercase in (True, False)
            and self.match_vocabulary in (True, False)
            and not self.right_to_left
            and all(type(token) is str and token for token in self.vocabulary)
            and len(entries) == len(special) + len(self.vocabulary)
            and all(entries.issuperset((left, right, left + right)) for left, right in self.merges)
            and len(self.log_probs) == (len(self.vocabulary) if self.unit == "unigram" else 0)
            and all(map(math.isfinite, self.log_probs))
            and all(type(feature) is str and feature for feature in self.features or ())
        ):
            raise ValueError("its fields are inconsistent")
        return self

    def _encode_subwords(self, texts: Sequence[str]) -> list[Encoding]:
        marked = [" " + text.translate(self._unknown_spaces) if text else "" for text in texts]
        encodings: list[Encoding] = []
        for text, encoding in zip(marked, self._subword_model.encode_batch(marked), strict=True):
            tokens = [
                subwords.mark_space(text[start:end]) if id == UNK else self._entries[id]
                for id, (start, end) in zip(encoding.ids, encoding.offsets, strict=True)
            ]
            encodings.append(Encoding(encoding.ids, tokens))
        return encodings

    @property
    def _matches_vocabulary(self) -> bool:
        return self.match_vocabulary and self.unit == "word"

    @functools.cached_property
    def _entries(self) -> list[str]:
        """Tokens by id, special tokens and features included."""
        subword = UNITS[self.unit].split is None
        tokens = map(subwords.mark_space, self.vocabulary) if subword else self.vocabulary
        return [*SPECIAL_TOKENS, *tokens, *(self.features or ())]

    @functools.cached_property
    def _token_ids(self) -> dict[str, int]:
        first, last = len(SPECIAL_TOKENS), len(SPECIAL_TOKENS) + len(self.vocabulary)
        return {token: id for id, token in enumerate(self._entries[first:last], start=first)}

    @functools.cached_property
    def _longest(self) -> int:
        """Number of characters of the longest token in the vocabulary."""
        return max(map(len, self._token_ids), default=0)

    @functools.cached_property
    def _feature_ids(self) -> dict[str, int]:
        first = len(SPECIAL_TOKENS) + len(self.vocabulary)
        return {feature: id for id, feature in enumerate(self.features or (), start=first)}

    @functools.cached_property
    def _unknown_spaces(self) -> dict[int, str]:
        """A space for every other whitespace character that is not in the vocabulary."""
        characters = filter(str.isspace, map(chr, range(0x3001)))
        return {ord(each): " " for each in characters if each not in self._token_ids}

    @functools.cached_property
    def _subword_model(self) -> "tokenizers.Tokenizer":
        return subwords.load(self.unit, self.vocabulary, self.merges, self.log_probs)


def unknown_tokens_message(tokens: Counter[str]) -> str:
    """Return a message with the number of unknown tokens and the most frequent of them."""
    return f"tokens not in the vocabulary: {count_message(tokens)}"


def count_message(tokens: Counter[str]) -> str:
    """Return the number of tokens and the most frequent of them, as they are displayed."""
    displayed: Counter[str] = Counter()
    for token, count in tokens.items():
        text = display_token(token)
        displayed[text if len(text) <= _LONGEST_EXAMPLE else text[:_LONGEST_EXAMPLE] + "…"] += count
    examples = ", ".join(f"{token!r} {count}x" for token, count in displayed.most_common(5))
    more = ", …" if len(displayed) > 5 else ""
    return f"{tokens.total():,} ({examples}{more})"

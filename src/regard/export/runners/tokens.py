"""Tokenize and detokenize with the tables of an exported model."""

import re
import unicodedata

from words import attach, detach, match

PAD, UNK, BOS, EOS = range(4)
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
LETTERS = r"[^\s\x1c-\x1f\p{P}\p{S}]+"
WORD = rf"{LETTERS}(?:['’\-‐‑·]{LETTERS})*"
PATTERNS = {"grapheme": r"\X", "word": rf"‿|{WORD}|\X"}
SUBWORDS = rf"▁| ?(?:{WORD}|(?![\s\x1c-\x1f▁])\X)|[\s\x1c-\x1f]"


class Tokenizer:
    """One side of a model."""

    def __init__(self, table):
        self.table, self.unit, entries = table, table["unit"], table["vocabulary"]
        self.split = {"char": list, "whitespace": str.split}.get(self.unit)
        self.split = self.split or self.make_splitter([*SPECIAL, *entries])
        subwords = map(mark_space, entries) if self.unit in ("bpe", "unigram") else entries
        self.tokens = [*SPECIAL, *subwords]
        self.ids = {token: id for id, token in enumerate(self.tokens) if id > EOS}
        self.tags = {tag: id for id, tag in enumerate(table["features"] or [], len(self.tokens))}

    def make_splitter(self, names):
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers

        pattern = Regex(PATTERNS.get(self.unit, SUBWORDS))
        pieces = pre_tokenizers.Split(pattern, "isolated")
        find = lambda text: [piece for piece, _ in pieces.pre_tokenize_str(text)]
        if self.unit in PATTERNS:
            words = lambda text: [part for chunk in text.split() for part in attach(find(chunk))]
            return words if self.unit == "word" else find
        if self.unit == "bpe":
            ids, merges = {name: id for id, name in enumerate(names)}, self.table["merges"]
            model = models.BPE(ids, [tuple(pair) for pair in merges], unk_token="<unk>")
        else:
            scores = [0.0] * 4 + self.table["log_probs"]
            model = models.Unigram([*zip(names, scores, strict=True)], unk_id=UNK)
        subwords = Tokenizer(model)
        subwords.pre_tokenizer = pieces
        offsets = lambda text: subwords.encode(text).offsets if text.strip(" ") else []
        cut = lambda text: [mark_space(text[start:end]) for start, end in offsets(text)]
        spaces = {
            ord(each): " "
            for each in map(chr, range(0x3001))
            if each.isspace() and each not in names
        }
        return lambda text: cut(" " + text.translate(spaces)) if text else []

    def compose(self, text):
        form, marks = self.table["normal_form"], 0
        if form == "none" or text.isascii():
            return text
        for c in text if len(text) > 1000 else "":  # normalising marks takes quadratic time
            marks = marks + 1 if unicodedata.combining(unicodedata.normalize("NFKD", c)[0]) else 0
            if marks > 1000:
                raise ValueError("more than 1,000 combining characters in a row; correct the text")
        return unicodedata.normalize(form, text)

    def normalize(self, text):
        text = self.compose(text)
        return self.compose(text.lower()) if self.table["lowercase"] else text

    def parse(self, line):
        """Return the text of a line and its features, which follow a TAB."""
        reads_features = self.table["features"] is not None
        text, _, tags = line.partition("\t") if reads_features else (line, "", "")
        return text, tags

    def features(self, line):
        tags = re.split(r"[;|,\s]+", self.compose(self.parse(line)[1]))
        return [tag for tag in tags if tag]

    def encode(self, line):
        """Return the tokens of a line, of which features are the last, and their ids."""
        tokens = self.split(self.normalize(self.parse(line)[0]).strip())
        known = [(token, self.ids.get(token, UNK)) for token in tokens]
        if self.table["match_vocabulary"] and self.unit == "word":
            known = match(tokens, self.ids)
        known += [(tag, self.tags.get(tag, UNK)) for tag in self.features(line)]
        return [token for token, _ in known], [id for _, id in known]

    def decode(self, tokens):
        if self.unit == "word":
            return detach(tokens)
        if self.unit in ("bpe", "unigram"):
            parts = ["▁" if t == "▁▁" else " " + t[1:] if t.startswith("▁") else t for t in tokens]
            return "".join(parts).removeprefix(" ")
        return (" " if self.unit == "whitespace" else "").join(tokens)


def mark_space(part):
    return "▁▁" if part == "▁" else "▁" + part[1:] if part.startswith(" ") else part

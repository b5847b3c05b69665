"""Words and punctuation marks: their spacing, and unknown ones matched to the vocabulary."""

import re
from itertools import chain, groupby
from unicodedata import category

UNK = 1
# Thai and Lao, Myanmar, Khmer, kana, Han
SCRIPTS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
UNSPACED = re.compile(f"[{SCRIPTS}]")
UNITS = re.compile(f"[{SCRIPTS}]|[^{SCRIPTS}]+")


def attach(parts):
    """Mark with ‿ the side on which a punctuation mark touches its neighbour."""
    marks = [part != "‿" and category(part[0])[0] in "PS" for part in parts]
    for index in range(len(parts) - 1):
        if marks[index] and not marks[index + 1]:
            parts[index] += "‿"
        else:
            parts[index + 1] = "‿" + parts[index + 1]
    return parts


def detach(tokens):
    text, joined = "", True
    for token in tokens:
        left = len(token) > 1 and token.startswith("‿")
        part = token[1:] if left else token
        right = len(part) > 1 and part.endswith("‿")
        text += ("" if joined or left else " ") + (part[:-1] if right else part)
        joined = right
    return text


def match(tokens, ids):
    """Return tokens and ids: words without spaces are split, unknown outer marks are left out."""
    longest, chunks, joined = max(map(len, ids), default=1), [], False
    for piece in chain.from_iterable(segment(token, ids, longest) for token in tokens):
        if not chunks or not (joined or (len(piece) > 1 and piece[0] == "‿")):
            chunks.append([])
        chunks[-1].append((piece, find(piece, ids)))
        joined = len(piece) > 1 and piece[-1] == "‿"
    kept = []
    for chunk in reversed(chunks):  # without unknown marks at the end of the text
        if (inner := trim(chunk)) or kept:
            kept.insert(0, inner or chunk)
    return [*chain.from_iterable(kept or chunks)]


def segment(token, ids, longest):
    """Split a token of a script without spaces into as few known words as possible."""
    if token in ids or not UNSPACED.search(token) or is_mark(token):
        return [token]
    units, best = UNITS.findall(bare(token)), [(0, 0)]
    for end in range(1, len(units) + 1):  # number of words, unknown ones as 1000; start
        starts = range(max(0, end - longest), end)
        known = [
            (best[start][0] + 1, start) for start in starts if "".join(units[start:end]) in ids
        ]
        best.append(min([*known, (best[end - 1][0] + 1000, end - 1)]))
    words, end = [], len(units)
    while end:
        words.append("".join(units[best[end][1] : end]))
        end = best[end][1]
    runs = [(known, [*run]) for known, run in groupby(reversed(words), ids.__contains__)]
    pieces = [piece for known, run in runs for piece in (run if known else ["".join(run)])]
    pieces[-1] += "‿" if token[-1] == "‿" else ""
    return [("‿" if index or token[0] == "‿" else "") + piece for index, piece in enumerate(pieces)]


def find(token, ids):
    """Return the id of a token or, for marks and parts of a word, of another spacing."""
    text = bare(token)
    spellings = [token, text]
    if is_mark(token):
        spellings += ["‿" + text, text + "‿", "‿" + text + "‿"]
    return next((ids[spelling] for spelling in spellings if spelling in ids), UNK)


def trim(chunk):
    """Leave out unknown punctuation at both ends, to which its neighbours are joined no more."""
    kept = [index for index, (token, id) in enumerate(chunk) if id != UNK or not is_mark(token)]
    inner = chunk[kept[0] : kept[-1] + 1] if kept else []
    if kept and kept[0] and inner[0][0] != "‿":
        inner[0] = inner[0][0].removeprefix("‿"), inner[0][1]
    if kept and kept[-1] + 1 < len(chunk) and inner[-1][0] not in ("‿", "‿‿"):
        inner[-1] = inner[-1][0].removesuffix("‿"), inner[-1][1]
    return inner


def bare(token):
    rest = token[1:] if len(token) > 1 and token[0] == "‿" else token
    return rest[:-1] if len(rest) > 1 and rest[-1] == "‿" else rest


def is_mark(token):
    first, *rest = map(category, bare(token))
    return bare(token) != "‿" and first[0] in "PS" and all(c[0] in "PSM" or c == "Cf" for c in rest)

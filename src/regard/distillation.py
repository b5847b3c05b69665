"""Distillation: the outputs of a model, such as an ensemble, as pairs to train another model on.

Sequence-level knowledge distillation (Kim and Rush 2016, arXiv:1606.07947, section 3.2): the targets
are the teacher's best outputs of beam search. They are added to the original targets.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from regard.errors import FolderError
from regard.files import write_errors_reported, write_json
from regard.lines import chunks_of, decode_lines
from regard.model_folder import checksum, unshared_tensors
from regard.pairs import Pair
from regard.setting_checks import MAX_LENGTH
from regard.text import SPECIAL_TOKENS, UNK
from regard.text.normalization import may_be_too_long
from regard.translator import Translator

_OTHER_SOURCES = (
    "{} contains outputs for other sources; give the same pairs and lines to resume, or choose another folder "
    "(--out)"
)
_CHUNK = 500
"""Number of sources that are translated between two writes."""

SourceWithFeatures = tuple[str, str | None]
"""A text and its features."""


def distinct_sources(sources: Iterable[SourceWithFeatures]) -> list[SourceWithFeatures]:
    """Return the sources that are not blank, each once, with spaces for what separates lines and fields.

    A byte-order mark at the beginning is left out, because files of text may begin with one.
    """
    fields = (
        (_field(text.lstrip("\ufeff")), None if features is None else _field(features))
        for text, features in sources
    )
    return [source for source in dict.fromkeys(fields) if source[0].strip()]


def translatable(
    teacher: Translator, sources: Sequence[SourceWithFeatures]
) -> list[SourceWithFeatures]:
    """Return the sources that a model can read: those of at most `MAX_LENGTH` tokens."""
    many = [source for source in sources if may_be_too_long(*source)]
    encodings = teacher.source.encode_batch(many)
    too_long = {
        source
        for source, encoding in zip(many, encodings, strict=True)
        if len(encoding.ids) > MAX_LENGTH
    }
    return [source for source in sources if source not in too_long]


def write_outputs(
    teacher: Translator,
    sources: Sequence[SourceWithFeatures],
    path: str | Path,
    beam_size: int = 5,
    on_progress: Callable[[int, int], None] | None = None,
) -> list[Pair]:
    """Write the teacher's best output for every source, and return the pairs without empty outputs.

    An output with an unknown token is written as an empty one.

    The lines of the file are source TAB output, followed by TAB features where a source has them. Lines
    that the file already contains are kept: a call that was interrupted continues where it stopped. A
    JSON file with the same stem identifies the teacher and the search that they come from.

    Args:
        teacher: the model that translates the sources.
        sources: the result of `distinct_sources`.
        path: the file to write.
        beam_size: beam size of the search.
        on_progress: called for each new part of the file, with the number of outputs and the number of
            those that are truncated at the length limit.

    Raises:
        FolderError: the file contains outputs for other sources, of another teacher or of another search.
    """
    path = Path(path)
    _require_same_search(path, teacher, beam_size, sources)
    done = _outputs_so_far(path, sources)
    if on_progress is not None:
        on_progress(len(done), 0)  # the call that wrote them has counted those that were truncated
    with (
        write_errors_reported(path.parent),
        path.open("a", encoding="utf-8", newline="\n") as file,
    ):
        for chunk in chunks_of(sources[len(done) :], _CHUNK, lambda source: len(source[0])):
            outputs = teacher.translate(chunk, beam_size)
            texts = (
                "" if SPECIAL_TOKENS[UNK] in output.tokens else _field(output.text)
                for output in outputs
            )
            new = [
                Pair(text, out, features)
                for (text, features), out in zip(chunk, texts, strict=True)
            ]
            file.writelines(_line(pair) for pair in new)
            file.flush()
            done += new
            if on_progress is not None:
                on_progress(len(new), sum(not output.complete for output in outputs))
    return [pair for pair in done if pair.target.strip()]


def _require_same_search(
    path: Path, teacher: Translator, beam_size: int, sources: Sequence[SourceWithFeatures]
) -> None:
    """Describe the search beside a new file of outputs; for existing outputs, compare the description."""
    parts = [part for part in (teacher.trained, teacher.trained.reranker) if part is not None]
    checksums = [checksum(unshared_tensors(part.model)) for part in parts]
    search = {"teacher": " ".join(checksums), "beam_size": beam_size}
    given = hashlib.sha256(repr(sources).encode("utf-8", "surrogatepass")).hexdigest()
    file = path.with_suffix(".json")
    stored = _read_description(file)
    is_empty = not (path.exists() and path.stat().st_size)
    if is_empty and (not file.exists() or search.keys() <= stored.keys()):
        write_json(file, {**search, "sources": given})
        return
    known = stored.pop("sources", given)  # earlier versions have not recorded the sources
    if stored != search:
        raise FolderError(
            f"{path} contains outputs of another model or beam size, or {file} describes others; give the same model and "
            "--beam-size to resume, or choose another folder (--out)"
        )
    if known != given:
        raise FolderError(_OTHER_SOURCES.format(path))


def _read_description(file: Path) -> dict[str, Any]:
    """Return the description of a search; an empty one if the file cannot be read."""
    try:
        return {**json.loads(file.read_text("utf-8"))}
    except (OSError, ValueError, TypeError):
        return {}


def _outputs_so_far(path: Path, sources: Sequence[SourceWithFeatures]) -> list[Pair]:
    """Return the pairs in a file, from which an incomplete last line is removed."""
    if not path.exists():
        return []
    content = path.read_bytes()
    complete = content[: content.rfind(b"\n") + 1]
    rows = [line.split("\t") for line in decode_lines(complete, str(path))]
    pairs = [
        Pair(text, row[1] if len(row) > 1 else "", features)
        for row, (text, features) in zip(rows, sources, strict=False)
    ]
    if len(rows) > len(sources) or any(
        _line(pair) != "\t".join(row) + "\n" for pair, row in zip(pairs, rows, strict=True)
    ):
        raise FolderError(_OTHER_SOURCES.format(path))
    os.truncate(path, len(complete))
    return pairs


def _field(text: str) -> str:
    """Return the text with a space for each TAB and each line break, which would end a field of a line."""
    return text.translate({ord(character): " " for character in "\t\r\n"})


def _line(pair: Pair) -> str:
    return "\t".join(field for field in pair if field is not None) + "\n"

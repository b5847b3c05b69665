"""Comparison of an exported folder with PyTorch: the same outputs, attention weights and log-probabilities."""

import contextlib
import importlib
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from regard.errors import ConfigError, shortened
from regard.hypotheses import length_normalization
from regard.text import SPECIAL_TOKENS, Encoding, SourceLike
from regard.translation import Translation
from regard.translator import Translator

RUNNERS = Path(__file__).with_name("runners")
"""The runners, which are copied into exported folders."""

_BEAM_SIZES = (1, 5)
_LENGTHS = (1, 2, 3, 4, 6, 9, 14, 20, 30)
"""Lengths of random sources, in tokens."""
_TOLERANCE = 1e-4
"""Largest accepted difference of an attention weight, and of a log-probability per output token."""


class Parity(NamedTuple):
    """How far the outputs of an exported folder are from those of PyTorch."""

    sources: int
    """Number of sources compared."""
    weights: float
    """Largest difference of an attention weight."""
    log_probs: float
    """Largest difference of the log-probability of an output."""


def check_parity(translator: Translator, folder: Path) -> Parity:
    """Compare the outputs of the Python runner with those of PyTorch.

    The sources are those of `sample_sources`. The source tokens and their ids must be the same. Where the runner
    gives other output tokens, their log-probability must be that of PyTorch's output: the order of equally
    probable outputs is arbitrary.

    Raises:
        ConfigError: a source token, an output, an attention weight or a log-probability differs.
    """
    largest, lines = np.zeros(2), sample_sources(translator)
    with _python_runner() as runner:
        model = runner.Model(folder)
        for line in lines:
            source = translator.source.parse_source(line)
            _check_tokens(model.source.encode(line), translator.source.encode(*source), line)
            for beam_size in _BEAM_SIZES:
                expected = translator.translate([source], beam_size)[0]
                output = model.translate(line, beam_size)[0]
                largest = np.maximum(largest, _difference(translator, source, output, expected))
    return Parity(len(lines), *largest.tolist())


def sample_sources(translator: Translator) -> list[str]:
    """Return the model's examples and random sources of different lengths, as lines.

    For a tokenizer that matches unknown words and punctuation to its vocabulary, each of them is
    repeated with punctuation at both ends, and without spaces.
    """
    generator = np.random.default_rng(1)
    known = range(len(SPECIAL_TOKENS), len(SPECIAL_TOKENS) + len(translator.source.vocabulary))
    longest = translator.trained.metadata.get("max_source_length", max(_LENGTHS))
    lengths = [length for length in _LENGTHS if length <= longest] if known else []
    ids = [generator.choice(known, length).tolist() for length in lengths for _ in range(2)]
    texts = [*translator.trained.metadata.get("examples", []), *map(translator.source.decode, ids)]
    if translator.source.match_vocabulary:
        texts += [f"«{text}!" for text in texts] + ["".join(text.split()) for text in texts]
    return [text for text in texts if translator.source.parse_source(text)[0].strip()]


def _check_tokens(found: tuple[list[str], list[int]], expected: Encoding, line: str) -> None:
    if found != (expected.tokens, expected.ids):
        raise ConfigError(
            f"the tokenizer of the exported runner differs for the source {shortened(line)!r}: expected "
            f"{shortened(' '.join(expected.tokens))!r}, got {shortened(' '.join(found[0]))!r}; please report "
            "this with the model's source.json"
        )


def _difference(
    translator: Translator, source: SourceLike, output: dict[str, Any], expected: Translation
) -> tuple[float, float]:
    """Return the largest differences of the attention weights and of the log-probability."""
    weights = 0.0
    log_probs = abs(output["score"] - expected.score) * length_normalization(
        len(expected.tokens) + 1, 1.0
    )
    if output["tokens"] != expected.tokens:  # right only if both are equally probable
        expected = translator.align([source], [output["tokens"]])[0]
        log_probs = max(log_probs, abs(output["log_prob"] - expected.log_prob))
    elif expected.attention is not None and expected.tokens:
        weights = float(np.abs(np.array(output["attention"]) - expected.attention).max())
    if weights > _TOLERANCE or log_probs > _TOLERANCE * (1 + len(expected.tokens)):
        raise ConfigError(
            f"the exported model differs from PyTorch for the source {shortened(str(source[0]))!r}: "
            f"attention weights by {weights:.1g}, the log-probability by {log_probs:.1g}; please report "
            "this with the model's config.json"
        )
    return weights, log_probs


@contextlib.contextmanager
def _python_runner() -> Generator[Any]:
    """Import the runner as a user of an exported folder does, with its own folder on the path."""
    names = ["words", "tokens", "translate"]
    saved = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    sys.path.insert(0, str(RUNNERS))
    try:
        yield importlib.import_module("translate")
    finally:
        sys.path.remove(str(RUNNERS))
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(saved)

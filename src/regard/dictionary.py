"""Dictionary: outputs that a file lists for some sources; the model translates the others."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from regard.errors import ConfigError, DataError
from regard.pairs import PairLike, read_pairs, to_pairs
from regard.request import prepare, to_list
from regard.setting_checks import check_beam_size, check_length_penalty
from regard.text import SourceLike, split_source
from regard.translation import Translation, with_alternatives
from regard.translator import Translator


class Dictionary:
    """Targets listed for sources, and a translator for all other sources.

    Sources are compared after the translator's normalisation (Unicode form, lower-casing) and without
    spaces at their ends. A listed target is taken as certain: its score and log-probability are 0, its
    probability is 1 (so that the margin is 0 where several targets are listed). Its attention is that of
    the translator when it is forced to produce the target.

    Args:
        translator: translates the sources that are not listed.
        pairs: (source, target); several targets of one source keep their order.

    Raises:
        ConfigError: the translator reads features, which a dictionary does not have.
        DataError: an item is not a pair of strings, or one of them is blank.
    """

    def __init__(self, translator: Translator, pairs: Iterable[PairLike] = ()) -> None:
        if translator.source.features is not None:
            raise ConfigError(
                "a dictionary lists sources without features, which this model reads; omit the dictionary"
            )
        self.translator = translator
        self.targets: dict[str, list[str]] = {}
        for pair in to_pairs(pairs):
            if pair.features is not None:
                raise DataError("a dictionary lists sources without features: leave them out")
            self.add(pair.source, pair.target)

    @classmethod
    def read(
        cls,
        path: str | Path,
        translator: Translator,
        on_repeated: Callable[[int], None] | None = None,
    ) -> "Dictionary":
        """Read a TSV file of source TAB target, plain or `.gz`; further columns are ignored.

        Args:
            path: the file, in any format that `regard train` reads.
            translator: translates the sources that are not listed.
            on_repeated: called with the number of every line that repeats an earlier one, from 1.

        Raises:
            DataError: the file cannot be read, or a line has no source or no target.
            ConfigError: the translator reads features.
        """
        dictionary = cls(translator)
        parsed = read_pairs(str(path))
        parsed.require_valid("correct or delete them")
        for number, pair in zip(parsed.numbers, parsed.pairs, strict=True):
            if not dictionary.add(pair.source, pair.target) and on_repeated is not None:
                on_repeated(number)
        return dictionary

    def add(self, source: str, target: str) -> bool:
        """List a target for a source; return False if it is listed already.

        Raises:
            DataError: the source or the target is not a string, or is blank.
        """
        for value in (source, target):
            if not isinstance(value, str) or not value.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
                raise DataError(f"a dictionary lists strings that are not blank, got {value!r}")
        targets = self.targets.setdefault(self._key(source), [])
        if target in targets:
            return False
        targets.append(target)
        return True

    def lookup(self, source: SourceLike) -> list[str]:
        """Return the targets listed for a source."""
        return self.targets.get(self._key(split_source(source)[0]), [])

    def translate(
        self,
        texts: str | Iterable[SourceLike],
        beam_size: int = 5,
        n_best: int = 1,
        length_penalty: float = 1.0,
    ) -> Translation | list[Translation] | list[list[Translation]]:
        """Return what is listed for each text, up to `n_best` targets, and translate the others.

        These arguments, and the results, are those of `Translator.translate`.
        """

        def search(sources: Sequence[SourceLike]) -> list[list[Translation]]:
            request = prepare(self.translator.trained, sources)
            return self.translator.search(request, beam_size, n_best, length_penalty)

        check_beam_size(beam_size=beam_size, n_best=n_best)
        check_length_penalty(length_penalty)
        answers = [outputs[:n_best] for outputs in self.answer(to_list(texts), search)]
        results = answers if n_best > 1 else [outputs[0] for outputs in answers]
        return results[0] if isinstance(texts, str) else results

    def answer(
        self,
        sources: Sequence[SourceLike],
        search: Callable[[Sequence[SourceLike]], list[list[Translation]]],
        need_weights: bool = True,
    ) -> list[list[Translation]]:
        """Return all listed targets of each source, or else what `search` returns for it.

        Args:
            sources: the sources.
            search: returns the outputs of those that are not listed.
            need_weights: compute the attention of listed targets; otherwise the model is not used for
                them, and their outputs have neither source tokens nor attention.
        """
        found = [self.lookup(source) for source in sources]
        pairs = [
            (source, target)
            for source, targets in zip(sources, found, strict=True)
            for target in targets
        ]
        listed = iter(self._aligned(pairs) if need_weights else self._bare(pairs))
        remaining = [source for source, targets in zip(sources, found, strict=True) if not targets]
        searched = iter(search(remaining) if remaining else [])
        return [
            with_alternatives([next(listed) for _ in targets]) if targets else next(searched)
            for targets in found
        ]

    def _aligned(self, pairs: Sequence[tuple[SourceLike, str]]) -> list[Translation]:
        sources, targets = [source for source, _ in pairs], [target for _, target in pairs]
        outputs = self.translator.align(sources, targets)
        # what the model does not know has no effect on a listed target
        known: dict[str, Any] = {"score": 0.0, "log_prob": 0.0, "unknown": [], "left_out": []}
        return [
            replace(output, text=target, **known)
            for output, target in zip(outputs, targets, strict=True)
        ]

    def _bare(self, pairs: Sequence[tuple[SourceLike, str]]) -> list[Translation]:
        encodings = self.translator.target.encode_batch([target for _, target in pairs])
        return [
            Translation(split_source(source)[0], [], encoding.tokens, target, 0.0, None)
            for (source, target), encoding in zip(pairs, encodings, strict=True)
        ]

    def _key(self, source: str) -> str:
        return self.translator.source.normalize(source).strip()

"""Translator: maps texts to translations with their attention."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

import torch

from regard import attribution, ensemble
from regard.attention import Memory
from regard.attribution import Method
from regard.decoders import Decoder, StepDecoder
from regard.decoders.posterior import values_per_position
from regard.errors import ConfigError, DataError, quantity
from regard.hypotheses import Hypothesis
from regard.inference import InferenceModel
from regard.kernels.weighted_sum import without_autocast
from regard.model_folder import TrainedModel
from regard.outputs import to_translations
from regard.request import Pins, PreparedRequest, TextOrTokens, prepare, to_list
from regard.reranking import Reranker
from regard.search import beam_search, forced_decode
from regard.setting_checks import check_beam_size, check_count, check_length_penalty
from regard.text import SourceLike, Tokenizer
from regard.translation import Translation, empty_translation

_FULL_BATCH_BEAMS = 20
"""Beam size above which batches shrink in proportion, so that their memory stays bounded."""

_MOST_PROBABILITIES = 1 << 23
"""Maximum number of probabilities of tokens, and of values at source positions, that are computed at once for
several sources."""


class ForcedOptions(TypedDict, total=False):
    """Options of `Translator.align`, which documents them."""

    length_penalty: float
    batch_tokens: int
    on_progress: Callable[[int], None] | None


class Options(ForcedOptions, total=False):
    """Options of `Translator.translate`, which documents them."""

    prefix: str | Sequence[TextOrTokens] | None
    pin: Pins | Sequence[Pins] | None
    ablate_heads: Sequence[tuple[int, int]]
    return_tree: bool
    top_logprobs: int


@dataclass(frozen=True, repr=False)
class Translator:
    """A trained model with its tokenizers, on one device.

    `Translator.load(folder)` and `regard.train` return a translator.
    """

    trained: TrainedModel
    device: torch.device

    def __repr__(self) -> str:
        """Return the model's architecture and size on one line."""
        settings = self.trained.config.model.resolved()
        members = self.trained.members
        kind = f"ensemble of {len(members)}" if members else settings.kind
        parts = [kind, f"attention={settings.attention}"]
        parts += [
            f"{name}={quantity(len(getattr(self, name)), 'token')}" for name in ("source", "target")
        ]
        return f"Translator({', '.join(parts)}, device={self.device.type})"

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto") -> "Translator":
        """Load a model folder, an ensemble or a pretrained model.

        Args:
            folder: the folder that `regard train --out` or `regard ensemble --out` wrote or, if there
                is no such folder, one of the names that `regard.pretrained_models` returns.
            device: `auto` (a GPU if available), `cpu`, `cuda` or `mps`.

        Raises:
            FolderError: the folder is missing, damaged or in a newer format.
            ConfigError: the device is not available.
        """
        with torch.inference_mode(False):  # weights created in this mode have no gradients
            translator = cls(ensemble.load(folder), find_device(device))
            for part in (translator.trained, translator.trained.reranker):
                if part is not None:
                    part.model.to(translator.device)
        return translator

    @property
    def source(self) -> Tokenizer:
        """The tokenizer of sources."""
        return self.trained.source

    @property
    def target(self) -> Tokenizer:
        """The tokenizer of targets."""
        return self.trained.target

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields to copy or pickle, without those that are cached for this process."""
        return {"trained": self.trained, "device": self.device}

    @functools.cached_property
    def _inference(self) -> InferenceModel:
        return InferenceModel(self.trained.model)

    @functools.cached_property
    def _reranker(self) -> Reranker | None:
        return None if self.trained.reranker is None else Reranker(self.trained, self.device)

    @property
    def attention_layer(self) -> int:
        """The layer whose heads `Translation.attention` averages."""
        return self.trained.attention_layer

    @overload
    def translate(  # pyright: ignore[reportOverlappingOverload]: a string is iterable, too
        self, texts: str, beam_size: int = 5, n_best: Literal[1] = 1, **options: Unpack[Options]
    ) -> Translation: ...

    @overload
    def translate(
        self, texts: str, beam_size: int = 5, n_best: int = 1, **options: Unpack[Options]
    ) -> Translation | list[Translation]: ...

    @overload
    def translate(
        self, texts: Iterable[SourceLike], beam_size: int = 5, n_best: Literal[1] = 1,
        **options: Unpack[Options],
    ) -> list[Translation]: ...  # fmt: skip

    @overload
    def translate(
        self,
        texts: Iterable[SourceLike],
        beam_size: int = 5,
        n_best: int = 1,
        **options: Unpack[Options],
    ) -> list[Translation] | list[list[Translation]]: ...

    def translate(
        self,
        texts: str | Iterable[SourceLike],
        beam_size: int = 5,
        n_best: int = 1,
        length_penalty: float = 1.0,
        batch_tokens: int = 4096,
        on_progress: Callable[[int], None] | None = None,
        *,
        prefix: str | Sequence[TextOrTokens] | None = None,
        pin: Pins | Sequence[Pins] | None = None,
        ablate_heads: Sequence[tuple[int, int]] = (),
        return_tree: bool = False,
        top_logprobs: int = 0,
    ) -> Translation | list[Translation] | list[list[Translation]]:
        """Translate one or more texts; the outputs are in the same order as the texts.

        Args:
            texts: a string, or any iterable of sources (a list, a column of a table, an open file),
                each of which is a string or a pair (source, features). A line ending at the end of a
                source is removed. A blank source gives `n_best` translations with no tokens.
            beam_size: number of hypotheses kept per source, at most 1,000; 1 means greedy search.
            n_best: number of outputs per source, at most 1,000.
            length_penalty: exponent of the length penalty ((5 + length) / 6) ** length_penalty.
            batch_tokens: number of source tokens per batch, padding included; batches are smaller for
                more than 20 beams, and for a large target vocabulary.
            on_progress: called after each batch with the number of texts translated in it.
            prefix: the beginning of the output: one string for all sources, or a list with one
                prefix per source, each of which is a string or a list of tokens. A token of a list that
                is not in the vocabulary becomes `<unk>`, in a string it is an error. A right-to-left
                model predicts the end of the text first, which then is its prefix; its lists of tokens
                are in the order of prediction.
            pin: attention weights to impose, as `{step: {source token: weight}}` with steps and
                source tokens counted from 0, as in `attention`: one dict for all texts, or a list
                with one dict per text. The other source tokens share the remaining weight in
                proportion to their own weights; if those are all 0, as in sparse attention, they stay 0.
                They apply to every layer and head, and to every member of an ensemble. A posterior
                decoder imposes them on the prior; `attention` contains the posterior.
            ablate_heads: heads whose weights are set to 0, as (layer, head) pairs counted from 0; a
                recurrent model has only (0, 0).
            return_tree: store the search tree in the field `tree` of each output.
            top_logprobs: number of most probable next tokens to store for every step, in the field
                `top_logprobs` of each output (default 0).

        Returns:
            A string gives one translation; an iterable gives a list with one translation per source.
            If `n_best` is above 1, each is replaced by a list of up to `n_best`, best first.

        Raises:
            DataError: an item is neither a string nor a pair (source, features).
            ConfigError: an intervention or a setting cannot be applied.
        """
        sources = to_list(texts)
        request = prepare(self.trained, sources, prefix, pin, ablate_heads)
        n_best_lists = self.search(
            request, beam_size, n_best, length_penalty, batch_tokens, on_progress,
            return_tree, top_logprobs,
        )  # fmt: skip
        outputs = n_best_lists if n_best > 1 else [best[0] for best in n_best_lists]
        return outputs[0] if isinstance(texts, str) else outputs

    def search(
        self,
        request: PreparedRequest,
        beam_size: int = 5,
        n_best: int = 1,
        length_penalty: float = 1.0,
        batch_tokens: int = 4096,
        on_progress: Callable[[int], None] | None = None,
        return_tree: bool = False,
        top_logprobs: int = 0,
        on_step: Callable[[], None] | None = None,
    ) -> list[list[Translation]]:
        """Return the `n_best` outputs for each text, best first; other arguments as in `translate`.

        `regard.request.prepare` creates the request. `on_step` is called before every step of a
        search, or before several that are computed at once; an exception that it raises ends the search.
        """
        check_beam_size(beam_size=beam_size, n_best=n_best)
        check_length_penalty(length_penalty)
        check_count("batch_tokens", batch_tokens, 1)
        if (beams := max(beam_size, n_best)) > _FULL_BATCH_BEAMS:  # bounds the memory of a batch
            batch_tokens = batch_tokens * _FULL_BATCH_BEAMS // beams
        candidates = n_best if self._reranker is None else beams

        def decode(
            batch: PreparedRequest, memory: Memory, decoder: Decoder, steps: StepDecoder
        ) -> list[list[Hypothesis]]:
            limits = torch.tensor([source.limit for source in batch.sources]).to(self.device)
            constraints = batch.constraints(decoder, self.device)
            found = beam_search(
                steps, memory, limits, beam_size, candidates, length_penalty, constraints,
                return_tree, top_logprobs, on_step,
            )  # fmt: skip
            if self._reranker is None:
                return found
            ranked = self._reranker.rerank(batch, found, length_penalty, on_step)
            return [outputs[:n_best] for outputs in ranked]

        return self._decode(
            request, batch_tokens, decode, on_progress, n_best,
            most=lambda source, _: _MOST_PROBABILITIES // (beams * self._values(source)),
            tree=[] if return_tree else None, top_logprobs=[] if top_logprobs else None,
        )  # fmt: skip

    @overload
    def align(  # pyright: ignore[reportOverlappingOverload]
        self, texts: str, targets: str, **options: Unpack[ForcedOptions]
    ) -> Translation: ...

    @overload
    def align(
        self,
        texts: Iterable[SourceLike],
        targets: Iterable[TextOrTokens],
        **options: Unpack[ForcedOptions],
    ) -> list[Translation]: ...

    def align(
        self,
        texts: str | Iterable[SourceLike],
        targets: str | Iterable[TextOrTokens],
        length_penalty: float = 1.0,
        batch_tokens: int = 4096,
        on_progress: Callable[[int], None] | None = None,
    ) -> Translation | list[Translation]:
        """Return the score and the attention for each given target, a string or a list of tokens.

        The result has the same form as that of `translate`, but with the tokens of the targets: one
        translation if both arguments are strings, otherwise a list.

        Raises:
            DataError: the number of targets differs from the number of texts, or a text is blank, but not
                its target.
        """
        check_count("batch_tokens", batch_tokens, 1)
        sources = to_list(texts)
        if not isinstance(targets, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DataError(f"expected a target or an iterable of targets, got {targets!r}")
        references = [targets] if isinstance(targets, str) else list(targets)
        if len(sources) != len(references):
            raise DataError(
                f"expected as many targets as texts, got {len(references)} and {len(sources)}"
            )
        request = prepare(self.trained, sources, references, forced=True)
        for number, source in enumerate(request.sources, start=1):
            if source.prefix.ids and not source.text.strip():
                raise DataError(
                    f"text {number:,} is blank, but its target is not: leave the pair out"
                )

        def decode(
            batch: PreparedRequest, memory: Memory, decoder: Decoder, _: StepDecoder
        ) -> list[list[Hypothesis]]:
            ids = [row.prefix.ids for row in batch.sources]
            found = forced_decode(decoder, memory, ids, length_penalty)
            outputs = [[output] for output in found]
            if self._reranker is None:
                return outputs
            return self._reranker.rerank(batch, outputs, length_penalty)

        outputs = self._decode(
            request, batch_tokens, decode, on_progress, forced=True,
            most=lambda source, target: _MOST_PROBABILITIES // (target * self._values(source)),
        )  # fmt: skip
        translations = [best[0] for best in outputs]
        single = isinstance(texts, str) and isinstance(targets, str)
        return translations[0] if single else translations

    @overload
    def attribute(  # pyright: ignore[reportOverlappingOverload]
        self, texts: str, targets: TextOrTokens | None = None, method: Method = "erasure"
    ) -> Translation: ...

    @overload
    def attribute(
        self,
        texts: Iterable[SourceLike],
        targets: Iterable[TextOrTokens] | None = None,
        method: Method = "erasure",
    ) -> list[Translation]: ...

    def attribute(
        self,
        texts: str | Iterable[SourceLike],
        targets: TextOrTokens | Iterable[TextOrTokens] | None = None,
        method: Method = "erasure",
    ) -> Translation | list[Translation]:
        """Return, in the place of the attention weights, the contribution of each source token.

        Each row of `attention` in the results belongs to one output token and contains the absolute
        values of the contributions to its log-probability, divided by their sum, so that charts and
        `alignment()` work as for attention weights; `attributions` contains the signed values, in nats.
        The functions of `regard.attribution` define the methods. All but `attention` work without
        attention, too. No other call may use the same translator at the same time, in another thread:
        the gradients are computed with hooks on the model.

        Args:
            texts: a string, or any iterable of sources, as for `translate`.
            targets: the outputs to explain, as for `align`; None for the outputs of `translate`.
            method: `erasure`, `gradient` (times input), `integrated_gradients` or `attention`.

        Raises:
            DataError: the number of targets differs from the number of texts.
            ConfigError: there is no such method.
            ExtraError: `integrated_gradients` needs captum, which is not installed.
        """
        attribution.check_method(method)
        single = isinstance(texts, str)
        sources = to_list(texts)
        given: Any = targets
        if targets is None:
            given = [output.tokens for output in self.translate(sources)]
        elif single or isinstance(targets, str):
            given = [targets]
        if isinstance(given, Iterable):  # tokens are read twice
            given = [_repeatable(each) for each in given]
        outputs = self.align(sources, given)
        request = prepare(self.trained, sources, given, forced=True)
        attributed = [
            attribution.attribute(self.trained.model, source.example, output, method)
            for source, output in zip(request.sources, outputs, strict=True)
        ]
        return attributed[0] if single else attributed

    def _values(self, source: int) -> int:
        """Return the number of values that a step computes for a source of this length."""
        members = [member.model.decoder for member in self.trained.members or (self.trained,)]
        return len(self.target) + source * values_per_position(members)

    def _decode(
        self,
        request: PreparedRequest,
        batch_tokens: int,
        decode: Callable[[PreparedRequest, Memory, Decoder, StepDecoder], list[list[Hypothesis]]],
        on_progress: Callable[[int], None] | None,
        n_best: int = 1,
        most: Callable[[int, int], int] | None = None,
        forced: bool = False,
        **empty: Any,
    ) -> list[list[Translation]]:
        """Decode all batches; a blank text gives `n_best` translations with no tokens and the fields `empty`."""
        empty["attends"] = self.trained.model.decoder.attention_layers > 0
        outputs = [[empty_translation(row.line, **empty)] * n_best for row in request.sources]
        model, steps = self._inference.prepared()
        layer = self.attention_layer
        for indices, batch in request.batches(batch_tokens, most, forced):
            with without_autocast(self.device):
                memory = batch.encode(model, self.device)
                decoded = decode(batch, memory, model.decoder, steps)
            for index, source, hypotheses in zip(indices, batch.sources, decoded, strict=True):
                outputs[index] = to_translations(self.trained, source, hypotheses, layer, forced)
            if on_progress is not None:
                on_progress(len(indices))
        return outputs


def _repeatable(target: Any) -> Any:
    """Return a list of the tokens of an iterator, and other targets as they are."""
    return list(target) if isinstance(target, Iterator) else target


def find_device(name: str) -> torch.device:
    """Return the device with this name; `auto` selects a GPU if one is available.

    Raises:
        ConfigError: the device is not available.
    """
    accelerators = {"cuda": torch.cuda, "mps": torch.backends.mps}
    available = [kind for kind, backend in accelerators.items() if backend.is_available()]
    available.append("cpu")
    if name not in ("auto", *available):
        choices = ", ".join(["auto", *available])
        raise ConfigError(f"device {name!r} is not available; choose one of {choices}")
    return torch.device(available[0] if name == "auto" else name)

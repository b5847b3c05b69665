"""A trained folder as a translator: strings in, translations with their attention out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch

from regard import model_folder
from regard.copy_mechanism import Copies, copies_of, widened
from regard.data import bucket, pad
from regard.errors import ConfigError, DataError
from regard.search import Hypothesis, SearchConstraints, beam_search, forced_decode
from regard.text import EOS, EOS_TOKEN, Encoding, Tokenizer
from regard.translation import Branch, Translation, nothing

Pins = Mapping[int, Mapping[int, float]]
"""Weights that looks are made to have: {step: {source token: weight}}, both from 0."""

TextOrTokens = str | Sequence[str]
"""A text, or the tokens that it is cut into."""


@dataclass(frozen=True)
class Translator:
    """A trained model with its tokenizers, on one device.

    Make one with `Translator.load(folder)`; `regard.train` returns one too.
    """

    trained: model_folder.TrainedModel
    device: torch.device

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto") -> "Translator":
        """Load a model folder.

        Args:
            folder: what `regard train --out` made.
            device: `auto` (a GPU where there is one), `cpu`, `cuda` or `mps`.

        Raises:
            FolderError: the folder is missing, damaged or of a newer format.
            ConfigError: there is no such device here.
        """
        trained = model_folder.load(folder)
        place = find_device(device)
        trained.model.to(place)
        return cls(trained, place)

    @property
    def source(self) -> Tokenizer:
        """How sources are cut into symbols."""
        return self.trained.source

    @property
    def target(self) -> Tokenizer:
        """How targets are cut into symbols."""
        return self.trained.target

    def translate(
        self,
        texts: Sequence[str],
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
    ) -> Any:
        """Translate texts; the outputs come in the order of the texts.

        Args:
            texts: sources; a blank one gives `n_best` translations with no tokens.
            beam_size: open hypotheses per source; 1 is greedy search.
            n_best: outputs per source; above 1 every item of the result is a list, best first.
            length_penalty: exponent of the length penalty ((5 + length) / 6) ** length_penalty.
            batch_tokens: source symbols computed at once, padding included.
            on_progress: called with the number of texts just done.
            prefix: what the output begins with, one text for all or one each; one of each may also
                be a list of tokens.
            pin: weights that looks are made to have, `{step: {source token: weight}}`, both counted
                from 0 as in `attention`, one for all texts or one each. The other source tokens
                share what is left in their own proportions.
            ablate_heads: (layer, head) from 0, of a Transformer: those find nothing.
            return_tree: keep everything that the search tried, in `tree` of each output.

        Returns:
            A list of translations; with `n_best` above 1 a list of lists.
        """
        if beam_size < 1 or n_best < 1:
            raise ConfigError(f"beam_size and n_best must be at least 1, got {beam_size}, {n_best}")
        limits = self.check(texts, prefix, pin, ablate_heads)
        begin = self._encoded(_one_each(prefix or "", texts, "prefix"))
        pins = _one_each(pin or {}, texts, "pin")

        def search(batch: "_Sources") -> list[list[Hypothesis]]:
            memory = batch.encode(self.trained, self.device)
            longest = torch.tensor([limits[place] for place in batch.places]).to(self.device)
            starts = batch.targets(begin, len(self.target))
            steering = self._steering(batch, starts, pins, ablate_heads)
            decoder = self.trained.model.decoder
            return beam_search(
                decoder, memory, longest, beam_size, n_best, length_penalty, steering, return_tree
            )

        found = self._over_batches(texts, batch_tokens, search, on_progress, n_best=n_best)
        return found if n_best > 1 else [best[0] for best in found]

    def check(
        self,
        texts: Sequence[str],
        prefix: str | Sequence[TextOrTokens] | None = None,
        pin: Pins | Sequence[Pins] | None = None,
        ablate_heads: Sequence[tuple[int, int]] = (),
    ) -> list[int]:
        """Whether texts can be translated with such pushes, found without computing anything.

        Returns:
            The most symbols of the output of each text, its prefix included.

        Raises:
            ConfigError: a push does not fit the model or the text.
        """
        pins = _one_each(pin or {}, texts, "pin")
        self._check_push(any(pins), ablate_heads)
        longest = self.trained.metadata.get("max_target_length", 100)
        sources = [len(encoding.ids) + 1 for encoding in self.source.encode_batch(texts)]
        begin = self._encoded(_one_each(prefix or "", texts, "prefix"))
        limits = [
            longest + 2 * source + len(start.ids)
            for source, start in zip(sources, begin, strict=True)
        ]
        for source, limit, each in zip(sources, limits, pins, strict=True):
            for step, weights in each.items():
                _check_pins(weights, step, limit, source)
        return limits

    def _encoded(self, written: Sequence[TextOrTokens]) -> list[Encoding]:
        """Targets as ids; tokens as they are, texts cut into them."""
        texts = [each if isinstance(each, str) else "" for each in written]
        return [
            encoding
            if isinstance(each, str)
            else Encoding(self.target.tokens_to_ids(list(each)), list(each))
            for each, encoding in zip(written, self.target.encode_batch(texts), strict=True)
        ]

    def _check_push(self, pinned: bool, ablate_heads: Sequence[tuple[int, int]]) -> None:
        model = self.trained.config.model.resolved()
        if (pinned or ablate_heads) and model.attention == "none":
            raise ConfigError("this model has no attention to push (model.attention none)")
        layers, heads = (
            (cast("int", model.decoder_layers), model.heads)
            if model.kind == "transformer"
            else (1, 1)
        )
        for layer, head in ablate_heads:
            if not (0 <= layer < layers and 0 <= head < heads):
                raise ConfigError(
                    f"there is no head {head} in layer {layer} to drop; the model has {layers} "
                    f"layers of {heads} heads, both counted from 0"
                )

    def _steering(
        self,
        batch: "_Sources",
        starts: Sequence[list[int]],
        pins: Sequence[Pins],
        ablate_heads: Sequence[tuple[int, int]],
    ) -> SearchConstraints | None:
        """What the search of a batch is made to do; None for nothing."""
        chosen = [pins[place] for place in batch.places]
        if not (any(starts) or any(chosen) or ablate_heads):
            return None
        width = max(map(len, batch.ids))
        steps = max((step + 1 for each in chosen for step in each), default=0)
        given = torch.full((len(starts), steps, width), torch.nan)
        for row, each in enumerate(chosen):
            for step, weights in each.items():
                for place, weight in weights.items():
                    given[row, step, place] = weight
        dropped = None
        if ablate_heads:
            model = self.trained.config.model.resolved()
            transformer = model.kind == "transformer"
            shape = (cast("int", model.decoder_layers), model.heads) if transformer else (1, 1)
            dropped = torch.zeros(shape, dtype=torch.bool)
            for layer, head in ablate_heads:
                dropped[layer, head] = True
            dropped = dropped.to(self.device)
        return SearchConstraints(pad(list(starts)).to(self.device), given.to(self.device), dropped)

    def align(
        self,
        texts: Sequence[str],
        targets: Sequence[TextOrTokens],
        length_penalty: float = 1.0,
        batch_tokens: int = 4096,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[Translation]:
        """Where the model looks when it is made to write the given targets.

        The same objects as `translate` gives: tokens, score and attention of the targets, each a
        text or a list of tokens.

        Raises:
            DataError: there are not as many targets as texts.
        """
        if len(texts) != len(targets):
            raise DataError(f"expected one target per text, got {len(texts)} and {len(targets)}")
        encoded = self._encoded(targets)

        def search(batch: "_Sources") -> list[list[Hypothesis]]:
            memory = batch.encode(self.trained, self.device)
            ids = batch.targets(encoded, len(self.target))
            return [
                [one]
                for one in forced_decode(self.trained.model.decoder, memory, ids, length_penalty)
            ]

        found = self._over_batches(texts, batch_tokens, search, on_progress, encoded)
        return [best[0] for best in found]

    def attention_layer(self, layers: int) -> int:
        """The layer whose weights are shown, of so many; the middle one until training found it."""
        return self.trained.metadata.get("attention_layer", layers // 2)

    def _over_batches(
        self,
        texts: Sequence[str],
        batch_tokens: int,
        search: Callable[["_Sources"], list[list[Hypothesis]]],
        on_progress: Callable[[int], None] | None,
        targets: Sequence[Encoding] | None = None,
        n_best: int = 1,
    ) -> list[list[Translation]]:
        encodings = self.source.encode_batch(texts)
        attends = self.trained.config.model.attention != "none"
        results = [[nothing(text, attends)] * n_best for text in texts]
        featured = self.source.features is not None
        real = [
            place
            for place, text in enumerate(texts)
            if (text.partition("\t")[0] if featured else text).strip()
        ]
        sizes = [(len(encodings[place].ids) + 1, 0) for place in real]
        for chosen in bucket(sizes, batch_tokens):
            places = [real[index] for index in chosen]
            batch = self._sources(places, [encodings[place] for place in places])
            for place, copies, hypotheses in zip(places, batch.copies, search(batch), strict=True):
                given = None if targets is None else targets[place].tokens
                tree = self._tree(hypotheses[0], copies)
                results[place] = [
                    self._translation(
                        texts[place],
                        encodings[place],
                        one,
                        given or self._tokens(one.ids, copies),
                        tree,
                    )
                    for one in hypotheses
                ]
            if on_progress is not None:
                on_progress(len(places))
        return results

    def _sources(self, places: list[int], encodings: list[Encoding]) -> "_Sources":
        copying = self.trained.config.model.copy
        ids = [[*encoding.ids, EOS] for encoding in encodings]
        copies = [copies_of(each, self.target) if copying else None for each in encodings]
        return _Sources(places, ids, copies)

    def _tokens(self, ids: Sequence[int], copies: Copies | None) -> list[str]:
        """What ids are written as; those beyond the vocabulary are copied from the source."""
        if copies is None:
            return self.target.ids_to_tokens(ids)
        size = len(self.target)
        return [
            self.target.ids_to_tokens([id])[0] if id < size else copies.symbols[id - size]
            for id in ids
        ]

    def _tree(self, found: Hypothesis, copies: Copies | None) -> list[Branch] | None:
        if found.tree is None:
            return None
        tokens = self._tokens([one.id for one in found.tree], copies)
        return [
            Branch(one.parent, None if one.id == EOS else token, one.score)
            for one, token in zip(found.tree, tokens, strict=True)
        ]

    def _translation(
        self,
        text: str,
        encoding: Encoding,
        found: Hypothesis,
        tokens: list[str],
        tree: list[Branch] | None,
    ) -> Translation:
        width = len(encoding.tokens) + 1
        heads = weights = None
        if found.weights is not None:
            heads = found.weights[..., :width]
            weights = heads[:, self.attention_layer(heads.shape[1])].mean(1)
        return Translation(
            source=text,
            source_tokens=[*encoding.tokens, EOS_TOKEN],
            tokens=tokens,
            text=self.target.detokenize(tokens),
            score=found.score,
            attention=weights,
            attention_heads=heads,
            complete=found.complete,
            unknown=encoding.unknown,
            source_words=[*self.source.word_ids(encoding.tokens, encoding.num_features), None],
            target_words=self.target.word_ids(tokens),
            tree=tree,
        )


@dataclass(frozen=True)
class _Sources:
    places: list[int]
    ids: list[list[int]]
    copies: list[Copies | None]

    def encode(self, trained: model_folder.TrainedModel, device: torch.device) -> Any:
        lengths = torch.tensor([len(ids) for ids in self.ids])
        rows = [each.ids for each in self.copies if each is not None]
        copies = pad(rows).to(device) if rows else None
        with torch.inference_mode():
            return trained.model.encode(pad(self.ids).to(device), lengths.to(device), copies)

    def targets(self, encoded: Sequence[Encoding], vocabulary: int) -> list[list[int]]:
        """The ids of targets or their beginnings, those of copied symbols too."""
        return [
            encoded[place].ids if copies is None else widened(encoded[place], copies, vocabulary)
            for place, copies in zip(self.places, self.copies, strict=True)
        ]


def _one_each(given: Any, texts: Sequence[str], name: str) -> list[Any]:
    """What is given once for all texts, or once for each."""
    if isinstance(given, str | Mapping):
        return [given] * len(texts)
    if len(given) != len(texts):
        raise ConfigError(f"expected one {name} for all texts or one each, got {len(given)}")
    return list(given)


def _check_pins(weights: Mapping[int, float], step: int, limit: int, width: int) -> None:
    if not (0 <= step < limit and all(0 <= place < width for place in weights)):
        raise ConfigError(
            f"pins name steps from 0 to {limit - 1} and source tokens from 0 to {width - 1}, got "
            f"step {step} and tokens {', '.join(map(str, weights))}"
        )
    total = sum(weights.values())
    if not (all(weight >= 0 for weight in weights.values()) and total <= 1 + 1e-6):
        raise ConfigError(
            f"pinned weights of a step must be at least 0 and sum to at most 1, got {total:.4g} at "
            f"step {step}"
        )


def find_device(name: str) -> torch.device:
    """The device of this name; `auto` takes a GPU where there is one.

    Raises:
        ConfigError: there is no such device here.
    """
    available = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if name == "auto":
        name = next(kind for kind, there in available.items() if there)
    if not available.get(name, False):
        there = ", ".join(kind for kind, is_there in available.items() if is_there)
        raise ConfigError(f"there is no device {name!r} here; choose auto or one of {there}")
    return torch.device(name)

"""Attributions: how much each source token contributes to the log-probability of each output token.

The output is forced: every token is predicted from the correct tokens before it. EOS of the source is
never removed, so its attribution is 0, except in `attention`.
"""

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Collection, Generator, Sequence
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from regard.batching import Example, collate
from regard.decoders.output import CopyingOutput
from regard.errors import ConfigError, ExtraError, not_one_of
from regard.inference import in_evaluation_mode
from regard.kernels.weighted_sum import without_autocast
from regard.models import Seq2Seq
from regard.text import UNK
from regard.translation import Translation

Method = Literal["attention", "erasure", "gradient", "integrated_gradients"]

_BATCH_TOKENS = 2048
"""Maximum size of a batch of variants of one pair."""
_LOWEST = -30.0
"""Lower bound on log-probabilities, since a copying decoder cannot write a token that is erased."""
_POINTS, _MORE_POINTS = 50, 400
"""Points of the Gauss-Legendre quadrature of integrated gradients, and those if its error is large."""
_TOLERANCE = 0.02
"""Largest error of a sum of integrated gradients, relative to the largest of the differences that they explain."""
_ROUNDING = 1e-4
"""Error of log-probabilities in float32, in nats, that counts as none."""


def erase(example: Example, positions: Collection[int]) -> Example:
    """Return the example with UNK in place of the source tokens at these positions, copies included."""
    source, copies = list(example.source), list(example.copies)
    for position in positions:
        source[position] = UNK
        if copies:
            copies[position] = UNK
    return Example(source, example.target, copies)


@torch.inference_mode()
def target_log_probs(model: Seq2Seq, variants: Sequence[Example]) -> Float[np.ndarray, "N L"]:
    """Return the log-probability of every target token, without EOS, given each of several sources.

    Args:
        model: the model.
        variants: examples with the same target and sources of the same length.
    """
    rows = _rows(variants[0])
    parts = [
        _log_probs(model, variants[first : first + rows]) for first in range(0, len(variants), rows)
    ]
    return torch.cat(parts).clamp(min=_LOWEST).cpu().numpy()


def erasure(model: Seq2Seq, example: Example) -> Float[np.ndarray, "L T"]:
    """Return the decrease in log-probability when each source token is replaced by UNK.

    This is the prediction difference of Li et al. 2019, "On the Word Alignment from Neural Machine
    Translation" (ACL), section 4.
    """
    length = len(example.source)
    erased = [erase(example, [position]) for position in range(length - 1)]
    log_probs = target_log_probs(model, [example, *erased])
    return np.pad((log_probs[0] - log_probs[1:]).T, ((0, 0), (0, 1)))


def gradient(model: Seq2Seq, example: Example) -> Float[np.ndarray, "L T"]:
    """Return the gradient of the log-probability times the embedding of each source token.

    The products are summed over the components of the embedding (Denil et al. 2014, arXiv:1412.6815).
    """
    parts: list[np.ndarray] = []
    for positions in _slices(example):
        with _differentiable(model):
            embedded = [rows.requires_grad_() for rows in _embedded(model, example, len(positions))]
            log_probs = _own_log_probs(model, example, embedded, positions)
            gradients = torch.autograd.grad(log_probs.sum(), embedded)
        products = (rows * grad for rows, grad in zip(embedded, gradients, strict=True))
        parts.append(_without_eos(list(products)))
    return np.concatenate(parts)


def integrated_gradients(model: Seq2Seq, example: Example) -> Float[np.ndarray, "L T"]:
    """Return the integrated gradients of the log-probability, with captum.

    Sundararajan et al. 2017 (arXiv:1703.01365), eq. 3, on the straight line from the baseline, which is
    the source with UNK in place of all tokens but EOS: what `erase` regards as an absent token. The
    attributions for an output token sum to the difference between its log-probability and that at the
    baseline, up to the error of a quadrature with 50 points. If it is above 2 % of the largest difference, the
    quadrature is repeated with 400 points, and a larger error then gives a warning.

    Raises:
        ExtraError: captum is not installed.
    """
    attributions, differences = _quadrature(model, example, _POINTS)
    if not _are_complete(attributions, differences):
        attributions, differences = _quadrature(model, example, _MORE_POINTS)
        if not _are_complete(attributions, differences):
            warnings.warn(
                f"a quadrature with {_MORE_POINTS} points is too inexact for some integrated gradients: their "
                "sums differ from the log-probabilities that they explain; the method erasure has no such error",
                stacklevel=2,
            )
    return attributions


def _are_complete(
    attributions: Float[np.ndarray, "L T"], differences: Float[np.ndarray, " L"]
) -> bool:
    """Return whether the attributions of every token sum to its difference of log-probabilities."""
    errors, largest = np.abs(attributions.sum(1) - differences), np.abs(differences).max()
    return bool(errors.max() <= max(_ROUNDING, _TOLERANCE * largest))


def _quadrature(
    model: Seq2Seq, example: Example, points: int
) -> tuple[Float[np.ndarray, "L T"], Float[np.ndarray, " L"]]:
    """Return integrated gradients, and the differences of log-probabilities to which they should sum."""
    try:
        from captum.attr import IntegratedGradients
    except ImportError:
        raise ExtraError(
            "integrated gradients need the package captum: pip install 'regard[attribution]'"
        ) from None

    unknown = erase(example, range(len(example.source) - 1))
    parts: list[np.ndarray] = []
    differences: list[np.ndarray] = []
    for positions in _slices(example):

        def forward(*embedded: Tensor, positions: range = positions) -> Tensor:
            return _own_log_probs(model, example, embedded, positions)

        with _differentiable(model):
            inputs, baselines = (
                tuple(_embedded(model, each, len(positions))) for each in (example, unknown)
            )
            attributions = IntegratedGradients(forward).attribute(
                inputs, baselines, n_steps=points, internal_batch_size=_rows(example)
            )
            with torch.no_grad():
                differences.append((forward(*inputs) - forward(*baselines)).cpu().numpy())
        parts.append(_without_eos(list(attributions)))
    return np.concatenate(parts), np.concatenate(differences)


SIGNED: dict[Method, Callable[[Seq2Seq, Example], Float[np.ndarray, "L T"]]] = {
    "erasure": erasure,
    "gradient": gradient,
    "integrated_gradients": integrated_gradients,
}
"""The methods that return signed attributions; the weights of `attention` are in every translation."""


def check_method(method: str) -> None:
    """Raise a ConfigError if there is no such method."""
    if method not in (known := get_args(Method)):
        raise not_one_of("the method", method, known)


def copies_tokens(model: Seq2Seq) -> bool:
    """Return whether a model copies source tokens; an ensemble, whether one of its members does."""
    return any(isinstance(module, CopyingOutput) for module in model.modules())


def attribute(
    model: Seq2Seq, example: Example, translation: Translation, method: Method
) -> Translation:
    """Return a translation with the attributions of a method in the place of the attention weights.

    Args:
        model: the model.
        example: source and target of the translation.
        translation: an output of the model.
        method: the method.

    Raises:
        ConfigError: there is no such method, or it follows embeddings only, and the model copies tokens.
        ExtraError: a package that the method needs is not installed.
    """
    check_method(method)
    if method == "attention":
        return translation
    if method != "erasure" and copies_tokens(model):
        raise ConfigError(
            f"{method} follows the embeddings of the source tokens only, and this model copies tokens, too: "
            "choose the method erasure"
        )
    size = len(translation.tokens), len(translation.source_tokens)
    signed = SIGNED[method](model, example) if all(size) else np.zeros(size, np.float32)
    rows = normalize_rows(signed)
    return dataclasses.replace(
        translation,
        attention=rows,
        attention_heads=rows[:, None, None],
        attention_layer=0,
        method=method,
        attributions=signed,
    )


def normalize_rows(attributions: Float[np.ndarray, "L T"]) -> Float[np.ndarray, "L T"]:
    """Return the absolute values divided by the sum of their row; a row of zeros is left unchanged."""
    absolute = np.abs(attributions)
    sums = absolute.sum(1, keepdims=True)
    return absolute / np.where(sums > 0, sums, 1)


def _log_probs(model: Seq2Seq, variants: Sequence[Example]) -> Float[Tensor, "N L"]:
    device, model = next(model.parameters()).device, in_evaluation_mode(model)
    batch = collate(variants).to(device)
    with without_autocast(device):
        memory = model.encode(batch.source, batch.lengths, batch.copies)
        unrolled = model.decoder.unroll(memory, batch.inputs, need_weights=True)
        logits = model.decoder.predict(unrolled.states, unrolled.weights, memory.copies)
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    # a copied token that is erased from all of these sources has no logit
    missing = max(0, int(batch.targets.max()) + 1 - log_probs.shape[2])
    log_probs = functional.pad(log_probs, (0, missing), value=-torch.inf)
    return log_probs.gather(2, batch.targets[..., None])[:, :-1, 0]


def _rows(example: Example) -> int:
    """Return how many copies of an example a batch may contain."""
    return max(1, _BATCH_TOKENS // sum(example.size))


def _slices(example: Example) -> list[range]:
    """Return the positions of the target tokens in parts, each with a copy of the example per position."""
    length, rows = len(example.target), _rows(example)
    return [range(start, min(length, start + rows)) for start in range(0, length, rows)]


def _embedded(model: Seq2Seq, example: Example, copies: int) -> list[Float[Tensor, "n T D"]]:
    """Return copies of the embeddings of the source, for each encoder of the model."""
    device = next(model.parameters()).device
    ids = torch.tensor(example.source, device=device)
    return [
        layer.weight.detach()[ids].expand(copies, -1, -1).clone() for layer in _embeddings(model)
    ]


def _embeddings(model: Seq2Seq) -> list[nn.Embedding]:
    """Return the embedding of the encoder, or one per member of an ensemble."""
    return [layer for layer in model.encoder.modules() if isinstance(layer, nn.Embedding)]


def _own_log_probs(
    model: Seq2Seq,
    example: Example,
    embedded: Sequence[Float[Tensor, "n T D"]],
    positions: range,
) -> Float[Tensor, " n"]:
    """Return the log-probability of one target token per row, given these embeddings of the source.

    The rows predict the tokens at `positions` in turn, so that a gradient with respect to a row is that of
    one token.
    """
    with contextlib.ExitStack() as hooks:
        for layer, rows in zip(_embeddings(model), embedded, strict=True):
            hooks.enter_context(_replaced_output(layer, rows))
        log_probs = _log_probs(model, [example] * len(embedded[0]))
    numbers = torch.arange(len(log_probs), device=log_probs.device)
    return log_probs[numbers, positions.start + numbers % len(positions)]


@contextlib.contextmanager
def _replaced_output(layer: nn.Module, output: Tensor) -> Generator[None]:
    """Let a layer return this output."""

    def replace(*_: object) -> Tensor:
        return output

    handle = layer.register_forward_hook(replace)
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def _differentiable(model: Seq2Seq) -> Generator[None]:
    """Enable gradients in evaluation mode, in which cuDNN computes none for recurrent layers."""
    with (
        without_autocast(next(model.parameters()).device),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.backends.cudnn.flags(enabled=False),
    ):
        yield


def _without_eos(products: Sequence[Float[Tensor, "L T D"]]) -> Float[np.ndarray, "L T"]:
    """Return the sums over the components and over the encoders, 0 for EOS."""
    sums = torch.stack([rows.detach().sum(-1) for rows in products]).sum(0)
    sums[:, -1] = 0
    return sums.float().cpu().numpy()

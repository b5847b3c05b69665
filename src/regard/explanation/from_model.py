"""Explanation of one step of a trained model."""

from typing import Any

import torch
from torch import Tensor

from regard.decoders import AttentionInputs, Decoder
from regard.errors import ConfigError, quantity
from regard.explanation.worked_example import Explanation, explain
from regard.inference import for_inference
from regard.kernels.weighted_sum import without_autocast
from regard.request import TextOrTokens, prepare
from regard.score_registry import SCORES
from regard.scores import Score
from regard.text import BOS, SourceLike, display_token
from regard.translation import Translation
from regard.translator import Translator


def explain_step(
    translator: Translator,
    text: SourceLike,
    step: int,
    *,
    target: TextOrTokens | None = None,
    layer: int | None = None,
    head: int = 0,
) -> tuple[Explanation, Translation]:
    """Explain the attention that produced one token of an output.

    Args:
        translator: a model with softmax attention over the whole source.
        text: text to translate, or pair (text, features).
        step: number of the output token, from 0.
        target: output to force, as text or tokens; None: the output of the model.
        layer: layer of a Transformer, from 0; None: the layer used for `Translation.attention`.
        head: head of a Transformer, from 0.

    Returns:
        The explanation, and the output, whose tokens define the steps.

    Raises:
        ConfigError: the model has no such attention, step, layer or head.
    """
    settings = translator.trained.config.model
    decoder = translator.trained.model.decoder
    if settings.attention == "none":
        raise ConfigError("this model has no attention to explain (model.attention none)")
    if settings.decoder == "posterior":
        raise ConfigError(
            "the weights of model.decoder posterior depend on the token that they predict, and cannot "
            "be explained from scores alone"
        )
    if settings.window != "none" or settings.coverage or settings.normalizer != "softmax":
        raise ConfigError(
            "only softmax attention over the whole source can be explained; this model has "
            f"model.window {settings.window}, model.coverage {settings.coverage} and "
            f"model.normalizer {settings.normalizer}"
        )
    if target is not None and not (text if isinstance(text, str) else text[0]).strip():
        raise ConfigError("the text is blank, so there is no step to explain")
    output = (
        translator.translate([text])[0] if target is None else translator.align([text], [target])[0]
    )
    if not output.tokens:
        raise ConfigError("the output for this text is empty, so there is no step to explain")
    if not 0 <= step < len(output.tokens):
        raise ConfigError(
            f"step must be from 0 to {len(output.tokens) - 1} for this output (steps are counted "
            f"from 0), got {step}"
        )
    number = translator.attention_layer if layer is None else layer
    _check_head(decoder, number, head)
    # positions distinguish equal tokens
    labels = [
        f"{display_token(token)}({position})" for position, token in enumerate(output.source_tokens)
    ]
    request = prepare(translator.trained, [text], [output.tokens], forced=True)
    tokens = torch.tensor([[BOS, *request.sources[0].prefix.ids]])
    with torch.inference_mode(), without_autocast(translator.device):
        model = for_inference(translator.trained.model)
        memory = request.encode(model, translator.device)
        tokens = tokens[:, : step + 1].to(translator.device)
        inputs = model.decoder.attention_inputs(memory, tokens, number, head)
        return _explain_last(inputs, head, labels), output


def _check_head(decoder: Decoder, layer: int, head: int) -> None:
    layers, heads = decoder.attention_layers, decoder.attention_heads
    if not (0 <= layer < layers and 0 <= head < heads):
        raise ConfigError(
            f"there is no layer {layer}, head {head}: the model has {quantity(layers, 'layer')} with "
            f"{quantity(heads, 'head')}, both counted from 0"
        )


def _explain_last(inputs: AttentionInputs, head: int, labels: list[str]) -> Explanation:
    """Explain the attention of the last query."""
    score = inputs.attention.score
    kind = type(score).__name__
    entry = next((row for row in SCORES.values() if kind in (row.class_name, row.head_class)), None)
    if entry is None or not isinstance(score, Score):
        raise ConfigError(f"no formula is registered for score functions of the class {kind}")
    parameters = {name: _numpy(p) for name, p in score.formula_parameters(head).items()}
    query, keys = _numpy(inputs.query[0, -1]), _numpy(inputs.key[0])
    values = None if inputs.value is inputs.key else _numpy(inputs.value[0])
    return explain(query, keys, values, entry.name, parameters=parameters, labels=labels)


def _numpy(tensor: Tensor) -> Any:
    return tensor.cpu().double().numpy()  # some devices have no float64

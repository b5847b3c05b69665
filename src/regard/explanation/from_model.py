"""The query, the keys and the score of a trained model, at one step of one of its outputs."""

from typing import Any

import torch
from torch import Tensor

from regard.copy_mechanism import copies_of, widened
from regard.data import Example, collate
from regard.decoders import AttentionInputs
from regard.errors import ConfigError
from regard.explanation.worked_example import Explanation, explain
from regard.score_registry import SCORES
from regard.scores import Score
from regard.text import EOS, Encoding
from regard.translation import Translation
from regard.translator import TextOrTokens, Translator


def explain_step(
    translator: Translator,
    text: str,
    step: int,
    *,
    target: TextOrTokens | None = None,
    layer: int | None = None,
    head: int = 0,
) -> tuple[Explanation, Translation]:
    """Walk through the look behind one symbol of an output.

    Args:
        translator: a model with attention, normalised by softmax over the whole source.
        text: what to translate.
        step: number of the output symbol, from 1.
        target: the output to force, as text or tokens; None: the model's own.
        layer: of a Transformer, from 0; None: the one whose attention is shown.
        head: of a Transformer, from 0.

    Returns:
        The explanation, and the output with its tokens.

    Raises:
        ConfigError: the model has no such look, step, layer or head.
    """
    settings = translator.trained.config.model
    decoder = translator.trained.model.decoder
    if settings.attention == "none":
        raise ConfigError("this model has no attention to explain (model.attention none)")
    plain = settings.window == "none" and not settings.coverage and settings.normalizer == "softmax"
    if not plain:
        raise ConfigError(
            "only looks at the whole source by softmax can be walked through, this model has "
            f"model.window {settings.window}, model.coverage {settings.coverage} and "
            f"model.normalizer {settings.normalizer}"
        )
    output = translator.align([text], [target])[0] if target else translator.translate([text])[0]
    if not 1 <= step <= len(output.tokens):
        raise ConfigError(f"--step goes from 1 to {len(output.tokens)} for this output, got {step}")
    layers, heads = decoder.attention_layers, decoder.attention_heads
    number = translator.attention_layer(layers) if layer is None else layer
    if not (0 <= number < layers and 0 <= head < heads):
        raise ConfigError(
            f"there is no layer {number}, head {head}: the model has {layers} layers of {heads} "
            "heads, both counted from 0"
        )
    with torch.inference_mode():
        memory, tokens = _encoded(translator, output)
        inputs = decoder.attention_inputs(memory, tokens[None, :step], number, head)
    return _explained(inputs, head, _labels(output.source_tokens)), output


def _encoded(translator: Translator, output: Translation) -> tuple[Any, Tensor]:
    source = translator.source.encode(output.source)
    target = Encoding(translator.target.tokens_to_ids(output.tokens), output.tokens)
    ids, copied = target.ids, None
    if translator.trained.config.model.copy:
        copies = copies_of(source, translator.target)
        ids = widened(target, copies, len(translator.target))
        copied = torch.tensor([copies.ids], device=translator.device)
    batch = collate([Example([*source.ids, EOS], ids)])
    device = translator.device
    memory = translator.trained.model.encode(
        batch.source.to(device), batch.lengths.to(device), copied
    )
    return memory, batch.inputs[0].to(device)


def _explained(inputs: AttentionInputs, head: int, labels: list[str]) -> Explanation:
    """Explain the attention of the last query."""
    score = inputs.attention.score
    kind = type(score).__name__
    entry = next((row for row in SCORES.values() if kind in (row.class_name, row.head_class)), None)
    if entry is None or not isinstance(score, Score):
        raise ConfigError(f"no formula is registered for scores of the class {kind}")
    query, keys, values = (
        rows[0].double().cpu().numpy() for rows in (inputs.query[:, -1], inputs.key, inputs.value)
    )
    with torch.inference_mode():
        parameters = {
            letter: parameter.double().cpu().numpy()
            for letter, parameter in score.formula_parameters(head).items()
        }
    return explain(
        query,
        keys,
        None if inputs.value is inputs.key else values,
        entry.name,
        parameters=parameters,
        labels=labels,
    )


def _labels(tokens: list[str]) -> list[str]:
    """Source tokens with their places, which tell equal ones apart."""
    return [f"{token}({place})" for place, token in enumerate(tokens, start=1)]

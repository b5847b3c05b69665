"""The query, the keys and the score of a trained model, at one step of one of its outputs."""

from typing import Any

import torch
from torch import Tensor, nn

from regard.attention import Attention
from regard.copy_mechanism import copies_of, widened
from regard.data import Example, collate
from regard.decoders import BahdanauDecoder, LuongDecoder, TransformerDecoder
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
    labels = _labels(output.source_tokens)
    if isinstance(decoder, TransformerDecoder):
        found = _of_heads(translator, decoder, output, step, layer, head, labels)
    else:
        found = _of_states(translator, decoder, output, step, labels)
    return found, output


def _of_states(
    translator: Translator, decoder: Any, output: Translation, step: int, labels: list[str]
) -> Explanation:
    """A recurrent decoder: its state is the query, the encoder's states are keys and values."""
    assert isinstance(decoder, LuongDecoder | BahdanauDecoder)
    query: Tensor | None = None
    with torch.inference_mode():
        memory, tokens = _encoded(translator, output)
        state = decoder.start(memory)
        for token in tokens[:step]:
            before, state = state, decoder.step(token[None], state).state
            query = decoder.query(before, state)
    assert query is not None
    states = memory.states[0].double().cpu().numpy()
    return _explained(decoder.attention, query[0], states, states, labels)


def _of_heads(
    translator: Translator,
    decoder: TransformerDecoder,
    output: Translation,
    step: int,
    layer: int | None,
    head: int,
    labels: list[str],
) -> Explanation:
    """A Transformer: a head's projected query, keys and values."""
    count = len(decoder.layers)
    number = translator.attention_layer(count) if layer is None else layer
    across = decoder.attentions[number] if 0 <= number < count else None
    if across is None or not 0 <= head < across.num_heads:
        raise ConfigError(
            f"there is no layer {number}, head {head}: the model has {count} layers of "
            f"{decoder.attentions[0].num_heads} heads, both counted from 0"
        )
    rows: list[Tensor] = []

    def keep(module: nn.Module, given: Any, found: Any) -> None:
        rows.append(found[0])

    # keys and values first, when the source is encoded, then the queries
    projections = across.key_proj, across.value_proj, across.query_proj
    hooks = [projection.register_forward_hook(keep) for projection in projections]
    with torch.inference_mode():
        memory, tokens = _encoded(translator, output)
        decoder.unroll(memory, tokens[None])
    for hook in hooks:
        hook.remove()
    width = across.embed_dim // across.num_heads
    keys, values, queries = (
        each[:, head * width : (head + 1) * width].double().cpu() for each in rows
    )
    query = queries[step - 1]
    return _explained(across.attention, query, keys.numpy(), values.numpy(), labels, head)


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


def _explained(
    attention: Attention, query: Tensor, keys: Any, values: Any, labels: list[str], head: int = 0
) -> Explanation:
    score = attention.score
    kind = type(score).__name__
    entry = next((row for row in SCORES.values() if kind in (row.class_name, row.head_class)), None)
    if entry is None or not isinstance(score, Score):
        raise ConfigError(f"no formula is registered for scores of the class {kind}")
    with torch.inference_mode():
        parameters = {
            letter: parameter.double().cpu().numpy()
            for letter, parameter in score.formula_parameters(head).items()
        }
    return explain(
        query.double().cpu().numpy(),
        keys,
        None if values is keys else values,
        entry.name,
        parameters=parameters,
        labels=labels,
    )


def _labels(tokens: list[str]) -> list[str]:
    """Source tokens with their places, which tell equal ones apart."""
    return [f"{token}({place})" for place, token in enumerate(tokens, start=1)]

"""Hypotheses of a search as translations."""

from collections.abc import Sequence

import numpy as np

from regard.copy_mechanism import Copies
from regard.hypotheses import Hypothesis
from regard.model_folder import TrainedModel
from regard.request import Source
from regard.text import EOS, EOS_TOKEN, Tokenizer
from regard.translation import Branch, TokenLogProb, Translation, with_alternatives


def to_translations(
    trained: TrainedModel,
    source: Source,
    hypotheses: Sequence[Hypothesis],
    layer: int,
    forced: bool = False,
) -> list[Translation]:
    """Return the hypotheses for a source as translations, each with the others as its alternatives.

    Args:
        trained: the model.
        source: the source.
        hypotheses: the outputs, best first; the first contains the search tree, if there is one.
        layer: the attention layer to average over the heads.
        forced: whether the tokens are those of a given target, which is the prefix of the source.
    """
    tree = _tree(hypotheses[0], trained.target, source.copies)
    return with_alternatives(
        [_translation(trained, source, row, tree, layer, forced) for row in hypotheses]
    )


def _tokens(ids: Sequence[int], target: Tokenizer, copies: Copies | None) -> list[str]:
    """Return the tokens of ids; ids beyond the vocabulary are those of copied source tokens."""
    if copies is None:
        return target.ids_to_tokens(ids)
    size = len(target)
    return [
        target.ids_to_tokens([id])[0] if id < size else copies.extra_tokens[id - size] for id in ids
    ]


def _most_probable(
    hypothesis: Hypothesis, target: Tokenizer, copies: Copies | None
) -> list[list[TokenLogProb]] | None:
    if hypothesis.top is None:
        return None
    return [
        [
            TokenLogProb(None if id == EOS else _tokens([id], target, copies)[0], log_prob)
            for id, log_prob in step
        ]
        for step in hypothesis.top
    ]


def _tree(hypothesis: Hypothesis, target: Tokenizer, copies: Copies | None) -> list[Branch] | None:
    if hypothesis.tree is None:
        return None
    tokens = _tokens([node.id for node in hypothesis.tree], target, copies)
    return [
        Branch(node.parent, None if node.id == EOS else token, node.log_prob)
        for node, token in zip(hypothesis.tree, tokens, strict=True)
    ]


def _translation(
    trained: TrainedModel,
    source: Source,
    hypothesis: Hypothesis,
    tree: list[Branch] | None,
    layer: int,
    forced: bool,
) -> Translation:
    target, copies = trained.target, source.copies
    tokens = source.prefix.tokens if forced else _tokens(hypothesis.ids, target, copies)
    encoding, weights = source.encoding, hypothesis.weights
    heads = None
    if weights is not None:
        heads = weights[..., : source.length]
        if heads.size < weights.size:
            heads = heads.copy()  # an output that is kept does not hold the padding of its batch
    return Translation(
        source=source.line,
        source_tokens=[*encoding.tokens, EOS_TOKEN],
        tokens=tokens,
        text=target.detokenize(tokens),
        score=hypothesis.score,
        attention=None if heads is None else _average_heads(heads[:, layer]),
        attention_heads=heads,
        attention_layer=layer,
        several_links=trained.metadata.get("several_links", False),
        right_to_left=target.right_to_left,
        complete=hypothesis.complete,
        log_prob=hypothesis.log_prob,
        unknown=encoding.unknown,
        left_out=list(encoding.left_out),
        source_words=[*trained.source.words_of(encoding), None],
        target_words=target.word_ids(tokens),
        tree=tree,
        top_logprobs=_most_probable(hypothesis, target, copies),
    )


def _average_heads(weights: np.ndarray) -> np.ndarray:
    """Return the average of the weights (L, heads, T) over the heads."""
    return weights[:, 0].copy() if weights.shape[1] == 1 else weights.mean(1)

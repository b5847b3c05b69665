"""Output layers, which predict the next token, from the vocabulary or copied from the source."""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from regard.kernels.weighted_sum import to_compute_dtype
from regard.text import UNK


class OutputDecoder(nn.Module):
    """Base class of decoders with an output layer, which `_add_output` creates."""

    vocabulary: int
    output: "nn.Linear | CopyingOutput"
    attention_delay = 0

    def _add_output(self, dim: int, embedding: nn.Embedding, tie: bool, copying: bool) -> None:
        self.output = (CopyingOutput if copying else nn.Linear)(dim, self.vocabulary)
        if tie:
            self.output.weight = embedding.weight

    def predict(
        self,
        states: Float[Tensor, "*n R"],
        weights: Float[Tensor, "*n layers heads T"] | None = None,
        copies: Int[Tensor, "*m T"] | None = None,
    ) -> Float[Tensor, "*n V"]:
        """Return the logits over the vocabulary or, for a copying decoder, log-probabilities."""
        if not isinstance(self.output, CopyingOutput):
            return self.output(states)
        return self.output(states, weights, copies)

    def log_probs(self, states: Tensor, weights: Tensor | None, copies: Tensor | None) -> Tensor:
        """Return the log-probabilities at one step, for N = B x beams rows."""
        copies = None if copies is None else repeat_beams(copies, states.shape[0])
        return torch.log_softmax(to_compute_dtype(self.predict(states, weights, copies)), dim=-1)


class CopyingOutput(nn.Linear):
    """A mixture of generating a token from the vocabulary and copying one from the source.

        P(w) = p_gen P_vocab(w) + (1 - p_gen) sum_{i: x_i = w} alpha_i

    See et al. 2017, "Get To The Point" (arXiv:1704.04368), eq. 8 and 9. Our p_gen is a sigmoid of
    the readout state, which a recurrent decoder computes from their c_t and s_t; alpha is the average
    over the heads of the last layer. Source tokens that are not in the vocabulary have the ids V, V + 1, …,
    in the order in which they occur in each source, so the outputs have V + K entries.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features)
        self.gate = nn.Linear(in_features, 1)

    def forward(
        self,
        input: Float[Tensor, "*n R"],
        weights: Float[Tensor, "*n layers heads T"] | None = None,
        copies: Int[Tensor, "*m T"] | None = None,
    ) -> Float[Tensor, "*n VK"]:
        """Return log-probabilities; -inf for tokens in neither the vocabulary nor the source."""
        assert weights is not None
        assert copies is not None
        p_vocab = torch.softmax(to_compute_dtype(super().forward(input)), dim=-1)
        p_gen = torch.sigmoid(to_compute_dtype(self.gate(input)))
        alpha = to_compute_dtype(weights[..., -1, :, :].mean(-2))
        # the shapes of a compiled graph cannot depend on ids; at most T of them are beyond V
        compiling = torch.compiler.is_compiling()
        extra = copies.shape[-1] if compiling else int(copies.max()) + 1 - self.out_features
        extra = max(0, extra)
        mixture = nn.functional.pad(p_gen * p_vocab, (0, extra))
        ids = copies if copies.dim() == alpha.dim() else copies[:, None]
        mixture = mixture.scatter_add(-1, ids.expand_as(alpha), (1 - p_gen) * alpha)
        # not log(0), whose derivative would turn every gradient into NaN
        possible = mixture > 0
        return torch.where(possible, mixture, 1).log().masked_fill(~possible, -torch.inf)


def repeat_beams(rows: Shaped[Tensor, "B *n"], count: int) -> Shaped[Tensor, "N *n"]:
    """Repeat the row of each source for each of its beams; N = `count` = B x beams."""
    # not len(), which would make the size a constant of an exported program
    return rows.repeat_interleave(count // max(1, rows.shape[0]), dim=0)


def known_tokens(tokens: Int[Tensor, "*n"], vocabulary: int) -> Int[Tensor, "*n"]:
    """Replace copied tokens, whose ids are beyond the vocabulary, with UNK, which decoders can read."""
    return tokens.masked_fill(tokens >= vocabulary, UNK)

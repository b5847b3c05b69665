"""Output layers: readout states to the next token, from the vocabulary or copied from the source."""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from regard.text import UNK


class Output(nn.Linear):
    """Logits over the vocabulary: a linear map of the readout state."""

    def forward(
        self,
        input: Float[Tensor, "*n R"],
        weights: Float[Tensor, "*n layers heads T"] | None = None,
        copies: Int[Tensor, "*m T"] | None = None,
    ) -> Float[Tensor, "*n V"]:
        """Return the logits for readout states; weights and copies are not used."""
        return super().forward(input)

    def log_probs(
        self,
        input: Float[Tensor, "N R"],
        weights: Float[Tensor, "N layers heads T"] | None = None,
        copies: Int[Tensor, "B T"] | None = None,
    ) -> Float[Tensor, "N V"]:
        """Return the log-probabilities of one step, for N = B x beams rows."""
        if copies is not None:
            copies = repeat_beams(copies, len(input))
        return torch.log_softmax(self(input, weights, copies).float(), dim=-1)


class CopyingOutput(Output):
    """A mixture of generating a token of the vocabulary and copying one of the source.

        P(w) = p_gen P_vocab(w) + (1 - p_gen) sum_{i: x_i = w} alpha_i

    See et al. 2017, "Get To The Point" (arXiv:1704.04368), eq. 8 and 9. Our p_gen is a sigmoid of
    the readout state, which a recurrent decoder computes from their c_t and s_t; alpha is the average
    over the heads of the last layer. Source tokens that the vocabulary lacks follow it as V, V + 1, …,
    in the order of each source, so the outputs have V + K entries.
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
        """Return log-probabilities; -inf for tokens of neither vocabulary nor source."""
        assert weights is not None
        assert copies is not None
        p_vocab = torch.softmax(super().forward(input).float(), dim=-1)
        p_gen = torch.sigmoid(self.gate(input).float())
        alpha = weights[..., -1, :, :].mean(-2).float()
        extra = max(0, int(copies.max()) + 1 - self.out_features)
        mixture = nn.functional.pad(p_gen * p_vocab, (0, extra))
        ids = copies if copies.dim() == alpha.dim() else copies[:, None]
        mixture = mixture.scatter_add(-1, ids.expand_as(alpha), (1 - p_gen) * alpha)
        # not log(0), whose derivative would turn every gradient into NaN
        possible = mixture > 0
        return torch.where(possible, mixture, 1).log().masked_fill(~possible, -torch.inf)


def repeat_beams(rows: Shaped[Tensor, "B *n"], count: int) -> Shaped[Tensor, "N *n"]:
    """Repeat the row of each source for its beams, N = `count` = B x beams."""
    return rows.repeat_interleave(count // max(1, len(rows)), dim=0)


def known_tokens(tokens: Int[Tensor, "*n"], vocabulary: int) -> Int[Tensor, "*n"]:
    """Replace copied tokens, which lie beyond the vocabulary, with UNK: decoders read these back."""
    return tokens.masked_fill(tokens >= vocabulary, UNK)

"""From readout states to the next symbol: over the vocabulary, or copied from the source."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import Memory
from regard.text import UNK


class Output(nn.Linear):
    """Logits over the vocabulary: a linear map of the readout state."""

    def forward(
        self,
        input: Float[Tensor, "*n R"],
        weights: Float[Tensor, "*n layers heads T"] | None = None,
        copies: Int[Tensor, "*m T"] | None = None,
    ) -> Float[Tensor, "*n V"]:
        """Logits from readout states; where they looked does not matter."""
        return super().forward(input)


class CopyingOutput(Output):
    """A mixture of writing a symbol of the vocabulary and copying one of the source.

        P(w) = p_gen P_vocab(w) + (1 - p_gen) sum_{i: x_i = w} alpha_i

    See et al. 2017, "Get To The Point" (arXiv:1704.04368), eq. 8 and 9. Our p_gen is a sigmoid of
    the readout state, which a recurrent decoder makes of their c_t and s_t; alpha is the average over
    the heads of the last layer. Source symbols that the vocabulary lacks follow after it, V, V + 1, …, in the order
    of each source, so the outputs have V + K entries.
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
        """Log-probabilities; -inf for symbols that neither vocabulary nor source can give."""
        assert weights is not None
        assert copies is not None
        words = torch.softmax(super().forward(input).float(), dim=-1)
        writing = torch.sigmoid(self.gate(input).float())
        looked = weights[..., -1, :, :].mean(-2).float()
        wider = max(0, int(copies.max()) + 1 - self.out_features)
        mixture = nn.functional.pad(writing * words, (0, wider))
        places = copies if copies.dim() == looked.dim() else copies[:, None]
        mixture = mixture.scatter_add(-1, places.expand_as(looked), (1 - writing) * looked)
        # not log(0), whose derivative would make NaN of every gradient
        possible = mixture > 0
        return torch.where(possible, mixture, 1).log().masked_fill(~possible, -torch.inf)


def repeat_copies(memory: Memory, rows: int) -> Int[Tensor, "N T"] | None:
    """What each of N = B x beams rows may copy."""
    copies = memory.copies
    return None if copies is None else copies.repeat_interleave(rows // max(1, len(copies)), dim=0)


def readable(tokens: Int[Tensor, "*n"], vocabulary: int) -> Int[Tensor, "*n"]:
    """The symbols as the decoder reads them back: copied ones from beyond the vocabulary are unknown."""
    return tokens.masked_fill(tokens >= vocabulary, UNK)

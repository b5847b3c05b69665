"""The operator behind the additive family: context, and weights only if asked for.

One door for every caller; which backend computes is decided here. Plain PyTorch in bounded blocks
(`eager.py`) serves every device and dtype.
"""

from jaxtyping import Bool, Float
from torch import Tensor

from regard.kernels import eager

scores = eager.additive_scores
"""e_ti = v . tanh(a_t + b_i), (B, L, T); see `eager.additive_scores`."""


def attend(
    a: Float[Tensor, "B L D"],
    b: Float[Tensor, "B T D"],
    v: Float[Tensor, " D"],
    values: Float[Tensor, "B T Dv"],
    masked: Bool[Tensor, "#B #L T"] | None = None,
    bias: Float[Tensor, "#B L T"] | None = None,
    normalizer: str = "softmax",
    dropout: float = 0.0,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "B L Dv"], Float[Tensor, "B L T"] | None]:
    """Look with `v . tanh(a + b)`: the context, and the weights where they are asked for.

    The arguments are those of `eager.additive_attention`. With `need_weights` the B x L x T weights
    are held whole; the B x L x T x D pairs never are.
    """
    if not need_weights:
        context = eager.additive_attention(a, b, v, values, masked, bias, normalizer, dropout)
        return context, None
    pairs = scores(eager.wide(a), eager.wide(b), eager.wide(v))
    return eager.average(pairs, values, masked, bias, normalizer, dropout)

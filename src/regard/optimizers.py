"""Optimisers by name: Adam and AdamW of PyTorch, and Muon."""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.config import TrainingConfig

BETAS = (0.9, 0.98)
"""Decay of Adam's moments (Vaswani et al. 2017, section 5.3)."""
MOMENTUM = 0.95
"""Momentum of Muon."""
RMS = 0.2
"""Root mean square of an update of Muon, in units of the learning rate; about that of Adam (Liu et al. 2025)."""
_SMALLEST_NORM = 1e-7
"""Frobenius norm of a momentum below which the update shrinks with it, as in PyTorch's Muon."""
_COEFFICIENTS = (
    (8.3837, -24.7659, 18.3571),
    (4.0434, -3.0114, 0.5695),
    (3.5056, -2.6267, 0.5257),
    (2.4901, -1.8343, 0.4368),
)
"""Coefficients of the iterations; each polynomial minimises the largest distance to 1 over the range of singular values
that it meets, which is [0.003, 1] for the first (Amsel et al. 2025, arXiv:2505.16932)."""

_OTHERS = {"embedding", "output", "vector"}
"""Parts of the names of embeddings, output layers and score vectors, which are matrices for Adam."""


def make_optimizer(model: nn.Module, settings: TrainingConfig) -> torch.optim.Optimizer:
    """Return the optimiser of the settings for the parameters that require gradients."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "muon":
        matrices = [p for name, p in named if _is_hidden_matrix(name, p)]
        others = [p for name, p in named if not _is_hidden_matrix(name, p)]
        return Muon(matrices, others, rate, decay, BETAS)
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return kind([p for _, p in named], rate, BETAS, weight_decay=decay, fused=True)


def _is_hidden_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Return whether a parameter is the weight matrix of a hidden layer."""
    is_matrix = parameter.dim() == 2 and min(parameter.shape) > 1
    return is_matrix and _OTHERS.isdisjoint(name.split("."))


class Muon(torch.optim.AdamW):
    """Orthogonalised momentum for matrices, AdamW for other parameters.

    Muon (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon) replaces the momentum of a matrix
    by a matrix with the same singular vectors and singular values near 1. As in Liu et al. 2025
    (arXiv:2502.16982, section 2.2), the update is scaled by 0.2 sqrt(max(A, B)) for an A x B matrix, so that
    both kinds of parameters have one learning rate. PyTorch's own `torch.optim.Muon` orthogonalises in
    bfloat16, which CPUs without AVX-512 compute many times as slowly as float32.

    Args:
        matrices: parameters with two axes.
        others: parameters that are updated as by AdamW.
        lr: learning rate.
        weight_decay: coefficient of decoupled weight decay.
        betas: decay of the moments of AdamW.
    """

    def __init__(
        self,
        matrices: Iterable[nn.Parameter],
        others: Iterable[nn.Parameter],
        lr: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = BETAS,
    ) -> None:
        groups = [{"params": [*matrices]}, {"params": [*others]}]
        super().__init__(groups, lr=lr, weight_decay=weight_decay, betas=betas, fused=True)

    @torch.no_grad()
    def step(self) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update all parameters; afterwards, the matrices have no gradients."""
        group = self.param_groups[0]
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = self.state[parameter]
            if not state:  # the names of AdamW, which loads the state
                state["step"], state["exp_avg"] = torch.tensor(0.0), torch.zeros_like(parameter)
            state["step"] += 1
            momentum = state["exp_avg"].lerp_(parameter.grad, 1 - MOMENTUM)
            direction = orthogonalized(parameter.grad.lerp(momentum, MOMENTUM))  # Nesterov's
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.add_(direction, alpha=-group["lr"] * RMS * max(parameter.shape) ** 0.5)
            parameter.grad = None  # AdamW skips it
        super().step()


def orthogonalized(matrix: Float[Tensor, "A B"]) -> Float[Tensor, "A B"]:
    """Return the matrix with singular values from about 0.8 to 1.2, unless they are almost 0.

    Quintic Newton-Schulz iterations X <- a X + b (X X^T) X + c (X X^T)^2 X, from a matrix whose singular values
    have a 4-norm of 1. Only the smaller Gram matrix X X^T is iterated; the product of the polynomials is applied to X
    at the end.
    """
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    wide = wide / wide.norm().clamp(min=_SMALLEST_NORM)
    gram = wide @ wide.T
    square = gram.norm().clamp(min=len(gram) ** -0.5)  # the least, unless the norm was too small
    gram, total = gram / square, None
    for iteration, (a, b, c) in enumerate(_COEFFICIENTS, start=1):
        factor = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal().add_(a)
        total = factor if total is None else factor @ total
        if iteration < len(_COEFFICIENTS):
            gram = factor @ gram @ factor
    assert total is not None
    result = total @ (wide / square.sqrt())
    return result.T if matrix.shape[0] > matrix.shape[1] else result

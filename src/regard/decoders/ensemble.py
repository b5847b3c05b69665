"""Ensemble: one decoder that averages the predictions of several."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Generic, TypeVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import EnsembleMemory, Intervention, Memory
from regard.decoders.protocol import AttentionInputs, Decoder, Step, StepDecoder, Unrolled
from regard.errors import ConfigError
from regard.kernels.weighted_sum import to_compute_dtype


@dataclasses.dataclass(frozen=True)
class EnsembleState:
    """The states of all members."""

    members: tuple[Any, ...]
    weights: Tensor | None = None
    """(N, 1, members, T): the weights of the last step, if only some members have a delay."""

    def select(self, rows: Int[Tensor, " N2"], items: Tensor | None = None) -> "EnsembleState":
        """Return these rows; with `items`, the memories contain only these sources."""
        return EnsembleState(
            tuple(member.select(rows, items) for member in self.members),
            None if self.weights is None else self.weights.index_select(0, rows),
        )


MemberT = TypeVar("MemberT", bound=StepDecoder)


class EnsembleSteps(Generic[MemberT]):
    """The steps of an ensemble.

    Args:
        members: what computes the steps of each member: its decoder, or the same for inference.
        shapes: for each member, the numbers of its attention layers and heads, and its selected layer.
    """

    def __init__(self, members: Sequence[MemberT], shapes: Sequence[tuple[int, int, int]]) -> None:
        self.members = members
        self.shapes = shapes
        self.delays = _delays(members, shapes)
        self.attention_delay = max(self.delays, default=0)

    def start(self, memory: Memory) -> EnsembleState:
        """Return the states before the first token."""
        pairs = zip(self.members, _members(memory), strict=True)
        return EnsembleState(tuple(decoder.start(member) for decoder, member in pairs))

    def step(
        self,
        token: Int[Tensor, " N"],
        state: EnsembleState,
        intervention: Intervention | None = None,
    ) -> Step:
        """Read one token and return the average of the log-probabilities of the next."""
        interventions = _for_members(intervention, self.shapes)
        steps = [
            decoder.step(token, *arguments)
            for decoder, *arguments in zip(self.members, state.members, interventions, strict=True)
        ]
        weights, current = _member_weights([step.weights for step in steps], self.shapes), None
        if weights is not None and len(set(self.delays)) > 1:
            current = weights
            previous = torch.zeros_like(current) if state.weights is None else state.weights
            weights = _delayed(current, previous, self.delays)
        return Step(
            _average([step.log_probs for step in steps]),
            EnsembleState(tuple(step.state for step in steps), current),
            weights,
        )


class EnsembleDecoder(nn.Module, EnsembleSteps[Decoder]):
    """Average the log-probabilities of several decoders of the same vocabulary, and renormalise.

        log p(y) = 1/M sum_m log p_m(y) - log Z

    This is the normalised geometric mean of the distributions, a product of experts (Hinton 2002,
    doi:10.1162/089976602760128018): a token that one member excludes is unlikely. It is what
    OpenNMT-py computes by default, and Marian with equal weights and without log Z; fairseq averages
    the probabilities instead, which is done here only where members that copy exclude every token
    between them, so that the geometric mean is 0.

    The ensemble has one attention layer, with one head for each member that has attention: the weights
    of the member's selected layer, averaged over its heads. A member without attention has no head; it
    contributes to the log-probabilities only. If the weights of one member are known one step later
    (`attention_delay`), those of all members are returned one step later. Pinned weights apply to every
    member that has attention; an ablated head ablates all heads of its member.

    Args:
        members: the decoders, at least one.
        layers: for each decoder, its selected attention layer.
    """

    def __init__(self, members: Sequence[Decoder], layers: Sequence[int]) -> None:
        super().__init__()
        self.members = cast("Sequence[Decoder]", nn.ModuleList(cast("Any", members)))
        self.shapes = [
            (member.attention_layers, member.attention_heads, layer)
            for member, layer in zip(members, layers, strict=True)
        ]
        self.vocabulary = members[0].vocabulary
        self.attention_heads = sum(count > 0 for count, _, _ in self.shapes)
        self.attention_layers = min(1, self.attention_heads)
        self.delays = _delays(members, self.shapes)
        self.attention_delay = max(self.delays, default=0)

    def prepare_memory(self, encoded: Memory) -> EnsembleMemory:
        """Prepare the memory of every member."""
        return EnsembleMemory.of(
            [
                decoder.prepare_memory(dataclasses.replace(member, copies=encoded.copies))
                for decoder, member in zip(self.members, _members(encoded), strict=True)
            ]
        )

    def unroll(
        self, memory: Memory, tokens: Int[Tensor, "B L"], need_weights: bool = False
    ) -> Unrolled:
        """Compute all steps at once; the states are the average log-probabilities (B, L, V)."""
        log_probs: list[Tensor] = []
        weights: list[Tensor | None] = []
        for decoder, member in zip(self.members, _members(memory), strict=True):
            unrolled = decoder.unroll(member, tokens, need_weights or member.copies is not None)
            logits = decoder.predict(unrolled.states, unrolled.weights, member.copies)
            log_probs.append(torch.log_softmax(to_compute_dtype(logits), dim=-1))
            weights.append(unrolled.weights)
        combined = _member_weights(weights, self.shapes) if need_weights else None
        if combined is not None and len(set(self.delays)) > 1:
            previous = torch.cat([torch.zeros_like(combined[:, :1]), combined[:, :-1]], dim=1)
            combined = _delayed(combined, previous, self.delays)
        return Unrolled(_average(log_probs), combined)

    def predict(
        self,
        states: Float[Tensor, "*n V"],
        weights: Float[Tensor, "*n layers heads T"] | None = None,
        copies: Int[Tensor, "*m T"] | None = None,
    ) -> Float[Tensor, "*n V"]:
        """Return the states of `unroll`, which are log-probabilities."""
        return states

    def attention_inputs(
        self, memory: Memory, tokens: Int[Tensor, "B L"], layer: int = 0, head: int = 0
    ) -> AttentionInputs:
        """Raise a ConfigError: the attention of an ensemble is an average, without inputs of its own."""
        raise ConfigError(
            "the attention of an ensemble is the average of its members' and cannot be explained; "
            "explain a member, such as members/0 in its folder"
        )


def _members(memory: Memory) -> tuple[Memory, ...]:
    assert isinstance(memory, EnsembleMemory)
    return memory.members


def _average(log_probs: Sequence[Float[Tensor, "*n V"]]) -> Float[Tensor, "*n V"]:
    """Return the normalised geometric mean of distributions, as log-probabilities."""
    members = torch.stack([*log_probs])
    mean = members.mean(0)
    excluded = mean.amax(-1, keepdim=True).isneginf()
    if bool(excluded.any()):
        mean = torch.where(excluded, members.logsumexp(0), mean)
    return mean.log_softmax(-1)


def _member_weights(
    weights: Sequence[Tensor | None], shapes: Sequence[tuple[int, int, int]]
) -> Float[Tensor, "*n 1 members T"] | None:
    """Return the weights of one layer with a head per member; None if no member has attention."""
    heads = [
        by_layer[..., layer, :, :].mean(-2)
        for by_layer, (_, _, layer) in zip(weights, shapes, strict=True)
        if by_layer is not None
    ]
    return torch.stack(heads, dim=-2)[..., None, :, :] if heads else None


def _delays(members: Sequence[Any], shapes: Sequence[tuple[int, int, int]]) -> list[int]:
    """Return the delays of the members that have attention."""
    pairs = zip(members, shapes, strict=True)
    return [getattr(member, "attention_delay", 0) for member, (layers, _, _) in pairs if layers]


def _delayed(
    weights: Float[Tensor, "*n 1 members T"],
    previous: Float[Tensor, "*n 1 members T"],
    delays: Sequence[int],
) -> Float[Tensor, "*n 1 members T"]:
    """Return the weights, or those of the previous step for members without a delay."""
    early = torch.tensor(delays, device=weights.device) == 0
    return torch.where(early[:, None], previous, weights)


def _for_members(
    intervention: Intervention | None, shapes: Sequence[tuple[int, int, int]]
) -> list[Intervention | None]:
    """Return the intervention on each member; None for a member that it does not concern."""
    if intervention is None:
        return [None] * len(shapes)
    ablated = intervention.ablated_heads
    heads = iter([] if ablated is None else ablated[0])
    interventions: list[Intervention | None] = []
    for layers, count, _ in shapes:
        head = next(heads, None) if layers else None
        all_heads = None if head is None else head.expand(layers, count)
        change = Intervention(intervention.pinned_weights, all_heads)
        interventions.append(change if layers else None)
    return interventions

"""Models, memories and decoders for the tests of the kernels of decoders."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from regard.attention import Memory
from regard.decoders import StepDecoder
from regard.decoders.folded_recurrent import FoldedRecurrentDecoder
from regard.decoders.folded_transformer import FoldedTransformerDecoder
from regard.decoders.output import CopyingOutput
from regard.models import Seq2Seq

V = 21


def encoded(model: Seq2Seq, lengths: Sequence[int]) -> Memory:
    source = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
    for row, length in enumerate(lengths):
        source[row, :length] = torch.randint(
            4, V, (length,), generator=torch.Generator().manual_seed(row)
        )
    copies = source if isinstance(model.decoder.output, CopyingOutput) else None
    return model.encode(source, torch.tensor(lengths), copies)


def record_calls(decoder: FoldedRecurrentDecoder | FoldedTransformerDecoder) -> list[bool]:
    """Return a list to which every call of the decoder's kernel adds whether it gave a result."""
    found: list[bool] = []
    kernel = decoder.kernel
    assert kernel is not None

    def recorded(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            output = method(*arguments)
            found.append(output is not None)
            return output

        return call

    for name in {"step", "search"} & {*dir(kernel)}:
        setattr(kernel, name, recorded(getattr(kernel, name)))
    return found


class StepsOnly:
    """A decoder without a search of its own."""

    def __init__(self, decoder: StepDecoder) -> None:
        self.start, self.step = decoder.start, decoder.step

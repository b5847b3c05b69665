"""Numbers given as arrays, tensors or nested lists."""

from typing import Any

import numpy as np
import numpy.typing as npt

from regard.errors import ShapeError


def to_array(values: Any, name: str) -> npt.NDArray[Any]:
    """Return real numbers as an array; of a tensor also if it requires gradients, in any dtype.

    Raises:
        ShapeError: these are no real numbers, or rows differ in length; the message has the name.
    """
    try:
        if hasattr(values, "detach"):
            values = values.detach().cpu()
            # NumPy has no bfloat16
            values = (values.double() if values.is_floating_point() else values).numpy()
        array = np.asarray(values)
        if array.dtype.kind in "cmM":  # complex numbers and times lose a part as real ones
            raise TypeError
        return array if array.dtype.kind in "biuf" else array.astype(float)
    except (RuntimeError, TypeError, ValueError, OverflowError):
        raise ShapeError(f"expected {name} as numbers in rows of the same length") from None

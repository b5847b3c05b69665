"""Checkpoints: the state for an exact resume in `last/`, as safetensors and JSON without code."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regard.errors import FolderError
from regard.files import atomic_write, write_json
from regard.migrations import FORMAT, convert_tensors, convert_training_state
from regard.model_folder import load_tensors, unshared_tensors, write_tensors


def save(folder: str | Path, model: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Write `last/` in `folder`: weights, state of the optimiser and of the generators, `state`.

    Both files store the number of updates; files whose numbers differ are refused by `load`.
    """
    last = Path(folder) / "last"
    tensors = {f"model.{name}": value for name, value in unshared_tensors(model).items()}
    for index, values in optimizer.state_dict()["state"].items():
        for name, value in values.items():
            tensors[f"optimizer.{index}.{name}"] = torch.as_tensor(value)
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    update = str(state["schedule"]["update"])
    with atomic_write(last / "state.safetensors") as temporary:
        write_tensors(temporary, tensors, {"update": update})
    write_json(last / "state.json", {"format": FORMAT, "update": update, **state})


def load(folder: str | Path, model: nn.Module, optimizer: Optimizer) -> dict[str, Any] | None:
    """Restore model, optimiser and generators from `last/`; return its `state`, None without one.

    Raises:
        FolderError: the files are damaged, or from different updates.
    """
    from safetensors import SafetensorError, safe_open

    last = Path(folder) / "last"
    if not (last / "state.json").exists():
        return None
    try:
        state = json.loads((last / "state.json").read_text(encoding="utf-8"))
        with safe_open(str(last / "state.safetensors"), framework="pt") as stored:
            update = (stored.metadata() or {}).get("update")
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        if update != state["update"]:
            raise ValueError(
                f"checkpoint files from different updates, {update} and {state['update']}"
            )
        load_tensors(model, convert_tensors(_part(tensors, "model.")))
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in _part(tensors, "optimizer.").items():
            index, key = name.split(".", 1)
            moments.setdefault(int(index), {})[key] = value
        optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
        state = convert_training_state(state)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise FolderError(f"{last} is damaged ({error}); train in another folder") from None
    torch.set_rng_state(tensors["random.cpu"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])
    return state


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }

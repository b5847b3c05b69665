"""`last/`: what exact continuation needs, as tensors and JSON; nothing in it executes."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from regard.errors import FolderError
from regard.files import write_text, written_whole


def save(folder: str | Path, model: nn.Module, optimizer: Optimizer, state: dict[str, Any]) -> None:
    """Write `last/` in `folder`: weights, the optimiser's moments, random state, `state`.

    Both files carry the number of the save; a pair that does not match is never read.
    """
    from safetensors.torch import save_file

    last = Path(folder) / "last"
    tensors = {f"model.{name}": value for name, value in _unshared(model).items()}
    moments = optimizer.state_dict()
    for index, values in moments["state"].items():
        for name, value in values.items():
            tensors[f"optimizer.{index}.{name}"] = torch.as_tensor(value)
    tensors["random.cpu"] = torch.get_rng_state()
    if torch.cuda.is_available():
        tensors["random.cuda"] = torch.cuda.get_rng_state()
    stamp = str(state["schedule"]["update"])
    with written_whole(last / "state.safetensors") as temporary:
        contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
        save_file(contiguous, str(temporary), metadata={"update": stamp})
    write_text(last / "state.json", json.dumps({"update": stamp, **state}, indent=2) + "\n")


def load(folder: str | Path, model: nn.Module, optimizer: Optimizer) -> dict[str, Any] | None:
    """Put `last/` back into model, optimiser and random state; its `state`, or None if there is none.

    Raises:
        FolderError: the files are damaged or do not belong together.
    """
    from safetensors import SafetensorError, safe_open

    last = Path(folder) / "last"
    if not (last / "state.json").exists():
        return None
    try:
        state = json.loads((last / "state.json").read_text(encoding="utf-8"))
        with safe_open(str(last / "state.safetensors"), framework="pt") as stored:
            stamp = (stored.metadata() or {}).get("update")
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (OSError, ValueError, SafetensorError) as error:
        raise FolderError(f"{last} is damaged ({error}); start anew in another folder") from None
    if stamp != state.get("update"):
        raise FolderError(
            f"{last} is of two different moments (updates {stamp} and {state.get('update')}); start "
            "anew in another folder"
        )
    model.load_state_dict(_part(tensors, "model."), strict=False)
    _load_optimizer(optimizer, _part(tensors, "optimizer."))
    torch.set_rng_state(tensors["random.cpu"])
    if "random.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["random.cuda"])
    return state


def remove(folder: str | Path) -> None:
    """Delete `last/`."""
    shutil.rmtree(Path(folder) / "last", ignore_errors=True)


def _unshared(model: nn.Module) -> dict[str, Tensor]:
    """The state of the model with tied tensors once, under their first name."""
    seen: set[int] = set()
    kept: dict[str, Tensor] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        if value.data_ptr() not in seen or value.numel() == 0:
            kept[name] = value
        seen.add(value.data_ptr())
    return kept


def _load_optimizer(optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    values = optimizer.state_dict()
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        index, key = name.split(".", 1)
        state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": values["param_groups"]})


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): value
        for name, value in tensors.items()
        if name.startswith(prefix)
    }

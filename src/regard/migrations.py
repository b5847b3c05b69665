"""Migrations: convert files in earlier model-folder formats to the current format.

JSON documents state their format under the key `format`; a `last/state.json` without it has format 1.
Up to format 2, the checkpoint was the folder `last/`; since format 3, checkpoints are files in
`checkpoints/`, with the same state and the settings of the run.
Tensor names are converted without regard to the format, because a resumed run replaces the files in a
folder one at a time; no name in an earlier format occurs in a later one.
"""

import re
from typing import Any, TypeVar

FORMAT = 3
"""Version of the model-folder format that this package writes."""

_T = TypeVar("_T")

_TENSOR_NAMES = (
    (r"\.within\.", ".self_attention."),
    (r"\.across\.", ".cross_attention."),
    (r"\.(query|key|value)\.(weight|bias)$", r".\1_proj.\2"),
    (r"_attention\.output\.", "_attention.out_proj."),
    (r"\.feed_forward\.widen\.", ".feed_forward.linear1."),
    (r"\.feed_forward\.narrow\.", ".feed_forward.linear2."),
    (r"\.embedding\.symbols\.", ".embedding.tokens."),
    (r"^encoder\.forwards\.", "encoder.forward_layers."),
    (r"^encoder\.backwards\.", "encoder.backward_layers."),
    (r"^encoder\.project\.", "encoder.projection."),
    (r"\.window\.predict\.", ".window.position_predictor."),
)
"""Regular expressions for tensor names in format 1 and their replacements, applied in this order."""

_METADATA = {
    "longest_source": "max_source_length",
    "longest_target": "max_target_length",
    "training_pairs": "training_fingerprint",
}
_TOKENIZER = {"symbols": "vocabulary", "scores": "log_probs"}
_SCHEDULE = {
    "stale": "validations_since_best",
    "factor": "plateau_factor",
    "cooling": "cooldown",
}
_STATISTICS = {"total": "total_loss", "symbols": "target_tokens"}


def convert_config(document: dict[str, Any]) -> dict[str, Any]:
    """Return the content of `config.json` in the current format."""
    if document["format"] >= 2:
        return document
    document = _rename({"facts": {}, **document}, {"facts": "metadata"})
    sides = {
        name: _convert_unit(document[name]) for name in ("source", "target") if name in document
    }
    metadata = _rename(document["metadata"], _METADATA)
    if "example" in metadata:
        metadata["examples"] = [metadata.pop("example")]
    return {**document, **sides, "metadata": metadata}


def convert_tokenizer(document: dict[str, Any]) -> dict[str, Any]:
    """Return the content of `source.json` or `target.json` in the current format."""
    if document["format"] >= 2:
        return document
    return _convert_unit(_rename(document, _TOKENIZER))


def convert_training_state(document: dict[str, Any]) -> dict[str, Any]:
    """Return the content of `last/state.json` in the current format."""
    if document.get("format", 1) >= 2:
        return document
    document = _rename(document, {**_METADATA, "since": "statistics"})
    schedule = _rename(document["schedule"], _SCHEDULE)
    if schedule["cooldown"] is not None:
        names = ("update", "seconds", "end_update")
        schedule["cooldown"] = dict(zip(names, schedule["cooldown"], strict=True))
    statistics = _rename(document["statistics"], _STATISTICS)
    del statistics["started"]
    return {**document, "schedule": schedule, "statistics": statistics}


def convert_tensors(tensors: dict[str, _T]) -> dict[str, _T]:
    """Return the tensors of a model under their current names."""
    return {_tensor_name(name): tensor for name, tensor in tensors.items()}


def _convert_unit(values: Any) -> Any:
    is_renamed = isinstance(values, dict) and values.get("unit") == "symbol"
    return {**values, "unit": "whitespace"} if is_renamed else values


def _tensor_name(name: str) -> str:
    for pattern, replacement in _TENSOR_NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def _rename(values: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in values.items()}

"""Model folders: everything that a trained model needs, without executable content.

config.json          resolved settings, format and package version, training metadata, and a checksum of these
                     and the tokenizers
model.safetensors    the best weights, in float32, float16 or int8 (quantization.py)
source.json target.json    the tokenizers
metrics.jsonl        one line per validation (written by training)
README.md            model card, with the training command
NOTICE               licence of the data, if it must be passed on with the model
checkpoints/         training states for --resume (checkpoints.py)
"""

import errno
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard import migrations, pairs, pretrained
from regard.config import Config, from_dict
from regard.errors import FolderError
from regard.files import atomic_write, parse_json, write_json, write_text
from regard.models import Seq2Seq, build
from regard.quantization import WeightType, compress, expand
from regard.text import Tokenizer
from regard.version import __version__

_TOKENIZERS = ("source.json", "target.json")

_NOT_SETTINGS = ("format", "regard", "sha256")
"""What config.json contains besides the settings and the metadata."""

_SENTENCES = ("warning", "description", "attribution", "command")
"""Metadata that are texts for the user."""


@dataclass(frozen=True)
class TrainedModel:
    """A model with its settings and tokenizers: the content of a model folder."""

    config: Config
    model: Seq2Seq
    source: Tokenizer
    target: Tokenizer
    metadata: dict[str, Any] = field(default_factory=dict)
    """Properties of the data and the model, such as `max_target_length`; `attribution`, where present, is
    a sentence about the origin of the data."""
    members: tuple["TrainedModel", ...] = ()
    """The models of an ensemble, which `model` and `reranker` combine (`regard.ensemble`)."""
    reranker: "TrainedModel | None" = None
    """The right-to-left members of an ensemble whose other members are combined in `model`; they rescore
    the outputs (`regard.reranking`)."""

    def __post_init__(self) -> None:
        target = self.target.in_order(self.config.model.right_to_left)
        object.__setattr__(self, "target", target)

    def training_file(self, name: Literal["train", "dev"]) -> str | None:
        """Return the path of the pairs that the model was trained or validated on.

        None if they are unknown, or if the path now names other contents: paths are stored as they were
        given, and other folders have files of the same names.
        """
        path: str | None = getattr(self.config.data, name)
        recorded = self.metadata.get("checksums", {}).get(name)
        return path if path and recorded and pairs.file_checksum(path) == recorded else None

    @property
    def attention_layer(self) -> int:
        """The layer whose weights are displayed: the middle one until training selects one."""
        return self.metadata.get("attention_layer", self.model.decoder.attention_layers // 2)


def save_description(folder: str | Path, trained: TrainedModel) -> None:
    """Write config.json and the tokenizers."""
    folder = Path(folder)
    config = {
        "format": migrations.FORMAT,
        "regard": __version__,
        **asdict(trained.config),
        "metadata": trained.metadata,
    }
    for name, tokenizer in zip(_TOKENIZERS, (trained.source, trained.target), strict=True):
        write_text(folder / name, tokenizer.to_json() + "\n")
    write_config(folder, config, _TOKENIZERS)


def write_config(folder: Path, document: dict[str, Any], others: Sequence[str] = ()) -> None:
    """Write config.json with a checksum of its content and of other files in the folder."""
    sha256 = _checksum_of_description(folder, document, others)
    write_json(folder / "config.json", {"sha256": sha256, **document})


def _checksum_of_description(
    folder: Path, document: dict[str, Any], others: Sequence[str] = ()
) -> str:
    """Return the SHA-256 of the content of config.json, without its checksum, and of other files."""
    content = {name: value for name, value in document.items() if name != "sha256"}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
    for name in others:
        digest.update(_read_text(folder / name).encode())  # whatever its line endings are
    return digest.hexdigest()


def save_weights(
    folder: str | Path, model: nn.Module, run: str | None = None, dtype: WeightType = "float32"
) -> None:
    """Write model.safetensors.

    Args:
        folder: the model folder.
        model: the model whose weights are written.
        run: the identity of its run (`metadata.run` in config.json).
        dtype: how the file stores the weights; `load` reads each type as float32.

    Raises:
        ConfigError: the type is unknown, or a weight is too large for float16.
        DataError: the file cannot be written.
    """
    tensors = compress(unshared_tensors(model), dtype)
    with atomic_write(Path(folder) / "model.safetensors") as temporary:
        recorded = {"sha256": checksum(tensors)} | ({"run": run} if run else {})
        write_tensors(temporary, tensors, recorded)


def unshared_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors of the model by name; a shared tensor is included once, under its first name."""
    first = {name for name, _ in [*model.named_parameters(), *model.named_buffers()]}
    return {name: tensor for name, tensor in model.state_dict().items() if name in first}


def load_tensors(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Copy the tensors that `unshared_tensors` returned into the model.

    Raises:
        ValueError: a tensor is missing, unexpected or not finite, or has the wrong shape or dtype.
    """
    expected = unshared_tensors(model)
    wrong = sorted(tensors.keys() ^ expected.keys())
    if wrong:
        raise ValueError(f"missing or unexpected tensors: {', '.join(wrong[:5])}")
    for name, tensor in tensors.items():
        if tensor.dtype != expected[name].dtype:
            raise ValueError(f"{name} is {tensor.dtype} instead of {expected[name].dtype}")
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} contains values that are not finite")
    try:
        model.load_state_dict(tensors, strict=False)
    except RuntimeError as error:
        raise ValueError(str(error).splitlines()[-1].strip()) from None


def write_tensors(
    path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write tensors and metadata as safetensors.

    Raises:
        OSError: the file cannot be written.
    """
    from safetensors.torch import save

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    # not save_file, which reports a full disk as a SafetensorError
    content = save(contiguous, metadata)
    end = 8 + int.from_bytes(content[:8], "little")
    with path.open("wb") as file:
        file.write(_with_sorted_metadata(content[8:end]))
        file.write(memoryview(content)[end:])


def _with_sorted_metadata(content: bytes) -> bytes:
    """Return a header of safetensors with metadata sorted by name; the library writes them in random order."""
    header = json.loads(content)
    header["__metadata__"] = dict(sorted(header.get("__metadata__", {}).items()))
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the tensors are aligned
    return len(text).to_bytes(8, "little") + text


def checksum(tensors: dict[str, Tensor], text: str = "") -> str:
    """Return the SHA-256 of a string and of the names, dtypes, shapes and bytes of tensors."""
    digest = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


class _WithoutInitialization(TorchFunctionMode):
    """Leave out the functions of `torch.nn.init`, which take longer than reading the weights that follow.

    Memory that is not written is not occupied: a damaged config.json cannot exhaust it. Vectors of zeros and ones
    are still written.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # xavier_uniform_ is not passed here, but what it calls
        if func is Tensor.uniform_ or getattr(func, "__module__", None) == nn.init.__name__:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def describe(folder: str | Path) -> TrainedModel:
    """Read config.json and the tokenizers; the weights have arbitrary values.

    Raises:
        FolderError: a file is missing, damaged or in a newer format.
    """
    folder = pretrained.find(folder)
    try:
        values = read_config(folder)
        if "members" in values:
            raise FolderError(
                f"{folder} is an ensemble, not a single model; give one of its members, such as "
                f"{folder / 'members' / '0'}"
            )
        metadata = values.pop("metadata", {})
        config = from_dict(values)
        source, target = (_read_tokenizer(folder / name) for name in _TOKENIZERS)
        with _WithoutInitialization():
            model = build(config.model, len(source), len(target))
        _check_metadata(metadata, config, model)
        require_intact(folder, _TOKENIZERS)  # last, because the other messages say more
    except FolderError:
        raise
    except Exception as error:  # a damaged document can raise any exception
        raise FolderError(
            f"{folder / 'config.json'} is damaged ({error}), or was written by a newer version of regard; "
            "upgrade regard, or train again"
        ) from None
    return TrainedModel(config, model, source, target, metadata)


def load(folder: str | Path) -> TrainedModel:
    """Read a model folder or a pretrained model, weights included; nothing in it is executed.

    Raises:
        FolderError: a file is missing, damaged or in a newer format.
    """
    from safetensors import SafetensorError, safe_open

    folder = pretrained.find(folder)
    trained = describe(folder)
    model, weights = trained.model, folder / "model.safetensors"
    if not weights.is_file():
        raise FolderError(
            f"{folder} has no model.safetensors yet; train until the first validation"
        )
    try:
        weights.open("rb").close()  # safe_open reports a file without permission as missing
        with safe_open(str(weights), framework="pt") as stored:
            recorded = stored.metadata() or {}
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        if recorded.get("sha256") not in (None, checksum(tensors)):
            raise ValueError("the checksum differs")
        if recorded.get("run") not in (None, trained.metadata.get("run")):
            raise ValueError("it was written by another training run")
        load_tensors(model, migrations.convert_tensors(expand(tensors)))
    except OSError as error:
        raise FolderError(f"cannot read {weights}: {error.strerror or error}") from None
    except (SafetensorError, ValueError) as error:
        raise FolderError(
            f"{weights} is damaged or does not fit config.json ({error}); train again"
        ) from None
    model.eval()
    return trained


def require_intact(folder: Path, others: Sequence[str] = ()) -> None:
    """Raise a FolderError if the checksum in config.json is not that of its content and of the other files."""
    document = parse_json(_read_text(folder / "config.json"))
    checked = document.get("sha256")  # earlier versions have not recorded it
    if checked not in (None, _checksum_of_description(folder, document, others)):
        names = " or ".join(", ".join(("config.json", *others)).rsplit(", ", 1))
        raise FolderError(
            f"{folder}: {names} is damaged: the checksum differs; restore it from a copy, or train again (after an "
            'intended change, remove "sha256" from config.json)'
        )


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of config.json, without the versions and the checksum.

    Raises:
        FolderError: the file is missing, damaged or in a newer format.
    """
    try:
        return _read_config(folder)
    except FolderError:
        raise
    except Exception as error:  # a damaged document can raise any exception
        raise FolderError(f"{folder / 'config.json'} is damaged ({error}); train again") from None


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        values = parse_json(_read_text(folder / "config.json"))
    except (FileNotFoundError, NotADirectoryError):
        if (folder / "members").is_dir():
            raise FolderError(
                f"{folder} is an ensemble whose training has not ended: continue it with regard train --resume, or "
                f"give one of its members, such as {folder / 'members' / '0'}"
            ) from None
        raise FolderError(
            f"{folder} is not a model folder: it has no config.json; give the output folder of a "
            f"training run{pretrained.hint(folder)}"
        ) from None
    except OSError as error:
        raise FolderError(f"cannot read {folder / 'config.json'}: {error.strerror}") from None
    number = values.get("format") if isinstance(values, dict) else None
    if type(number) is not int or number < 1:
        raise FolderError(
            f"{folder / 'config.json'} is damaged: it does not state its format; train again"
        )
    if number > migrations.FORMAT:
        raise FolderError(
            f"{folder} was written by a newer version of regard ({values.get('regard', '?')}); upgrade regard to read it"
        )
    settings = migrations.convert_config(values)
    return {name: value for name, value in settings.items() if name not in _NOT_SETTINGS}


def _check_metadata(metadata: Any, config: Config, model: Seq2Seq) -> None:
    """Raise a ValueError unless training could have written these metadata."""
    if not isinstance(metadata, dict):
        raise ValueError(f"metadata must be a mapping, got {metadata!r}")
    longest = config.data.max_length + 1  # with EOS
    limits = {
        "max_source_length": longest,
        "max_target_length": longest,
        "parameters": 2**63,
        "attention_layer": max(model.decoder.attention_layers - 1, 0),
    }
    for name, value in cast("dict[str, Any]", metadata).items():
        if name in limits:
            valid = type(value) is int and 0 <= value <= limits[name]
        elif name == "several_links":
            valid = type(value) is bool
        elif name == "checksums":
            valid = isinstance(value, dict) and all(type(text) is str for text in value.values())
        elif name == "examples":
            valid = isinstance(value, list) and all(isinstance(text, str) for text in value)
        else:
            valid = isinstance(value, str) or name not in _SENTENCES
        if not valid:
            raise ValueError(f"metadata.{name} cannot be {value!r}")


def _read_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_json(_read_text(path))
    except (FileNotFoundError, UnicodeDecodeError):
        raise FolderError(f"{path} is missing or damaged; train again") from None
    except OSError as error:
        raise FolderError(f"cannot read {path}: {error.strerror}") from None
    except FolderError as error:
        raise FolderError(f"{path}: {error}") from None


def _read_text(path: Path) -> str:
    """Return the text of a file; a device or a pipe, which may never end, is not read."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is not a file")
    return path.read_text(encoding="utf-8")

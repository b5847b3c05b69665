"""Ensembles: folders with several models that translate together.

config.json        number of members, format and package version
README.md          model card
members/0 …        complete model folders, numbered from 0
"""

import dataclasses
import os
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from regard import migrations, model_folder, models, pretrained
from regard.errors import ConfigError, FolderError
from regard.files import atomic_folder, require_empty_folder, write_text
from regard.model_folder import TrainedModel
from regard.text import Tokenizer
from regard.version import __version__


def load(folder: str | Path) -> TrainedModel:
    """Read a model folder or an ensemble, weights included; nothing in it is executed.

    Raises:
        FolderError: a file or a member is missing, damaged or in a newer format.
    """
    folder = pretrained.find(folder)
    if _count(folder) is None:
        return model_folder.load(folder)
    members = [(path, model_folder.load(path)) for path in _members(folder)]
    try:
        return combine(members)
    except ConfigError as error:  # they were not combined by this package
        raise FolderError(f"{folder} is damaged: {error}") from None


def member_folder(folder: Path, index: int) -> Path:
    """Return the folder of a member, counted from 0."""
    return folder / "members" / str(index)


def combine(named: Sequence[tuple[str | Path, TrainedModel]]) -> TrainedModel:
    """Return one model that averages the predictions of models with the same tokenizers.

    The ensemble of one model is that model. Right-to-left members rescore the outputs of the others, if
    there are others. The settings of an ensemble are those of its first member that searches and has
    attention, or of its first member that searches.

    Args:
        named: the models, at least one, with their names in messages.

    Raises:
        ConfigError: the tokenizers or the copy mechanisms differ.
    """
    named = [(name, member) for name, each in named for member in each.members or (each,)]
    members = [member for _, member in named]
    first = members[0]
    for other in named[1:]:
        _require_agreement(named[0], other)
    if len(members) == 1:
        return first
    rescoring = [each for each in named if each[1].config.model.right_to_left]
    if 0 < len(rescoring) < len(members):
        searching = combine([each for each in named if not each[1].config.model.right_to_left])
        of_attention = ("attention_layer", "several_links", "checksums")
        metadata = {
            **{
                name: value
                for name, value in _metadata(members).items()
                if name not in of_attention
            },
            **{name: value for name, value in searching.metadata.items() if name in of_attention},
        }
        return dataclasses.replace(
            searching, metadata=metadata, members=tuple(members), reranker=combine(rescoring)
        )
    main = next((each for each in members if each.model.decoder.attention_layers), first)
    layers = [member.attention_layer for member in members]
    return TrainedModel(
        main.config,
        models.ensemble([member.model for member in members], layers).eval(),
        first.source,
        first.target,
        _metadata(members) | _checksums(main),
        tuple(members),
    )


def _checksums(main: TrainedModel) -> dict[str, Any]:
    """Return the checksums of the training files that the settings of this member name."""
    return {"checksums": main.metadata["checksums"]} if "checksums" in main.metadata else {}


def _metadata(members: Sequence[TrainedModel]) -> dict[str, Any]:
    """Return the metadata of an ensemble: sums, maxima, or those of the first member."""
    rules: dict[str, Callable[[Iterable[Any]], Any]] = {
        "max_source_length": max,
        "max_target_length": max,
        "parameters": sum,
        "several_links": all,
        "examples": lambda values: next(iter(values)),
        "attribution": lambda values: " ".join(dict.fromkeys(values)),
    }
    return {
        name: rule(values)
        for name, rule in rules.items()
        if (values := [each.metadata[name] for each in members if name in each.metadata])
    }


def save(folders: Sequence[str | Path], out: str | Path) -> TrainedModel:
    """Copy model folders into a new ensemble; the members of an ensemble become members of the new one.

    Raises:
        ConfigError: the tokenizers or the copy mechanisms differ, or `out` is not empty, is inside one
            of the folders or cannot be written.
        FolderError: a folder is missing, damaged or in a newer format.
    """
    out = Path(os.path.realpath(require_empty_folder(Path(out))))
    found = [pretrained.find(folder) for folder in folders]
    if inside := [path for path in found if Path(os.path.realpath(path)) in out.parents]:
        raise ConfigError(f"{out} is inside {inside[0]}; choose another folder (out)")
    paths = (path for folder in found for path in _members(folder))
    members = [(path, model_folder.load(path)) for path in paths]
    combine(members)
    with atomic_folder(out) as new:
        for index, (path, _) in enumerate(members):
            _copy_member(path, member_folder(new, index))
        return complete(new, len(members))


def _copy_member(folder: Path, out: Path) -> None:
    """Copy a model folder without its checkpoints."""
    out.mkdir(parents=True)
    for name in pretrained.FILES:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, out / name)


def complete(out: Path, count: int) -> TrainedModel:
    """Make a folder with complete members an ensemble: check them and write the other files.

    Raises:
        ConfigError: the tokenizers or the copy mechanisms differ.
        FolderError: a member is missing, damaged or in a newer format.
    """
    paths = [member_folder(out, index) for index in range(count)]
    combined = combine([(path, model_folder.load(path)) for path in paths])
    members = "".join(f"- [members/{index}](members/{index}/README.md)\n" for index in range(count))
    name = Path(os.path.realpath(out)).name
    rescored = ", the right-to-left ones for the outputs found by the others,"
    rescored = "" if combined.reranker is None else rescored
    card = (
        f"# {name}\n\nAn ensemble, created with regard {__version__}. It averages the "
        f"log-probabilities of its members{rescored} and has "
        f"{combined.metadata.get('parameters', 0):,} parameters.\n\n{members}\nUse it with\n\n    echo 'some text' | regard translate {shlex.quote(name)}\n"
    )
    write_text(out / "README.md", card)
    description = {"format": migrations.FORMAT, "regard": __version__, "members": count}
    model_folder.write_config(out, description)
    return combined


def _members(folder: Path) -> Iterator[Path]:
    """Yield the folders of an ensemble's members, or the folder of a single model."""
    count = _count(folder)
    if count is None:
        yield folder
    else:
        yield from (member_folder(folder, index) for index in range(count))


def _count(folder: Path) -> int | None:
    """Return the number of members of an ensemble, whose config.json is checked; None for a single model."""
    count = model_folder.read_config(folder).get("members")
    if count is not None and (type(count) is not int or count < 1):
        raise FolderError(
            f"{folder / 'config.json'} is damaged: members must be a number from 1, got {count!r}; "
            "create the ensemble again"
        )
    if count is not None:
        model_folder.require_intact(folder)
    return count


def _require_agreement(
    first: tuple[str | Path, TrainedModel], other: tuple[str | Path, TrainedModel]
) -> None:
    """Raise a ConfigError if two models cannot be members of one ensemble."""
    (name, ours), (other_name, theirs) = first, other
    for side in ("source", "target"):
        tokenizers = getattr(ours, side), getattr(theirs, side)
        if tokenizers[0] != tokenizers[1]:
            raise ConfigError(
                f"{name} and {other_name} cannot form an ensemble, because their {side} tokenizers "
                f"differ in the {_difference(*tokenizers)}; train the second with --tokenizers-from "
                f"{name}"
            )
    if ours.config.model.copy != theirs.config.model.copy:
        raise ConfigError(
            f"{name} and {other_name} cannot form an ensemble, because only one of them copies source "
            "tokens; train both with the same model.copy"
        )


def _difference(ours: Tokenizer, theirs: Tokenizer) -> str:
    """Return the first property in which two tokenizers differ, with its values."""
    names = (field.name for field in dataclasses.fields(Tokenizer))
    name = next(name for name in names if getattr(ours, name) != getattr(theirs, name))
    values: list[Any] = [getattr(ours, name), getattr(theirs, name)]
    label = name.replace("_", " ")
    if not any(isinstance(value, tuple) for value in values):
        return f"{label} ({values[0]} and {values[1]})"
    values = [value or () for value in values]
    sizes = f"{len(values[0]):,} and {len(values[1]):,} entries"
    only = next(iter(sorted({*values[0]} ^ {*values[1]})), None)
    return f"{label} ({sizes}{'' if only is None else f', {only!r} in only one of them'})"

"""`regard train --members`: train the members of an ensemble, each in its own process."""

import _thread
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from regard.cli import job
from regard.cli.parser import Parser, settings
from regard.config import Config, from_dict
from regard.errors import ConfigError, JobError, shortened
from regard.files import atomic_write, exclusive, is_descriptor, require_empty_folder, write_text
from regard.pairs import files_of, refuse_pipes

_SECONDS_BETWEEN_CHECKS = 0.1
_PARENT = "REGARD_PARENT"
"""Environment variable of a member: the process that started it."""
_MOST_MEMBERS = 1000
_GROUPS = ("model.", "training.")
"""Settings in which members may differ; the tokenizers and the pairs are common to all."""


def train_members(parser: Parser, arguments: Sequence[str], args: Namespace) -> int:
    """Train the members in `OUT/members/0`, … and return their number.

    Args:
        parser: the parser of `regard train`.
        arguments: the arguments of the command, as for `parser`.
        args: these arguments, parsed.

    Raises:
        ConfigError: an argument cannot be used.
        JobError: a member ended with an error; the others are stopped, and can be resumed.
    """
    if job.processes() > 1:
        raise ConfigError("--members starts its own processes; start it without a launcher")
    if args.init_from is not None and args.tokenizers_from is not None:
        raise ConfigError(
            "--init-from supplies the tokenizers; leave out --tokenizers-from, or --init-from"
        )
    plans = _plans(parser, arguments, args)
    files = [*map(plans[0]["data"].get, ("train", "dev", "train_links"))]
    refuse_pipes(*files)
    for path in filter(None, files):
        if any(map(is_descriptor, files_of(path))):  # members have descriptors of their own
            raise ConfigError(f"the members cannot read {path}; give the path of a file")
    out = _output_folder(Path(args.out), args.resume, len(plans))
    with exclusive(out, out / "members" / ".lock"):
        begun = {file: file.read_bytes() for file in _files_of_begun_members(out / "members")}
        debug = [option for option in arguments if option == "--debug"]  # is not in args
        commands = [[*command, *debug] for command in _write_plans(plans, out, args)]
        try:
            _run(commands, min(args.jobs, len(plans)), out / "members" / "0" / "config.json")
        except BaseException:
            _remove_plans(out / "members")
            raise
        finally:
            for file, content in begun.items():  # what is given to resume a member may be refused
                with atomic_write(file) as temporary:
                    temporary.write_bytes(content)
    return len(plans)


def _files_of_begun_members(folder: Path) -> list[Path]:
    """Return the files with the settings with which the training of the members has begun."""
    files = (each.parent.with_suffix(".yaml") for each in folder.glob("*/config.json"))
    return [file for file in files if file.is_file()]


def _remove_plans(folder: Path) -> None:
    """Remove the files of a run whose members have saved nothing, so that the command can be corrected."""
    if any(folder.glob("*/config.json")):
        return
    for path in (folder / ".lock", *folder.glob("*.yaml")):
        if path.name == ".lock" or path.stem.isdecimal():
            path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()


def _write_plans(plans: list[dict[str, Any]], out: Path, args: Namespace) -> list[list[str]]:
    """Write the settings of each member; return the arguments of the commands that train them."""
    commands: list[list[str]] = []
    for index, plan in enumerate(plans):
        folder = out / "members" / str(index)
        file = folder.with_suffix(".yaml")
        write_text(file, _as_yaml(plan))
        options = [f"--config={file}", f"--out={folder}", f"--device={args.device}"]
        options += ["--adapt"] if args.adapt or args.config is None else []
        options += ["--resume"] if args.resume else []
        commands.append([*options, *_origin(args, index)])
    return commands


def _as_yaml(document: dict[str, Any]) -> str:
    """Return JSON that is YAML, too, whose parser refuses or replaces some characters unless they are escaped."""
    text = json.dumps(document, ensure_ascii=False, indent=2) + "\n"
    return re.sub(
        "[\x7f-\x9f\u2028\u2029\ufffe\uffff]", lambda match: f"\\u{ord(match[0]):04x}", text
    )


def _stored_seeds(out: Path, index: int) -> tuple[int | None, int | None]:
    """Return the seed of a member and that of its dev pairs when an ensemble is resumed; None if they are unknown.

    Those of a member that is added follow from the first member.
    """
    try:
        plan = json.loads((out / "members" / f"{index}.yaml").read_text("utf-8"))
        return plan["training"]["seed"], plan["data"].get("dev_seed")
    except (OSError, ValueError, TypeError, KeyError, AttributeError):  # none, or it was edited
        seed, dev_seed = _stored_seeds(out, 0) if index else (None, None)
        return None if seed is None else seed + index, dev_seed


def _given_members(args: Namespace) -> list[str]:
    """Return the settings given for members; `member` of a settings file may contain anything."""
    given: Any = args.member or []
    if isinstance(given, list) and all(isinstance(text, str) for text in given):
        return given
    raise ConfigError(
        f"member takes a list of texts, such as [model.decoder=bahdanau], got {shortened(repr(given))}"
    )


def _plans(parser: Parser, arguments: Sequence[str], args: Namespace) -> list[dict[str, Any]]:
    """Return the settings of each member, by group: those of the command, its own, and its seed."""
    own = _given_members(args)
    count = len(own) if args.members is None else args.members
    if count < 1 or len(own) > count or args.jobs < 1:
        raise ConfigError(
            f"--members and --jobs must be at least 1, with at most one --member for each member, got "
            f"--members {count}, --jobs {args.jobs} and {len(own)} times --member"
        )
    if count > _MOST_MEMBERS:
        raise ConfigError(f"--members must be at most {_MOST_MEMBERS:,}, got {count:,}")
    plans, checked = list[dict[str, Any]](), set[str]()
    for text in [*own, *[""] * (count - len(own))]:
        options = text.split()
        for option in options:
            if not option.startswith(_GROUPS) or "=" not in option:
                raise ConfigError(
                    "--member takes settings of model and training, such as 'model.decoder=bahdanau "
                    f"training.learning_rate=0.002', got {option!r}"
                )
        given = parser.parse_args([*arguments, *(f"--{each}" for each in options)], defaults=False)
        groups = {name: dict(values) for name, values in settings(given).items()}
        has_own_seed = any(option.startswith("training.seed=") for option in options)
        _set_seeds(groups, len(plans), has_own_seed, args)
        config = from_dict(groups)
        if not (args.resume or text in checked):
            _check(config, args.init_from, Path(args.out))
            checked.add(text)
        if groups in plans:
            raise ConfigError(
                f"members {plans.index(groups)} and {len(plans)} have the same settings, with "
                f"training.seed {groups['training']['seed']}, and would be equal: change one of them"
            )
        plans.append(groups)
    if len({plan["model"].get("copy", False) for plan in plans}) > 1:
        raise ConfigError(
            "members of an ensemble need the same model.copy, which only some have here"
        )
    return plans


def _check(config: Config, init_from: str | None, out: Path) -> None:
    """Raise a ConfigError for settings that `regard train` would refuse, before any member is trained."""
    if init_from is not None:
        from regard.resume import starting_point

        config = starting_point(config, out, False, init_from).config
    config.check_groups()


def _set_seeds(groups: dict[str, Any], index: int, has_own_seed: bool, args: Namespace) -> None:
    """Add the seed of a member, unless it has its own, and that of the dev pairs, which all members share."""
    seed, dev_seed = _stored_seeds(Path(args.out), index) if args.resume else (None, None)
    if groups["data"].get("dev") is None and groups["data"].get("dev_seed") is None:
        groups["data"]["dev_seed"] = args.training.seed if seed is None else dev_seed
    if "seed" not in groups["training"] and seed is not None:
        groups["training"]["seed"] = seed
    elif not has_own_seed:
        groups["training"]["seed"] = args.training.seed + index


def _output_folder(out: Path, resume: bool, count: int) -> Path:
    if not resume:
        remedy = "choose another folder (--out), or continue its training (--resume)"
        return require_empty_folder(out, remedy)
    if out.exists() and not (out / "members").is_dir():
        return require_empty_folder(out, "it contains no members to resume: choose another folder")
    existing = sum(path.name.isdecimal() for path in (out / "members").glob("*/"))
    if existing > count:
        raise ConfigError(
            f"{out} has {existing} members, and cannot be resumed with {count}: give --members {existing}, "
            "or choose another folder (--out)"
        )
    return out


def _origin(args: Namespace, index: int) -> list[str]:
    """Return where a member takes its tokenizers from: the model that is given, or the first member."""
    for name in ("init_from", "tokenizers_from"):
        if args[name] is not None:
            return [f"--{name.replace('_', '-')}={args[name]}"]
    return [f"--tokenizers-from={Path(args.out) / 'members' / '0'}"] if index else []


def _run(commands: list[list[str]], jobs: int, first_description: Path) -> None:
    """Run `regard train` with each list of arguments, at most `jobs` at once.

    The first member determines the tokenizers, so the others wait for its description.
    """
    waiting = list(enumerate(commands))
    with _stopped_at_the_end() as running:
        while waiting or running:
            is_first = len(waiting) == len(commands)
            if waiting and len(running) < jobs and (is_first or first_description.exists()):
                index, arguments = waiting.pop(0)
                running[index] = _Member(index, arguments, jobs)
            for index, member in [*running.items()]:
                status = member.process.poll()
                if status is None:
                    continue
                running.pop(index).join()
                if status or not first_description.exists():
                    raise JobError(
                        f"member {index} {f'ended with status {status}' if status else 'saved no model'}, "
                        "and the others were stopped; its messages say why: correct the cause, and repeat "
                        "the command with --resume"
                    )
            time.sleep(_SECONDS_BETWEEN_CHECKS)


def stop_with_parent() -> None:
    """Let a member save its state and stop, as after SIGTERM, when the process that started it is killed."""
    parent = os.environ.get(_PARENT, "")

    def watch() -> None:
        while os.getppid() == int(parent):
            time.sleep(_SECONDS_BETWEEN_CHECKS)
        _thread.interrupt_main(signal.SIGTERM)

    if parent.isdecimal():
        threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def _stopped_at_the_end() -> Generator[dict[int, "_Member"]]:
    """Yield a mapping for running members; those that still run at the end save their state and stop."""
    running: dict[int, _Member] = {}
    try:
        yield running
    finally:
        for member in running.values():
            member.process.terminate()
        for member in running.values():
            member.process.wait()
            member.join()


class _Member:
    """A process that trains one member, and the thread that prints its lines after its number."""

    def __init__(self, index: int, arguments: list[str], jobs: int) -> None:
        threads = str(max(1, _processors() // jobs))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "regard", "train", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"OMP_NUM_THREADS": threads, **os.environ, _PARENT: str(os.getpid())},
            encoding="utf-8",
            errors="backslashreplace",
            start_new_session=True,  # Ctrl-C in the terminal reaches this process only, which stops it
        )
        self._thread = threading.Thread(target=_print, args=(index, self.process))
        self._thread.start()

    def join(self) -> None:
        """Wait until all lines are printed."""
        self._thread.join()


def _processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on macOS and Windows
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _print(index: int, process: "subprocess.Popen[str]") -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            print(f"[{index}] {line}", end="", file=sys.stderr, flush=True)

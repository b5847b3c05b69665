"""Argument parser with one-line errors that suggest the nearest option, and the settings options."""

import argparse
import contextlib
import re
import sys
from collections.abc import Collection, Generator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import (
    ActionConfigFile,  # pyright: ignore[reportPrivateImportUsage]
    ArgumentParser,
    Namespace,
    get_loader,
    set_loader,
    set_parsing_settings,
)

from regard.cli.help import HelpFormatter, value_name
from regard.config import GROUPS
from regard.errors import ConfigError, UsageError, nearest
from regard.lines import decode_lines
from regard.migrations import convert_config

set_parsing_settings(docstring_parse_attribute_docstrings=True)

_PATHS = ("FILE", "DIR", "OUT", "PAIRS")
"""Names of values that are paths."""

_LONGEST_VALUE = 100
"""Maximum number of characters of a value in a message."""

_MOST_VALUES = 1000
_DEEPEST = 10

_UNKNOWN_OPTION = re.compile(
    r"Group '(\S+)' does not accept option '([^']+)'|Option '([^']+)' is not accepted"
    r"|unrecognized arguments: (?:-- )?(\S+)"
)
_GROUP_AS_FILE = re.compile(r'Parser key "(\w+)": Unable to load config')
_MISSING = re.compile(r"arguments are required: (.*)")
_INVALID_VALUE = re.compile(
    r"""key "([^"]+)": (?:Expected a |Does not validate .*?Subtypes: \[)"""
    r"""(?:<class '(\w+)'>|(.*)).*(?:Got|Given) value: ?(.*)"""
)
_TOO_MANY_DIGITS = re.compile(r'key "([^"]+)": Exceeds the limit \((\d+) .* has (\d+) digits')
_load_yaml = get_loader("yaml")
_NEGATIVE_NUMBER = re.compile(r"-[\d.]")
_OTHER_BASE = re.compile(r".*:.*|[-+]?0[0-9_]+")
"""Numbers that YAML reads in base 60 (1:30 is 90) or in base 8 (010 is 8)."""
_NOT_SETTINGS = ("format", "regard", "metadata", "sha256", "facts")
"""What the config.json of a model folder contains besides the settings; it begins with the first two."""
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_TYPE_NAMES = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "a string"}


def _load_settings(text: str) -> Any:
    """Return the settings in a YAML text.

    Raises:
        yaml.YAMLError: the text is malformed, is nested too deeply, or has too many values once its
            aliases are expanded.
        ConfigError: a group of settings is not a mapping, or it is the config.json of an ensemble.
    """
    try:
        _check_size(text)
        _check_nodes(yaml.compose(text, Loader=yaml.SafeLoader), set())
        values = _load_yaml(text)
    except yaml.MarkedYAMLError as error:
        if error.problem_mark is None:
            raise
        line = error.problem_mark.line + 1
        raise yaml.YAMLError(f"line {line}: {_problem(error.problem or '')}") from None
    except ValueError as error:  # an integer with thousands of digits, or a date such as 2024-13-01
        raise yaml.YAMLError(str(error).partition(";")[0]) from None
    _require_mappings(values, text)
    if isinstance(values, dict) and {*_NOT_SETTINGS[:2]} <= values.keys():
        if not GROUPS.keys() & values.keys():
            raise ConfigError(
                "the config.json of an ensemble contains no settings: give that of a member, for example "
                "members/0/config.json"
            )
        values = convert_config(values) if values["format"] == 1 else values
        return {name: value for name, value in values.items() if name not in _NOT_SETTINGS}
    return values


def _problem(message: str) -> str:
    """Return a problem that PyYAML has found, in plain words if it is frequent."""
    if "'\\t'" in message:
        return "YAML does not allow a TAB here; use spaces"
    if "<stream end>" in message or "end of stream" in message:
        return "the file ends in the middle of a value"
    return f"not valid YAML ({message})"


def _check_size(text: str) -> None:
    """Raise an error for a text that is nested too deeply, or has too many values with its aliases expanded."""
    sizes, names, anchors = [0], list[str | None](), dict[str, int]()
    for event in yaml.parse(text):
        size = 0
        if isinstance(event, yaml.CollectionStartEvent):
            sizes.append(1)
            names.append(event.anchor)
        elif isinstance(event, yaml.CollectionEndEvent):
            size = anchors[names.pop() or ""] = sizes.pop()
        elif isinstance(event, yaml.ScalarEvent):
            size = anchors[event.anchor or ""] = 1
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in names:
                raise yaml.YAMLError(f"*{event.anchor} contains itself")
            size = anchors.get(event.anchor, 0)
        sizes[-1] += size
        if len(sizes) > _DEEPEST or sum(sizes) > _MOST_VALUES:
            raise yaml.YAMLError(
                f"settings may have at most {_MOST_VALUES:,} values and {_DEEPEST} levels of nesting"
            )


def _require_mappings(values: Any, text: str) -> None:
    """Raise an error for a group of settings that is no mapping, which jsonargparse may ignore."""
    if values is None and text.lstrip().startswith("#"):  # also the name of a file
        raise yaml.YAMLError("there is only a comment")
    if not isinstance(values, dict):
        return
    if "config" in values:
        raise yaml.YAMLError("config is not a setting: a file cannot include another")
    for name, value in values.items():
        if value == {} and name not in GROUPS:  # jsonargparse sees no setting in it
            raise yaml.YAMLError(f"there is no option {name}{nearest(name, GROUPS)}")
    for name in GROUPS:
        group = values.get(name)
        # None: a group without settings; a string: an option of jsonargparse, the name of a file
        if not isinstance(group, dict | str | None):
            raise ConfigError(f"{name} takes settings by name, got {group!r}")


def _check_nodes(node: yaml.Node | None, seen: set[str], prefix: str = "") -> None:
    """Raise a YAMLError for what YAML would silently misread: keys set twice, numbers in other bases.

    Args:
        node: a part of the document.
        seen: the keys so far with those that contain them: `a: {b: 1}` sets the same as `a.b: 1`.
        prefix: the keys that contain the node, each with a dot.
    """
    number = node.value if isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS else ""
    if _OTHER_BASE.fullmatch(number):
        raise yaml.YAMLError(f"{number} is read in base 60 or 8; write a decimal number")
    if not isinstance(node, yaml.CollectionNode):
        return
    for index, item in enumerate(node.value):
        if not isinstance(item, tuple):  # an item of a list
            _check_nodes(item, seen, f"{prefix}{index}.")
            continue
        key, value = item
        name = prefix + (key.value if isinstance(key, yaml.ScalarNode) else str(index))
        if name in seen:
            line = key.start_mark.line + 1
            raise yaml.YAMLError(f"{name} is set twice, the second time on line {line}")
        seen.add(name)
        _check_nodes(key, seen, f"{name}.")
        _check_nodes(value, seen, f"{name}.")


set_loader("yaml", _load_settings, (yaml.YAMLError,))


class Parser(ArgumentParser):
    """jsonargparse's parser with one-line errors that suggest the nearest option.

    Options cannot be abbreviated. Positional arguments may appear anywhere among the options.

    Args:
        common: options that `--help` lists; `--help-all` lists all options. If there are no common
            options, `--help` lists all of them.
    """

    def __init__(self, *args: Any, common: Collection[str] = (), **kwargs: Any) -> None:
        super().__init__(
            *args,
            allow_abbrev=False,
            formatter_class=HelpFormatter,
            print_config=None,
            **kwargs,
        )
        self._common = {"-h", "--help-all", *common} if common else None
        self._option_string_actions["-h"].help = "print this help and exit"
        if common:
            self.add_argument(
                "--help-all", action=_HelpAll, help="print the help with all options and exit"
            )
        # regard.cli.main reads it from the arguments
        self.add_argument(
            "--debug",
            action=Flag,
            help="print the traceback if an error occurs, and log what is not computed by a kernel",
        )

    def parse_args(self, args: Sequence[str], **kwargs: Any) -> Namespace:  # type: ignore[override]
        """Parse the arguments of a command."""
        values = super().parse_args(self._positional_last(args), **kwargs)
        for action in self._actions:
            if action.metavar in _PATHS and values.get(action.dest) == "":
                self.error(f"{self._as_typed(action.dest)} takes a path, got an empty string")
            value = values.get(action.dest)
            is_switch = action.nargs == 0 and action.const is True
            if is_switch and not isinstance(value, bool | None):  # in a settings file
                self.error(f"{action.dest} takes true or false, got {value!r}")
        return values

    def add_argument(self, *names: Any, **options: Any) -> Any:  # type: ignore[override]
        """Add an argument, which takes a text unless specified otherwise, also in a settings file."""
        if "action" not in options:
            options.setdefault("type", str)
        return super().add_argument(*names, **options)

    def format_help(self, *args: Any, **kwargs: Any) -> str:
        """Return the help with the common options, or with all options if none is marked as common."""
        for action in self._actions:
            if action.option_strings and action.nargs != 0:
                action.metavar = value_name(action)
        hidden: list[argparse.Action] = []
        if self._common is not None:
            options = [action for action in self._actions if action.option_strings]
            hidden = [action for action in options if not self._common & {*action.option_strings}]
        with _suppressed(hidden):
            return super().format_help(*args, **kwargs)

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Return the values of an option; refuse 1:30 as a number, which YAML reads as 90."""
        numbers = value_name(action) in ("N", "X")
        if numbers and any(re.fullmatch(r"[-+\d._]*:[-+\d._:]*", text) for text in arg_strings):
            name = self._as_typed(action.dest)
            self.error(f"{name} takes a decimal number, got {' '.join(arg_strings)}")
        return super()._get_values(action, arg_strings)

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print a message; unlike argparse's method, raise an OSError if that fails."""
        print(message, end="", file=file or sys.stderr)

    def print_all_help(self) -> None:
        """Print the help with all options."""
        self._common = None
        self.print_help()

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise the error as a sentence."""
        text = " ".join(message.split()).removeprefix("Problems parsing config: ")
        if match := _UNKNOWN_OPTION.search(text):
            name = ".".join(filter(None, match.groups())).split("=")[0]
            text = f"there is no option {name}{self._nearest(name)}"
            if match[4] and not name.startswith("-"):
                text = f"there is an argument too many: {match[4]}"
        elif match := _INVALID_VALUE.search(text):
            key, type_name, value = match[1], match[2] or match[3], match[4]
            literals = re.findall(r"'([^']*)'", type_name) if "Literal" in type_name else []
            choices = [item for item in dict.fromkeys(literals) if item not in ("NoneType", "str")]
            expected = _TYPE_NAMES.get(type_name, type_name)
            expected = f"one of {', '.join(choices)}" if choices else expected
            value = value if len(value) <= _LONGEST_VALUE else f"{value[:_LONGEST_VALUE]}…"
            text = (
                f"{key} takes {expected}, got {value or 'an empty string'}{nearest(value, choices)}"
            )
        elif (match := _GROUP_AS_FILE.search(text)) and match[1] in GROUPS:
            example = next(name for name in self._names() if name.startswith(f"--{match[1]}."))
            fault = re.search(r"line \d+: .*", text)
            text = f"--{match[1]} is a group of settings: give one of them, such as {example}"
            text += f", or a file of them that is valid ({fault[0]})" if fault else ""
        elif match := _TOO_MANY_DIGITS.search(text):
            text = (
                f"{match[1]} takes a number with at most {match[2]} digits, got one with {match[3]}"
            )
        elif match := _MISSING.search(text):
            text = f"missing: {', '.join(map(self._as_typed, match[1].split(', ')))}"
        elif text.startswith("Unexpected config:"):
            text = "--config takes a file of grouped settings, for example model: {attention: dot}"
        raise UsageError(f"{text}; see {self.prog} --help")

    def _names(self) -> list[str]:
        """Return the options, without jsonargparse's own for groups of settings."""
        names = [*self._option_string_actions]
        groups = {name.partition(".")[0] for name in names if "." in name}
        return [name for name in names if name not in groups]

    def _nearest(self, name: str) -> str:
        """Return a hint with the option that was probably meant, also if its group is missing."""
        for option in self._names():
            if f"--{option.rpartition('.')[2]}" == name:
                return f"; did you mean {option}?"
        return nearest(name, self._names())

    def _as_typed(self, name: str) -> str:
        """Return an argument as the user types it: the longest name of an option, or the metavar."""
        action = next(action for action in self._actions if action.dest == name)
        return max(action.option_strings, key=len, default=str(action.metavar or name))

    def options(self) -> dict[str, argparse.Action]:
        """Return the action of every option."""
        return self._option_string_actions

    def arguments(self) -> list[argparse.Action]:
        """Return every option and positional argument that is not hidden from the help."""
        return [action for action in self._actions if action.help != argparse.SUPPRESS]

    def sections(self) -> Sequence[Any]:
        """Return the groups of arguments, which are the sections of the help."""
        return self._action_groups

    def _positional_last(self, arguments: Sequence[str]) -> list[str]:
        """Move positional arguments to the end.

        Before Python 3.13 argparse does not find an optional positional argument after an option.
        """
        options: list[str] = []
        positional: list[str] = []
        remaining = iter(arguments)
        for argument in remaining:
            if argument == "--":
                positional += remaining
            elif _is_positional(argument):
                positional.append(argument)
            else:
                options.append(argument)
                action = self._option_string_actions.get(argument)
                if action is not None and action.nargs in (None, "?"):
                    value = next(remaining, None)
                    if value is not None and self._is_hyphenated(value):
                        # argparse mistakes `-1,2` or an ending, `-s`, for an option unless `=` joins it
                        options[-1] += f"={value}"
                    elif value is not None:
                        options.append(value)
        return [*options, *(["--", *positional] if positional else [])]

    def _is_hyphenated(self, value: str) -> bool:
        """Return whether the value of an option begins with a hyphen, and is no option."""
        return re.match("-[^-]", value) is not None and value not in self._option_string_actions


def _is_positional(argument: str) -> bool:
    """Return whether an argument is no option: a text such as `- Hola`, a number, or `-`."""
    if not argument.startswith("-") or argument == "-" or _NEGATIVE_NUMBER.match(argument):
        return True
    return " " in argument.partition("=")[0]


class Flag(argparse.Action):
    """An option that has no value and stores none."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:
        hidden = argparse.SUPPRESS
        super().__init__(option_strings, hidden, nargs=0, default=hidden, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Store nothing."""


class _SettingsFile(ActionConfigFile):
    """The option for a file of settings, by whose name an error in it begins."""

    def __call__(
        self, parser: Any, cfg: Any, values: Any, option_string: str | None = None
    ) -> None:
        """Read the file."""
        try:
            super().__call__(parser, cfg, values, option_string)
            known = {action.dest for action in parser._actions}
            for name in cfg.keys():  # noqa: SIM118 (a namespace)
                if name not in known:
                    parser.error(f"Option '{name}' is not accepted")
        except (ConfigError, UsageError) as error:
            separator = ", " if str(error).startswith("line ") else ": "
            raise type(error)(f"{values}{separator}{error}") from None


class _HelpAll(Flag):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        assert isinstance(parser, Parser)
        parser.print_all_help()
        parser.exit()


@contextlib.contextmanager
def _suppressed(actions: Sequence[argparse.Action]) -> Generator[None]:
    """Leave these actions out of the help."""
    texts = [action.help for action in actions]
    for action in actions:
        action.help = argparse.SUPPRESS
    try:
        yield
    finally:
        for action, text in zip(actions, texts, strict=True):
            action.help = text


_SECTIONS = {"source": "Tokenisation of the source", "target": "Tokenisation of the target"}
"""Titles of the groups that share a dataclass; others use the docstring of their dataclass."""

_ADAPTS = (
    "; without it, the pairs determine sizes, batches, schedule and optimiser, overriding the defaults "
    "below"
)

_FILE_SETTINGS = ("--data.train", "--data.dev", "--data.train_links")


def add_settings(parser: Parser, adapts: bool = False) -> None:
    """Add every setting as `--group.field_name`, and `--config` for a recipe or YAML file.

    `adapts` says that settings follow from the pairs without `--config`.
    """
    parser.add_argument(
        "--config",
        action=_SettingsFile,
        metavar="FILE",
        help="recipe (g2p, translation, …), or YAML or JSON file" + (_ADAPTS if adapts else ""),
    )
    actions = parser.options()
    for name, cls in GROUPS.items():
        parser.add_class_arguments(cls, name)
        # jsonargparse's option for a file with the settings of one group
        actions[f"--{name}"].help = argparse.SUPPRESS
    for group in parser.sections():
        names = {action.dest.split(".")[0] for action in group._group_actions}
        if len(names) == 1:
            group.title = _SECTIONS.get(names.pop(), group.title)
    for option in _FILE_SETTINGS:
        actions[option].metavar = "FILE"


def recipe_first(arguments: Sequence[str], default: Sequence[str] = ()) -> list[str]:
    """Move `--config` first, so that options override it, and replace a recipe's name with its file.

    Args:
        arguments: the arguments of a command.
        default: recipes to use without `--config`.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config", action="append", nargs="?", const="")
    found, rest = parser.parse_known_args(arguments)
    return [f"--config={find_recipe(name)}" for name in found.config or default] + rest


def find_recipe(name: str) -> Path:
    """Return the YAML file of a recipe, or the named file itself.

    Raises:
        ConfigError: neither a recipe nor a file has this name.
        DataError: the file is not UTF-8.
    """
    if Path(name).is_file():
        decode_lines(Path(name).read_bytes(), name)
        return Path(name)
    files = sorted((Path(__file__).parent.parent / "recipes").glob("*.yaml"))
    recipes = {path.stem: path for path in files}
    if name in recipes:
        return recipes[name]
    raise ConfigError(
        f"no recipe or file is named {name!r}{nearest(name, recipes)}; "
        f"recipes: {', '.join(recipes)}"
    )


def settings(arguments: Namespace) -> dict[str, Any]:
    """Return the groups of settings in parsed arguments, in the form that `config.from_dict` expects."""
    values = arguments.as_dict()
    return {name: values.get(name, {}) for name in GROUPS}

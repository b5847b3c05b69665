"""The command's argument parser: short errors that name the nearest option."""

import difflib
import itertools
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, Namespace, set_parsing_settings

from regard import config
from regard.errors import ConfigError

set_parsing_settings(docstring_parse_attribute_docstrings=True)

GROUPS: dict[str, type] = {
    "data": config.DataConfig,
    "source": config.TextConfig,
    "target": config.TextConfig,
    "model": config.ModelConfig,
    "training": config.TrainingConfig,
}
"""The groups of settings, each a dataclass."""

_UNKNOWN = re.compile(
    r"Group '(\S+)' does not accept option '([^']+)'|Option '([^']+)' is not accepted"
    r"|unrecognized arguments: (?:-- )?(\S+)"
)
_UNFIT = re.compile(
    r"""key "([^"]+)": (?:Expected a |Does not validate .*?Subtypes: \[)"""
    r"""(?:<class '(\w+)'>|(.*)).*(?:Got|Given) value: (.*)"""
)
_NEGATIVE = re.compile(r"-[\d.]")
_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}


class Parser(ArgumentParser):
    """jsonargparse's parser, with errors of a line that say what is nearest to a typo.

    Options are never abbreviated, and positional arguments may stand anywhere among them.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def parse_args(self, args: Sequence[str], **kwargs: Any) -> Namespace:  # type: ignore[override]
        """Parse the arguments of a verb."""
        return super().parse_args(self._words_last(args), **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print what is wrong on one line and leave with status 2."""
        text = " ".join(message.split())
        if match := _UNKNOWN.search(text):
            wrong = ".".join(filter(None, match.groups())).split("=")[0]
            text = f"there is no option {wrong}{nearest(wrong, list(self._option_string_actions))}"
        elif match := _UNFIT.search(text):
            key, kind, value = match[1], match[2] or match[3], match[4]
            choices = re.findall(r"'([^']*)'", kind) if "Literal" in kind else []
            choices = [each for each in dict.fromkeys(choices) if each not in ("NoneType", "str")]
            wanted = f"one of {', '.join(choices)}" if choices else _KINDS.get(kind, kind)
            text = f"{key} takes {wanted}, got {value}{nearest(value, choices)}"
        elif text.startswith("Unexpected config:"):
            text = "--config takes a file of settings by group, such as model: {attention: dot}"
        print(f"{self.prog}: {text}; see {self.prog} --help", file=sys.stderr)
        sys.exit(2)

    def _words_last(self, arguments: Sequence[str]) -> list[str]:
        """The same arguments, positional ones at the end.

        Before Python 3.13 argparse does not find an optional one that stands behind an option.
        """
        options: list[str] = []
        words: list[str] = []
        remaining = iter(arguments)
        for argument in remaining:
            if argument == "--":
                words += remaining
            elif not argument.startswith("-") or argument == "-":
                words.append(argument)
            else:
                options.append(argument)
                action = self._option_string_actions.get(argument)
                if action is not None and action.nargs != 0:
                    for value in itertools.islice(remaining, 1):
                        # argparse takes `-1,2` for an option unless it is tied to its own
                        options[-1:] = (
                            [f"{argument}={value}"] if _NEGATIVE.match(value) else [argument, value]
                        )
        return [*options, *(["--", *words] if words else [])]


def nearest(wrong: str, known: Sequence[str]) -> str:
    """A hint that names what was probably meant, or nothing."""
    bare = {name.lstrip("-"): name for name in known}
    found = difflib.get_close_matches(wrong.lstrip("-"), bare, n=1, cutoff=0.6)
    return f"; did you mean {bare[found[0]]}?" if found else ""


def add_settings(parser: Parser) -> None:
    """Add every setting as `--group.field_name`, and `--config` for a recipe or YAML file."""
    parser.add_argument(
        "--config", action="config", help="name of a recipe, or a YAML file of settings"
    )
    for name, cls in GROUPS.items():
        parser.add_class_arguments(cls, name)


def recipe_first(arguments: Sequence[str]) -> list[str]:
    """Put `--config` first, so that flags go over it, and a recipe's file for its name."""
    rest: list[str] = []
    first: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        name, separator, value = argument.partition("=")
        if name != "--config":
            rest.append(argument)
            continue
        value = value if separator else next(remaining, "")
        first += ["--config", str(find_recipe(value))]
    return first + rest


def find_recipe(name: str) -> Path:
    """The YAML file of a recipe's name, or the file itself.

    Raises:
        ConfigError: there is neither.
    """
    if Path(name).is_file():
        return Path(name)
    recipes = Path(__file__).parent.parent / "recipes"
    known = sorted(path.stem for path in recipes.glob("*.yaml"))
    if name in known:
        return recipes / f"{name}.yaml"
    raise ConfigError(
        f"no recipe or file is named {name!r}{nearest(name, known)}; recipes: {', '.join(known)}"
    )


def settings(arguments: Namespace) -> dict[str, Any]:
    """The groups of settings among parsed arguments, as `config.from_dict` takes them."""
    values = arguments.as_dict()
    return {name: values[name] for name in GROUPS}

"""`embodied-rl --print-completion SHELL`: a script that completes commands, options and their values, made by tyro."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import operator
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

import tyro

from embodied_rl import configs as recipes
from embodied_rl.cli import COMMANDS
from embodied_rl.cli.help import Option, options
from embodied_rl.cli.reference import CLASSES, FURTHER, named
from embodied_rl.config.train import KINDS, TrainConfig, selectable
from embodied_rl.errors import UserError, suggest

SHELLS = ("bash", "zsh", "fish")
_OF_ASSETS = ("install", "status", "verify", "remove")
_TEXT = 60
"""Characters of an option's text, which zsh and fish show beside it."""
_CHOSEN = ("policy", "algorithm", "scheduler")
"""Options of `train` that choose a kind; the options of every kind are completed."""


def script(words: list[str]) -> str:
    """The script for the shell that is named by `words`, which follow the flag. UserError for another one."""
    if len(words) != 1 or words[0] not in SHELLS:
        given = f"unknown shell '{words[0]}'.{suggest(words[0], SHELLS)}" if words else "name a shell."
        raise UserError(f"--print-completion: {given} There are {', '.join(SHELLS)}.")
    commands = _one_of({name: _command(name) for name in COMMANDS})
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        tyro.cli(commands, prog="embodied-rl", args=["--tyro-print-completion", words[0]])
    # Where the script has no word, bash shall offer files: positional arguments are mostly folders.
    return out.getvalue().replace("complete -F", "complete -o default -F")


def _command(name: str) -> type:
    """A dataclass with the options of a command, and a subcommand for each word that may come first."""
    if name == "train":
        rows = list(_train())
        return _options(name, rows, dict.fromkeys(recipes.BENCHMARKS, _options("benchmark", rows)))
    rows = _rows(named(CLASSES[name])) if name in CLASSES else []
    forms = {title.removeprefix(f"{name} "): _rows(named(of)) for title, of in FURTHER.get(name, {}).items()}
    rows += [row for form, more in forms.items() if not form.islower() for row in more]  # in place of the first word
    words = {form: _options(form, more) for form, more in forms.items() if form.islower()}
    return _options(name, rows, words | (dict.fromkeys(_OF_ASSETS, _options("action", [])) if name == "assets" else {}))


def _train() -> Iterator[Option]:
    for word in ("config", "resume", "from"):
        yield Option(word, "PATH", "", "")
    yield Option("recipe", "|".join(recipes.names()), "", "")
    yield Option("task", "NAME", "", "")
    for part in _CHOSEN:
        yield Option(part, "|".join(selectable(part)), "", "")
    for title, _, rows in options(TrainConfig()):
        if title not in KINDS:
            yield from rows
    for part, kinds in KINDS.items():
        for cls in kinds.values():
            yield from (dataclasses.replace(row, name=f"{part}.{row.name}") for row in _rows(cls()))


def _rows(source: Any) -> list[Option]:
    return [row for _, _, rows in options(source) for row in rows if not row.positional]


def _options(name: str, rows: Iterable[Option], words: Mapping[str, type] | None = None) -> type:
    flags = {f: row for row in rows for f in ([row.name] if row.value else [row.name, row.flag.rpartition("--")[2]])}
    fields: list[Any] = [("word", _one_of(words))] if words else []
    for number, (flag, row) in enumerate(flags.items()):  # a flag of several kinds is there once
        arg = tyro.conf.arg(name=flag, help=textwrap.shorten(row.text, _TEXT), prefix_name=False)
        kind, default = _kind(row.value)
        hint = Annotated[kind, tyro.conf.FlagCreatePairsOff, arg]
        fields.append((f"option_{number}", hint, dataclasses.field(default=default)))
    return dataclasses.make_dataclass(name, fields)


def _kind(value: str) -> tuple[Any, Any]:
    """The type whose values tyro completes, with some default: a switch, one of some words, or anything."""
    choices = value.split("|")
    if len(choices) > 1 and not any(choice.isupper() for choice in choices):
        return Literal[tuple(choices)], choices[0]
    return (str, "") if value else (bool, False)


def _one_of(types: Mapping[str, type]) -> Any:
    kinds = [
        Annotated[cls, tyro.conf.subcommand(name, description=COMMANDS.get(name, ""), prefix_name=False)]
        for name, cls in types.items()
    ]
    return functools.reduce(operator.or_, kinds)

"""Modules of users, which register envs and policies of their own: named by --import, by a run, or installed."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import sys
from collections.abc import Sequence

from embodied_rl.errors import UserError

GROUP = "embodied_rl.plugins"
"""Entry points of this group, in the metadata of an installed package, name modules that register something."""

_named: list[str] = []
_installed_are_loaded: list[bool] = []


def import_modules(names: Sequence[str], source: str = "--import") -> None:
    """Import the modules, which may lie in the working folder; those that are imported already stay as they are.

    source: who names them, for the message.

    Raises:
        UserError: one of them fails to import, or its program has ended the interpreter (`SystemExit`).
    """
    for name in names:
        if name in _named:
            continue
        folder = os.getcwd()
        if folder not in sys.path and "" not in sys.path:
            sys.path.append(folder)  # last: a folder `sim` of the user's must not stand for another package
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:
            raise UserError(
                f"{source}: module '{name}' fails to import: {_said(error)}{_where(name, error)}"
            ) from error
        _named.append(name)


def imported() -> tuple[str, ...]:
    """The modules that were named so far, in their order."""
    return tuple(_named)


def import_words() -> list[str]:
    """The same as words of a command line, which other processes and records need."""
    return [word for name in _named for word in ("--import", name)]


def load_installed() -> None:
    """Import what installed packages offer, once; one that fails is told on stderr, and the others go on."""
    if _installed_are_loaded:
        return
    _installed_are_loaded.append(True)
    for entry in importlib.metadata.entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:  # noqa: BLE001 - of a package that this command may not need
            print(f"embodied-rl: plugin {entry.value} fails to import: {_said(error)}", file=sys.stderr)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _where(name: str, error: BaseException) -> str:
    """What to do where the module itself is not there."""
    if not isinstance(error, ModuleNotFoundError) or not f"{name}.".startswith(f"{error.name}."):
        return ""
    return ". Call the command in the folder that holds it, install it, or set PYTHONPATH."

"""The one exception that the command line turns into a clear line and exit code 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class UserError(Exception):
    """Bad input: the message is one line that says what is wrong and what to do about it.

    Args:
        message: The line.
        choices: What there is to choose from, where it is too much for the line: each is printed on its own.
    """

    def __init__(self, message: str, choices: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.choices = tuple(choices)

    def __str__(self) -> str:
        return "\n".join((super().__str__(), *self.choices))


def refuse_twice(names: Sequence[str], what: str) -> None:
    """UserError where one of `names`, each of a `what`, comes twice."""
    for number, name in enumerate(names):
        if name in names[:number]:
            raise UserError(f"{what} '{name}' is named twice: name it once.")


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"` for the known name closest to `name`, or '' where none is close."""
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f" Did you mean '{close[0]}'?" if close else ""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"` for the known name closest to `name`, else the list of known names."""
    choices = sorted(known)
    return did_you_mean(name, choices) or (f" Known: {', '.join(choices)}." if choices else "")

"""The one exception that the command line turns into a clear line and exit code 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input: the message is one line that says what is wrong and what to do about it."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return `" Did you mean 'x'?"` for the known name closest to `name`, else the list of known names."""
    choices = sorted(known)
    close = difflib.get_close_matches(name, choices, n=1)
    if close:
        return f" Did you mean '{close[0]}'?"
    return f" Known: {', '.join(choices)}." if choices else ""

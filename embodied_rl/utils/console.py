"""A console for long jobs, whose reader may leave before they end."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterable

from rich.console import Console

from embodied_rl.utils.ranks import ProcessRank

_TOLD = "EMBODIED_RL_TOLD"
"""Environment variable with what was told already; processes that are started inherit it."""


def tell_once(line: str) -> None:
    """Print a line on stderr, once for this process, those that it starts from now on, and the ranks beside it."""
    told = os.environ.get(_TOLD, "")
    if line not in told and ProcessRank.from_env().is_main:
        os.environ[_TOLD] = told + line
        print(line, file=sys.stderr)


class LastingConsole(Console):
    """Where rich ends a program whose output nobody reads any more, this one says no more and lets it go on.

    Ctrl-C on `train ... | tee log` ends `tee` too, while the run still has to finish its step and to save.
    """

    def say(self, text: str) -> None:
        """Print a line as it is: not wrapped, and `[..]` in paths is no markup."""
        self.print(text, soft_wrap=True, markup=False, highlight=False)

    def facts(self, lines: Iterable[str]) -> None:
        """Say 'name  value' lines; a terminal's are wrapped at words, below their values."""
        for line in lines:
            self.say(self._wrapped(line) if self.is_terminal and len(line) > self.width else line)

    def _wrapped(self, line: str) -> str:
        named = re.match(r"\s*\S+\s{2,}|\s*", line)
        below = " " * len(named[0] if named else "")
        return textwrap.fill(line, self.width, subsequent_indent=below, break_long_words=False, break_on_hyphens=False)

    def on_broken_pipe(self) -> None:
        """What is written from now on, by anybody, goes nowhere; errors too, if they went the same way."""
        self.quiet = True
        nowhere, out, errors = os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno(), sys.stderr.fileno()
        for stream in (out, errors) if os.path.sameopenfile(out, errors) else (out,):
            os.dup2(nowhere, stream)
        os.close(nowhere)

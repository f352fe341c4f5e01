"""A console for long jobs, whose reader may leave before they end."""

from __future__ import annotations

import os
import sys

from rich.console import Console


class LastingConsole(Console):
    """Where rich ends a program whose output nobody reads any more, this one says no more and lets it go on.

    Ctrl-C on `train ... | tee log` ends `tee` too, while the run still has to finish its step and to save.
    """

    def say(self, text: str) -> None:
        """Print a line as it is: not wrapped, and `[..]` in paths is no markup."""
        self.print(text, soft_wrap=True, markup=False, highlight=False)

    def on_broken_pipe(self) -> None:
        """What is written from now on, by anybody, goes nowhere; errors too, if they went the same way."""
        self.quiet = True
        nowhere, out, errors = os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno(), sys.stderr.fileno()
        for stream in (out, errors) if os.path.sameopenfile(out, errors) else (out,):
            os.dup2(nowhere, stream)
        os.close(nowhere)

"""Who watches a training run."""

from __future__ import annotations

from typing import Protocol

from embodied_rl.evaluation.evaluate import EvalReport
from embodied_rl.types import EpisodeResult


class Observer(Protocol):
    """Who watches a run: progress on the screen, metrics in files. It never changes what the run computes."""

    def phase(self, name: str, iteration: int, episodes: int) -> None:
        """'evaluate', 'rollout' or 'update' begins; episodes: how many it will finish, about (0: none)."""
        ...

    def episode(self, result: EpisodeResult) -> None:
        """An episode of this phase ended."""
        ...

    def metrics(self, iteration: int, values: dict[str, float]) -> None:
        """`iteration` updates are done; the last one gave these values."""
        ...

    def evaluation(self, iteration: int, report: EvalReport) -> None:
        """The policy after `iteration` updates scored this."""
        ...

    def log(self, text: str) -> None:
        """Something the user should read."""
        ...

    def position(self) -> int:
        """Where the metrics file ends now (bytes)."""
        ...

    def begin(self, position: int) -> None:
        """All is ready and the run begins; forget what was recorded after `position`: it is computed again."""
        ...


class SilentObserver:
    """An `Observer` that does nothing: rank 0 alone writes and speaks."""

    def phase(self, name: str, iteration: int, episodes: int) -> None:
        """Not shown."""

    def episode(self, result: EpisodeResult) -> None:
        """Not counted."""

    def metrics(self, iteration: int, values: dict[str, float]) -> None:
        """Not recorded."""

    def evaluation(self, iteration: int, report: EvalReport) -> None:
        """Not recorded."""

    def log(self, text: str) -> None:
        """Not shown."""

    def position(self) -> int:
        """There is no file."""
        return 0

    def begin(self, position: int) -> None:
        """There is nothing to forget."""

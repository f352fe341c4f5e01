"""Which of a run's processes this one is: what accelerate, torchrun and our own launcher say in the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessRank:
    """This process is `rank` of `size`, and `local_rank` of `local_size` on its machine.

    Example:
        >>> ProcessRank.from_env().is_main
        True
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launched: bool = False
    """A launcher started it, perhaps as the only one."""

    @classmethod
    def from_env(cls) -> ProcessRank:
        """What RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE say; without them the only process."""
        rank, size = _number("RANK", 0), _number("WORLD_SIZE", 1)
        return cls(rank, size, _number("LOCAL_RANK", rank), _number("LOCAL_WORLD_SIZE", size), "RANK" in os.environ)

    @property
    def is_main(self) -> bool:
        """Whether it writes the run's files and speaks to the user."""
        return self.rank == 0

    def share(self, total: int) -> int:
        """This rank's part of `total` things, the first ranks having one more where they do not divide."""
        return (total + self.size - 1 - self.rank) // self.size

    def local_share(self, cores: int) -> int:
        """This process's part of its machine's cores, at least one."""
        return max(1, cores // self.local_size)


def _number(name: str, default: int) -> int:
    return int(os.environ.get(name, default))

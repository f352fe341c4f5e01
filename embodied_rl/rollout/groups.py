"""What becomes of groups of episodes: accepted, filtered out or broken, and the batch that they belong to."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from embodied_rl.rollout.observation_pool import Trajectory
from embodied_rl.types import EpisodeResult


class GroupStatus(Enum):
    """Whether a group is trained on; OPEN until that is known. BROKEN: an episode of it breaks the simulator."""

    OPEN = 0
    ACCEPTED = 1
    FILTERED = 2
    BROKEN = 3


@dataclass(slots=True)
class Group:
    """A group under way.

    task, init_state: of its episodes. stopped: episodes that were given up because another one breaks the simulator.
    broken: episodes that were given up because they break the simulator.
    """

    index: int
    size: int
    task: str = ""
    init_state: int = 0
    members: list[Trajectory] = field(default_factory=list)
    status: GroupStatus = GroupStatus.OPEN
    stopped: int = 0
    broken: int = 0

    @property
    def finished(self) -> bool:
        """Whether no episode of it runs or will run."""
        return len(self.members) + self.stopped + self.broken == self.size


@dataclass(frozen=True, slots=True)
class GroupReport:
    """What became of a finished group, as ranks tell each other: its episodes, how many were given up or broke."""

    index: int
    results: list[EpisodeResult]
    stopped: int
    broken: int
    status: GroupStatus


@dataclass(slots=True)
class BatchEnd:
    """The end of a batch: all its groups in order. num_wanted: how many accepted ones it was to have.

    info: the sampler's metrics.
    """

    version: int
    groups: list[Group]
    num_wanted: int
    info: dict[str, float] = field(default_factory=dict)

    @property
    def num_stopped(self) -> int:
        """Episodes that were given up because another one of their group breaks the simulator."""
        return sum(group.stopped for group in self.groups)

    @property
    def num_broken(self) -> int:
        """Groups that were left out because an episode breaks the simulator."""
        return sum(group.status is GroupStatus.BROKEN for group in self.groups)

    @property
    def results(self) -> list[EpisodeResult]:
        """Of the finished episodes; those of groups that were left out depend on timing and do not count."""
        return [
            member.result for group in self.groups if group.status is not GroupStatus.BROKEN for member in group.members
        ]

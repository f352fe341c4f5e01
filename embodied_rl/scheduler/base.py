"""What a training loop needs of a scheduler, and what a scheduler needs of the learner and of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from embodied_rl.algorithms.base import OnPolicyAlgorithm
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.distributed.collectives import Collectives
from embodied_rl.learner.types import TrainablePolicy
from embodied_rl.policy import Policy
from embodied_rl.types import EpisodeResult, RolloutBatch
from embodied_rl.utils.threads import CoreBudget
from embodied_rl.vec_env import VecEnv

WorkerFactory = Callable[[], tuple[VecEnv, Policy]]
"""Opens the envs and the policy, with the run's starting weights, of a rollout worker on another machine; importable
there."""


class Scheduler(Protocol):
    """Runs rollout and learner in turn or side by side: batches come out, weights go in.

    Example:
        >>> for batch in scheduler.batches(0, iterations):
        ...     learner.update(batch)
        ...     scheduler.publish(learner.version)
    """

    def batches(self, start: int, stop: int) -> Iterator[RolloutBatch]:
        """Yield the batches of iterations start, ..., stop - 1; `publish` must follow each."""
        ...

    def publish(self, version: int) -> None:
        """The learner's weights are now those after `version` updates."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """A `with` block in which simulator and policy are free for something else."""
        ...

    def sampler_state(self) -> dict[str, Any]:
        """The position in the stream of episodes after the batches yielded so far."""
        ...

    def close(self) -> None:
        """Stop what runs in the background."""
        ...


class StreamingLearner(Protocol):
    """A learner that can begin an update with single groups (`embodied_rl.learner.learner.Learner`)."""

    @property
    def policy(self) -> TrainablePolicy:
        """The policy that learns."""
        ...

    @property
    def algorithm(self) -> OnPolicyAlgorithm:
        """Says which groups the rollout gathers."""
        ...

    @property
    def config(self) -> LearnerConfig:
        """Says how an update cuts a batch."""
        ...

    @property
    def collectives(self) -> Collectives:
        """The ranks that learn together; groups are dealt over them."""
        ...

    @property
    def needs_all_frames(self) -> bool:
        """Whether the policy or the reward model looks at the frames of every row, also of those that others learn."""
        ...

    @property
    def needs_final_images(self) -> bool:
        """Whether the reward model looks at what an episode shows after its last step."""
        ...

    @property
    def ess(self) -> float:
        """Effective sample size ratio of one-update-old rows, in (0, 1]."""
        ...

    @property
    def cores(self) -> CoreBudget:
        """Budget of the CPU cores; the learner is busy in it while it works."""
        ...

    def accumulate(self, group: RolloutBatch) -> None:
        """Begin the next update with one group of its batch."""
        ...


def _ignore(result: EpisodeResult) -> None:
    """Default of `Callbacks.on_episode`."""


def _go_on() -> None:
    """Default of `Callbacks.check_interrupt`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Callbacks:
    """What a scheduler calls, in the thread that iterates over its batches."""

    on_episode: Callable[[EpisodeResult], None] = _ignore
    """An episode of the rollout ended."""
    check_interrupt: Callable[[], None] = _go_on
    """Called while waiting and before each decision; what it raises ends the wait."""
    log: Callable[[str], None] = print
    """A line that the user should read."""
    remote: WorkerFactory | None = None
    """Opens the envs and the policy of a worker on another machine; `RayConfig` needs it."""

"""The far side of `ray_scheduler`: worlds and a replica of the policy that run episodes on another machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import nn

from embodied_rl.policy import Policy
from embodied_rl.rollout.attempts import Cause
from embodied_rl.rollout.drive import Driver
from embodied_rl.rollout.stages import StageClock
from embodied_rl.rollout.store import gather
from embodied_rl.scheduler.weights import Bucket, install
from embodied_rl.types import EpisodeSpec, RolloutBatch
from embodied_rl.vec_env import VecEnv

WorkerFactory = Callable[[], tuple[VecEnv, Policy]]
"""Opens a worker's worlds and its policy with the run's starting weights; sent to other machines, so importable there.
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """Episodes that ended, a batch each; `lost` ones did not, and why. version: of the policy that acted."""

    version: int
    episodes: list[RolloutBatch]
    lost: list[tuple[EpisodeSpec, Cause]]


class RolloutWorker:
    """Calls are carried out one after the other, in the order in which they were sent."""

    def __init__(self, factory: WorkerFactory, final_value: bool) -> None:
        env, policy = factory()
        assert isinstance(policy, nn.Module)
        self._policy = policy
        self._driver = Driver(env, policy, StageClock(), record=True, final_value=final_value)
        self._slots = env.num_envs
        self._version = -1

    def slots(self) -> int:
        """How many episodes run side by side."""
        return self._slots

    def install(self, version: int, *buckets: Bucket) -> None:
        """From now on version `version` acts."""
        install(self._policy, buckets)
        self._version = version

    def run(self, specs: Sequence[EpisodeSpec]) -> Ran:
        """Run these episodes."""
        waiting = deque(specs)
        lost: list[tuple[EpisodeSpec, Cause]] = []
        ended = []

        def give_up(spec: EpisodeSpec, cause: Cause) -> None:
            lost.append((spec, cause))

        for recording in self._driver.run(lambda: waiting.popleft() if waiting else None, give_up, "sample"):
            ended.append(gather([recording], self._version))
            self._driver.store.drop(recording.rows)
        return Ran(self._version, ended, lost)

"""The far side of `ray_scheduler`: worlds and a replica of the policy that run episodes on another machine."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from torch import nn

from embodied_rl.policy import Policy
from embodied_rl.rollout.env_runner import Driver
from embodied_rl.rollout.observation_pool import gather
from embodied_rl.rollout.retries import Cause
from embodied_rl.scheduler.ray.weight_sync import Bucket, install
from embodied_rl.types import EpisodeSpec, RolloutBatch
from embodied_rl.utils.timers import StageClock
from embodied_rl.vec_env import VecEnv

WorkerFactory = Callable[[], tuple[VecEnv, Policy]]
"""Opens a worker's worlds and its policy with the run's starting weights; sent to other machines, so importable there.
"""
TURN_SECONDS = 0.1
"""A call lasts about as long at most, so that new weights and episodes need not wait until one ends."""


@dataclass(frozen=True, slots=True)
class Ran:
    """Episodes that ended, a batch each, whose rows say which version acted; `lost` ones did not, and why; `skipped`
    ones never began."""

    episodes: list[RolloutBatch] = field(default_factory=list)
    lost: list[tuple[EpisodeSpec, Cause]] = field(default_factory=list)
    skipped: list[EpisodeSpec] = field(default_factory=list)


class RolloutWorker:
    """Calls are carried out one after the other, in the order in which they were sent."""

    def __init__(self, factory: WorkerFactory, final_value: bool) -> None:
        env, policy = factory()
        assert isinstance(policy, nn.Module)
        self._policy = policy
        self._driver = Driver(env, policy, StageClock(), record=True, final_value=final_value)
        self._slots = env.num_envs
        self._waiting: deque[EpisodeSpec] = deque()

    def slots(self) -> int:
        """How many episodes run side by side."""
        return self._slots

    def install(self, version: int, *buckets: Bucket) -> None:
        """From now on version `version` acts, in the middle of episodes too."""
        install(self._policy, buckets)
        self._driver.version = version

    def advance(self, specs: Sequence[EpisodeSpec], unwanted: Collection[int] = ()) -> Ran:
        """Take these episodes in, go on with all until some have ended or a turn is over, and return those.

        unwanted: episodes that need not begin any more.
        """
        ran = Ran(skipped=[spec for spec in (*self._waiting, *specs) if spec.episode_id in unwanted])
        self._waiting = deque(spec for spec in (*self._waiting, *specs) if spec.episode_id not in unwanted)
        until = time.monotonic() + TURN_SECONDS
        while not ran.episodes and not ran.lost:
            ended = self._driver.round(self._next, lambda *lost: ran.lost.append(lost), "sample")
            for recording in ended or []:
                ran.episodes.append(gather([recording], self._driver.version or 0))
                self._driver.store.drop(recording.rows)
            if ended is None or time.monotonic() > until:
                break
        return ran

    def _next(self) -> EpisodeSpec | None:
        return self._waiting.popleft() if self._waiting else None

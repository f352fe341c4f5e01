"""A rollout worker on another machine: envs and a replica of the policy that run the episodes they are sent."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from torch import nn

from embodied_rl.rollout.env_runner import EnvRunner
from embodied_rl.rollout.observation_pool import gather
from embodied_rl.rollout.retries import FailureCause
from embodied_rl.scheduler.base import WorkerFactory
from embodied_rl.scheduler.ray.weight_sync import Bucket, apply_deltas
from embodied_rl.types import EpisodeSpec, RolloutBatch
from embodied_rl.utils.profiler import Profiler

TURN_SECONDS = 0.1
"""About the longest call, so that new weights and episodes need not wait until an episode ends."""


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What a call to a worker brings back.

    episodes: those that ended, a batch each, whose rows say which version acted. failed: runs that were lost, and why.
    skipped: episodes that never began.
    """

    episodes: list[RolloutBatch] = field(default_factory=list)
    failed: list[tuple[EpisodeSpec, FailureCause]] = field(default_factory=list)
    skipped: list[EpisodeSpec] = field(default_factory=list)


class RolloutWorker:
    """The Ray actor. Calls are carried out one after the other, in the order in which they were sent.

    final_value, final_images: as of `EnvRunner`.
    """

    def __init__(self, factory: WorkerFactory, final_value: bool, final_images: bool = False) -> None:
        env, policy = factory()
        assert isinstance(policy, nn.Module)
        self._policy = policy
        self._driver = EnvRunner(
            env, policy, Profiler(), record=True, final_value=final_value, final_images=final_images
        )
        self._num_envs = env.num_envs
        self._waiting: deque[EpisodeSpec] = deque()

    def num_envs(self) -> int:
        """Number of envs; answers once the worker is open."""
        return self._num_envs

    def load_weights(self, version: int, *buckets: Bucket) -> None:
        """From now on version `version` acts, in the middle of episodes too."""
        apply_deltas(self._policy, buckets)
        self._driver.version = version

    def advance(self, specs: Sequence[EpisodeSpec], unwanted: Collection[int] = ()) -> TurnResult:
        """Queue `specs`, run until an episode ended or TURN_SECONDS are over, and return what ended.

        unwanted: ids of episodes that need not begin any more.
        """
        ran = TurnResult(skipped=[spec for spec in (*self._waiting, *specs) if spec.episode_id in unwanted])
        self._waiting = deque(spec for spec in (*self._waiting, *specs) if spec.episode_id not in unwanted)
        until = time.monotonic() + TURN_SECONDS
        while not ran.episodes and not ran.failed:
            ended = self._driver.step(self._next, lambda *lost: ran.failed.append(lost), "sample")
            for recording in ended or []:
                # The batch has one number, but its rows say themselves which version acted on each.
                ran.episodes.append(gather([recording], self._driver.version or 0))
                self._driver.store.release(recording.steps)
            if ended is None or time.monotonic() > until:
                break
        return ran

    def _next(self) -> EpisodeSpec | None:
        return self._waiting.popleft() if self._waiting else None

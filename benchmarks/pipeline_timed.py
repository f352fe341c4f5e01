"""A simulator, a policy and a learner that only wait: stage costs of published set-ups, played in real time.

Everything else is real: sampler, engine, scheduler, threads. A stage occupies its device for as long as its cost says;
work on one device excludes other work there, as kernels of one GPU do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from embodied_rl.autotune.costs import Costs
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.off_policy import stale_rows
from embodied_rl.policy import ActMode, PolicyTraits
from embodied_rl.rng import DecisionRng, philox
from embodied_rl.types import ActOutput, Array, ChunkResult, EpisodeSpec, EvalOutput, Observation, RolloutBatch
from embodied_rl.utils.threads import CoreBudget
from embodied_rl.vec_env import EnvInfo

HORIZON = 20
MINIBATCH = 2
"""Groups of a minibatch; an optimiser step costs nothing in these profiles."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Stage costs of a set-up, where they come from, and how many worlds it has.

    Where the simulator's device has one server, it simulates all worlds of a call together; else a world takes a core.
    """

    name: str
    source: str
    worlds: int
    costs: Costs

    @property
    def cores(self) -> int:
        """Cores that worlds step on; 0 if a device steps them together."""
        servers = self.costs.servers_of(self.costs.simulate)
        return servers if servers > 1 else 0


@lru_cache(maxsize=1 << 16)
def length(spec: EpisodeSpec) -> int:
    """Decisions of an episode: between 40 and 100 % of the horizon."""
    return int(philox(spec.seed, 1).integers(int(0.4 * HORIZON), HORIZON + 1))


class Devices:
    """Where stages wait; work on one device is done one after the other, first come, first served.

    As on a GPU with a queue of kernels, work that waits begins when the work before it ends, however late its thread
    wakes up to hear of it. speed: how many times faster than real the costs are played.
    """

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self._lock = threading.Lock()
        self._free_at: dict[str, float] = {}

    def play(self, device: str, seconds: float) -> None:
        """Occupy `device` for `seconds` / speed."""
        with self._lock:
            end = max(time.perf_counter(), self._free_at.get(device, 0.0)) + seconds / self.speed
            self._free_at[device] = end
        time.sleep(max(0.0, end - time.perf_counter()))

    def spend(self, seconds: float) -> None:
        """Wait without occupying anything: a CPU core of one's own."""
        time.sleep(seconds / self.speed)


class TimedEnv:
    """Episodes of `length(spec)` decisions.

    parallel: cores that one call uses (a simulator that steps its worlds together, with a barrier).
    """

    def __init__(self, profile: Profile, devices: Devices, parallel: int) -> None:
        self.num_envs = profile.worlds
        self.info = EnvInfo(
            backend="benchmark",
            suite="timed",
            simulator=profile.name,
            renderer="none",
            cameras=("front",),
            image_shape=(2, 2),
            proprio_dim=1,
            action_dim=1,
            action_low=(-1.0,),
            action_high=(1.0,),
            control_hz=20.0,
            max_episode_steps=HORIZON,
        )
        self._profile = profile
        self._devices = devices
        self._parallel = parallel
        self._left = np.zeros(profile.worlds, np.int64)
        self._success = np.zeros(profile.worlds, np.bool_)

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        for env_id, spec in zip(env_ids, episodes, strict=True):
            self._left[env_id] = length(spec)
            self._success[env_id] = philox(spec.seed, 2).random() < 0.5

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        cost, count = self._profile.costs.simulate, len(env_ids)
        if self._profile.cores:
            self._devices.spend(cost.of(count) / min(self._parallel, count))
        else:
            self._devices.play(cost.device, cost.of(count))
        index = list(env_ids)
        self._left[index] -= 1
        over = self._left[index] == 0
        won = over & self._success[index]
        return ChunkResult.from_numpy(
            reward=won[:, None].astype(np.float32),
            terminated=won,
            truncated=over & ~won,
            success=won,
            steps_taken=np.ones(count, np.int32),
            failed=np.zeros(count, np.bool_),
        )

    def observe(self, env_ids: Sequence[int], out: Observation) -> None:
        out.instruction[: len(env_ids)] = ["wait"] * len(env_ids)

    def new_observation(self, rows: int) -> Observation:
        return self.info.new_observation(rows)

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        raise NotImplementedError("nothing is drawn")

    def close(self) -> None:
        pass


class TimedPolicy(torch.nn.Module):
    """Takes its time to act."""

    chunk_len = action_dim = terms_per_step = 1
    with_value = False
    traits = PolicyTraits()

    def __init__(self, profile: Profile, devices: Devices) -> None:
        super().__init__()
        self._profile = profile
        self._devices = devices

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        count = len(obs.instruction)
        cost = self._profile.costs.act
        self._devices.play(cost.device, cost.of(count))
        return ActOutput(torch.zeros(count, 1, 1), torch.zeros(count, 1), None, {})

    def evaluate(
        self, images: torch.Tensor, proprio: torch.Tensor, instruction: list[str], replay: dict[str, torch.Tensor]
    ) -> EvalOutput:
        raise AssertionError("a timed learner does not evaluate")

    def sft_loss(
        self,
        images: torch.Tensor,
        proprio: torch.Tensor,
        instruction: list[str],
        actions: torch.Tensor,
        drop_action_history: torch.Tensor | None = None,
    ) -> torch.Tensor:
        raise AssertionError("a timed learner does not imitate")


class TimedLearner:
    """Takes its time over rows, `microbatch` of them after the other, and over stale ones once more (`correct`)."""

    def __init__(self, profile: Profile, devices: Devices, microbatch: int) -> None:
        costs = profile.costs
        self._cost, self._call, self._again = costs.learn, costs.learn_call, costs.evaluated
        self._microbatch = microbatch
        self._devices = devices
        self._done = 0
        self.policy: Any = None
        self.algorithm: Any = None
        self.config = LearnerConfig(minibatch_size=None, minibatch_groups=MINIBATCH)
        self.ess = 1.0
        self.cores = CoreBudget()

    @property
    def whole(self) -> TimedLearner:
        """The same, fed with whole batches."""
        self.config = LearnerConfig()
        return self

    def correct(self, group: RolloutBatch) -> None:
        """Stale rows of a group that is about to be learned from."""
        for count in self._cut(len(stale_rows(group))):
            self._devices.play(self._again.device, self._again.of(count))

    def accumulate(self, group: RolloutBatch) -> None:
        """Rows that came early."""
        self._learn(len(group))
        self._done += len(group)

    def update(self, batch: RolloutBatch) -> None:
        """The rest, and the step."""
        self._learn(len(batch) - self._done)
        self._done = 0
        self._devices.play(self._cost.device, self._cost.fixed)

    def _learn(self, rows: int) -> None:
        for count in self._cut(rows):
            self._devices.play(self._cost.device, self._call + self._cost.row * count)

    def _cut(self, rows: int) -> list[int]:
        return [min(self._microbatch, rows - first) for first in range(0, rows, self._microbatch)]

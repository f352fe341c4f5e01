"""Stage times of published set-ups, and a simulator, a policy and a learner that only wait as long.

Everything else is real: sampler, engine, scheduler, threads. Work on one device excludes other work there, as kernels
of one GPU do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from embodied_rl.algorithms.base import OnPolicyAlgorithm
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.distributed.collectives import SINGLE_PROCESS
from embodied_rl.policy import ActMode, PolicyTraits
from embodied_rl.rng import DecisionRng, philox
from embodied_rl.scheduler.config import PipelinedConfig
from embodied_rl.types import ActOutput, Array, ChunkResult, EpisodeSpec, EvalOutput, Observation, RolloutBatch
from embodied_rl.utils.threads import CoreBudget
from embodied_rl.vec_env import EnvInfo

HORIZON = 20
MINIBATCH = 2
"""Groups of a minibatch."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a stage on its device: `fixed` a call and `row` a row (a decision)."""

    device: str
    row: float
    fixed: float = 0.0

    def of(self, rows: int) -> float:
        """Seconds of one call."""
        return self.fixed + self.row * rows


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A set-up: where its stage times come from, and the env groups and micro-batch that suit each scheduler there.

    Args:
        source: 'Measured' is what a source says; 'Derived' is ours, with the arithmetic.
        evaluate: a forward pass over a row of an older policy, before it is trained on.
        cores: CPU cores that simulate, one world each; 0 if a device steps all worlds of a call together.
        microbatches: rows of a micro-batch by scheduler, where they are not 32.
    """

    name: str
    source: str
    num_envs: int
    simulate: Cost
    act: Cost
    learn: Cost
    evaluate: Cost
    stream: PipelinedConfig
    stale: PipelinedConfig
    cores: int = 0
    microbatches: dict[str, int] = field(default_factory=dict)

    def serial_seconds(self, rows: float) -> float:
        """Of so many decisions, if every stage uses its whole device and nothing overlaps."""
        return sum(self._busy(rows))

    def bound_seconds(self, rows: float, stale: float = 0.0) -> float:
        """What the busiest device needs for them, at the best batch size; stale: rows evaluated again."""
        busy: dict[str, float] = {}
        costs = (self.simulate, self.act, self.learn, self.evaluate)
        for cost, seconds in zip(costs, (*self._busy(rows), self.evaluate.row * stale), strict=True):
            busy[cost.device] = busy.get(cost.device, 0.0) + seconds
        return max(busy.values())

    def _busy(self, rows: float) -> tuple[float, float, float]:
        simulate = self.simulate.of(self.num_envs) / self.num_envs / (self.cores or 1)
        return simulate * rows, self.act.row * rows, self.learn.row * rows


PROFILES = (
    Profile(
        name="openvla_maniskill",
        source="Measured: RL4VLA (arXiv 2505.19789, its README), OpenVLA with PPO in ManiSkill, 64 worlds: 1.5 M "
        "env-steps in about 42 h on one A100, so 101 ms an env-step, which is a decision. Derived: 4.1 TFLOP a forward "
        "pass (7.5 B parameters, 285 tokens) at half of 312 TFLOP/s are 26 ms to act, twice that to learn (one epoch, "
        "LoRA), and 23 ms are left to simulate, half of it taken as fixed a call. Laid out disaggregated: simulator, "
        "policy and learner on a GPU each. A forward pass over a stale row: 26 ms, by the policy's GPU.",
        num_envs=64,
        simulate=Cost("gpu0", row=0.0115, fixed=64 * 0.0115),
        act=Cost("gpu1", row=0.026),
        learn=Cost("gpu2", row=0.052),
        evaluate=Cost("gpu1", row=0.026),
        stream=PipelinedConfig(env_groups=2),
        stale=PipelinedConfig(env_groups=1, mode="async", max_lookahead=16),
    ),
    Profile(
        name="oft_libero",
        source="Measured: RLinf issue 417, OpenVLA-OFT with GRPO on LIBERO-Spatial, 6 H100: a rollout takes about 27 "
        "min, 130 iterations 5 days, so 28 min for the rest. With its example configuration (64 worlds, 16 x 512 "
        "steps, chunks of 8) a rollout has 65,536 decisions: 24.7 ms of rollout and 26 ms of update a decision. "
        "Derived: 8.4 TFLOP a forward pass (7.5 B parameters, 560 tokens) at 400 TFLOP/s on 6 GPUs are 3.5 ms to act; "
        "21.2 ms are left to simulate (339 ms on one of 16 cores). Laid out colocated: policy and learner share the "
        "GPUs, CPU cores simulate. A forward pass over a stale row: 3.5 ms, as to act, which is one forward pass.",
        num_envs=64,
        simulate=Cost("cpu", row=16 * 0.0212),
        act=Cost("gpu", row=0.0035),
        learn=Cost("gpu", row=0.026),
        evaluate=Cost("gpu", row=0.0035),
        stream=PipelinedConfig(env_groups=32),
        stale=PipelinedConfig(env_groups=24, mode="async"),
        cores=16,
        microbatches={"async": 16},
    ),
    Profile(
        name="pi0_libero",
        source="Measured: 32.9 ms for pi0 with two views on an RTX 4090 (dexmal/realtime-vla); 10 s of simulation in "
        "500 LIBERO steps (openvla issue 276), so 100 ms on one core for a chunk of 5. Derived: an update of one epoch "
        "with a frozen prefix costs about as much as acting; a forward pass over a stale row a third of that, 11 ms. "
        "Laid out colocated on one GPU with 4 CPU cores.",
        num_envs=32,
        simulate=Cost("cpu", row=0.1),
        act=Cost("gpu", row=0.0329),
        learn=Cost("gpu", row=0.0329),
        evaluate=Cost("gpu", row=0.0329 / 3),
        stream=PipelinedConfig(env_groups=8),
        stale=PipelinedConfig(env_groups=8, mode="async"),
        cores=4,
    ),
)


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


class TimedEnv:
    """Episodes of `length(spec)` decisions. cores: those that one call steps its worlds on, with a barrier."""

    def __init__(self, profile: Profile, devices: Devices, cores: int) -> None:
        self.num_envs = profile.num_envs
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
        self._profile, self._devices, self._cores = profile, devices, cores
        self._left = np.zeros(self.num_envs, np.int64)
        self._success = np.zeros(self.num_envs, np.bool_)

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        for env_id, spec in zip(env_ids, episodes, strict=True):
            self._left[env_id] = length(spec)
            self._success[env_id] = philox(spec.seed, 2).random() < 0.5

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        cost, count, index = self._profile.simulate, len(env_ids), list(env_ids)
        if self._profile.cores:
            time.sleep(cost.of(count) / min(self._cores, count) / self._devices.speed)
        else:
            self._devices.play(cost.device, cost.of(count))
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
    """Takes its time to act, and to evaluate stale rows. It has nothing to learn, so a replica is the same one."""

    chunk_len = action_dim = terms_per_step = 1
    with_value = False
    traits = PolicyTraits()

    def __init__(self, profile: Profile, devices: Devices) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self._profile, self._devices = profile, devices

    def __deepcopy__(self, memo: Any) -> TimedPolicy:
        return self

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        count = len(obs.instruction)
        self._devices.play(self._profile.act.device, self._profile.act.of(count))
        return ActOutput(torch.zeros(count, 1, 1), torch.zeros(count, 1), None, {})

    def evaluate(self, images: torch.Tensor, *_: Any, **__: Any) -> EvalOutput:
        self._devices.play(self._profile.evaluate.device, self._profile.evaluate.of(len(images)))
        return EvalOutput(torch.zeros(len(images), 1), torch.zeros(len(images), 1), None)

    def sft_loss(self, *_: Any, **__: Any) -> torch.Tensor:
        raise AssertionError("a timed policy does not imitate")


class TimedLearner:
    """Takes its time over rows, `microbatch` of them after the other; an optimiser step costs nothing.

    streams: learns from groups as they come.
    """

    def __init__(
        self, profile: Profile, devices: Devices, algorithm: OnPolicyAlgorithm, microbatch: int, *, streams: bool
    ) -> None:
        self.policy: Any = TimedPolicy(profile, devices)
        self.algorithm = algorithm
        self.config = LearnerConfig(minibatch_size=None, minibatch_groups=MINIBATCH, microbatch_size=microbatch)
        self.collectives, self.needs_all_frames, self.needs_final_images = SINGLE_PROCESS, False, False
        self.ess = 1.0
        self.cores = CoreBudget()
        self._cost, self._devices, self._microbatch = profile.learn, devices, microbatch
        self._streams = streams
        self._done = 0

    def accumulate(self, group: RolloutBatch) -> None:
        """Rows that came early, unless the learner waits for whole batches."""
        if not self._streams:
            return
        self._learn(len(group))
        self._done += len(group)

    def update(self, batch: RolloutBatch) -> None:
        """The rest."""
        self._learn(len(batch) - self._done)
        self._done = 0

    def _learn(self, rows: int) -> None:
        for first in range(0, rows, self._microbatch):
            self._devices.play(self._cost.device, self._cost.of(min(self._microbatch, rows - first)))

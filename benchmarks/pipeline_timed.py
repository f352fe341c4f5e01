"""A simulator, a policy and a learner that only wait: stage costs of published set-ups, played in real time.

Everything else is real: sampler, engine, scheduler, threads. A stage occupies its device for as long as its cost says;
work on one device excludes other work there, as kernels of one GPU do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from embodied_rl.policy import ActMode
from embodied_rl.rng import DecisionRng, philox
from embodied_rl.types import ActOutput, Array, ChunkResult, EpisodeSpec, EvalOutput, Observation, RolloutBatch
from embodied_rl.vec_env import EnvInfo

MICROBATCH = 32


@dataclass(frozen=True, slots=True)
class Cost:
    """Time of a stage: `fixed` s a call and `row` s a row, on `device`."""

    device: str
    row: float
    fixed: float = 0.0

    def of(self, rows: int) -> float:
        """Seconds for one call with that many rows."""
        return self.fixed + self.row * rows


@dataclass(frozen=True, slots=True)
class Profile:
    """Stage costs of a set-up, where they come from, and how it is laid out.

    simulate: a chunk with its frame. With `cores` it is the time on one CPU core, and that many are there; without, one
    device simulates all worlds of a call together. learn: forward and backward of a row; fixed: the optimiser's step.
    """

    name: str
    source: str
    worlds: int
    simulate: Cost
    act: Cost
    learn: Cost
    cores: int = 0

    def bound(self, rows: float, updates: float) -> float:
        """Seconds that the busiest device needs for that many decisions, all trained on, at the best batch size."""
        calls = rows / self.worlds
        spread = max(self.cores, 1)
        busy: dict[str, float] = {}
        for cost, count, share in (
            (self.simulate, calls, spread), (self.act, calls, 1), (self.learn, updates, 1)
        ):  # fmt: skip
            busy[cost.device] = busy.get(cost.device, 0.0) + (cost.row * rows + cost.fixed * count) / share
        return max(busy.values())

    def total(self, rows: float, updates: float) -> float:
        """Seconds if nothing overlaps."""
        calls = rows / self.worlds
        simulate = (self.simulate.row * rows + self.simulate.fixed * calls) / max(self.cores, 1)
        act = self.act.row * rows + self.act.fixed * calls
        return simulate + act + self.learn.row * rows + self.learn.fixed * updates


class Devices:
    """Where stages wait; work on one device is done one after the other, first come, first served.

    speed: how many times faster than real the costs are played.
    """

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self._lock = threading.Lock()
        self._waiting: dict[str, list[threading.Event]] = {}

    def play(self, device: str, seconds: float) -> None:
        """Occupy `device` for `seconds` / speed."""
        turn = threading.Event()
        with self._lock:
            queue = self._waiting.setdefault(device, [])
            queue.append(turn)
            if len(queue) == 1:
                turn.set()
        turn.wait()
        time.sleep(seconds / self.speed)
        with self._lock:
            queue.pop(0)
            if queue:
                queue[0].set()

    def spend(self, seconds: float) -> None:
        """Wait without occupying anything: a CPU core of one's own."""
        time.sleep(seconds / self.speed)


class TimedEnv:
    """Episodes of `decisions` decisions, drawn per episode between 40 and 100 % of `horizon`.

    parallel: cores that one call uses (a simulator that steps its worlds together, with a barrier).
    """

    def __init__(self, profile: Profile, devices: Devices, horizon: int, parallel: int) -> None:
        self.num_envs = profile.worlds
        self.info = EnvInfo("timed", profile.name, "none", ("front",), 2, 1, 1, 20.0)
        self._profile = profile
        self._devices = devices
        self._horizon = horizon
        self._parallel = parallel
        self._left = np.zeros(profile.worlds, np.int64)
        self._success = np.zeros(profile.worlds, np.bool_)

    def reset(self, slots: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        for slot, spec in zip(slots, episodes, strict=True):
            draw = philox(spec.seed, 1)
            self._left[slot] = draw.integers(int(0.4 * self._horizon), self._horizon + 1)
            self._success[slot] = draw.random() < 0.5

    def step(self, slots: Sequence[int], actions: Array) -> ChunkResult:
        cost, count = self._profile.simulate, len(slots)
        if self._profile.cores:
            self._devices.spend(cost.of(count) / min(self._parallel, count))
        else:
            self._devices.play(cost.device, cost.of(count))
        index = list(slots)
        self._left[index] -= 1
        over = self._left[index] == 0
        won = over & self._success[index]
        reward = won[:, None].astype(np.float32)
        steps = np.ones(count, np.int32)
        return ChunkResult(reward, won, over & ~won, won, steps, np.zeros(count, np.bool_))

    def observe(self, slots: Sequence[int], out: Observation) -> None:
        out.instruction[: len(slots)] = ["wait"] * len(slots)

    def new_observation(self, rows: int) -> Observation:
        return Observation(np.zeros((rows, 1, 2, 2, 3), np.uint8), np.zeros((rows, 1), np.float32), [""] * rows)

    def close(self) -> None:
        pass


class TimedPolicy(torch.nn.Module):
    """Takes its time to act."""

    chunk_len = action_dim = terms_per_step = 1

    def __init__(self, profile: Profile, devices: Devices) -> None:
        super().__init__()
        self._profile = profile
        self._devices = devices

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        count = len(obs.instruction)
        self._devices.play(self._profile.act.device, self._profile.act.of(count))
        return ActOutput(np.zeros((count, 1, 1), np.float32), torch.zeros(count, 1), None, {})

    def evaluate(
        self, images: torch.Tensor, proprio: torch.Tensor, instruction: list[str], replay: dict[str, torch.Tensor]
    ) -> EvalOutput:
        raise AssertionError("a timed learner does not evaluate")

    def sft_loss(
        self, images: torch.Tensor, proprio: torch.Tensor, instruction: list[str], actions: torch.Tensor,
        blind: torch.Tensor | None = None,
    ) -> torch.Tensor:
        raise AssertionError("a timed learner does not imitate")


class TimedLearner:
    """Takes its time over rows, microbatch by microbatch."""

    def __init__(self, profile: Profile, devices: Devices) -> None:
        self._cost = profile.learn
        self._devices = devices
        self._done = 0

    def accumulate(self, group: RolloutBatch) -> None:
        """Rows that came early."""
        self._play(len(group))
        self._done += len(group)

    def update(self, batch: RolloutBatch) -> None:
        """The rest, and the step."""
        self._play(len(batch) - self._done)
        self._done = 0
        self._devices.play(self._cost.device, self._cost.fixed)

    def _play(self, rows: int) -> None:
        while rows > 0:
            self._devices.play(self._cost.device, self._cost.row * min(rows, MICROBATCH))
            rows -= MICROBATCH

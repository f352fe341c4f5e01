"""Action chunks in time: which action belongs to which control step, and what a policy is asked to continue.

A chunk says when its observation was taken; its k-th action belongs to the k-th control step from there. What inference
took is thus past when the chunk arrives: those actions are dropped, not executed late. Steps in which the arm stood
still are not past: it is where the observation saw it, and the chunk goes on from there.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from embodied_rl.real_robot.core.pace import JUDGED, USUAL, Pace, steps_in_time

_STILL = 512
"""Steps of a standstill that are remembered."""


class Overlap(StrEnum):
    """What is done where an older chunk has an action for the same step."""

    NEWEST = "newest"
    """The newer chunk's, from its arrival on. For real-time chunking, whose chunks agree by construction."""
    BLEND = "blend"
    """From the older chunk's to the newer one's, linearly over `blend_steps`."""
    ENSEMBLE = "ensemble"
    """The mean of all chunks with weights exp(-decay i), i = 0 for the oldest: T. Z. Zhao et al., "Learning
    Fine-Grained Bimanual Manipulation with Low-Cost Hardware" (ACT), algorithm 2."""


@dataclass(frozen=True)
class ExecutorConfig:
    """How chunks become actions.

    Args:
        chunk_len: Actions of a chunk, K.
        action_dim: Numbers of an action, A.
        period_ns: Length of a control step, ns.
        overlap: What overlapping chunks do.
        blend_steps: Steps of a blend.
        decay: The ensemble's, per chunk.
        discrete: Indices of actions that are never averaged, such as an open-or-close gripper: the newest chunk's.
        execution_horizon: Steps after which the policy is asked again, s in real-time chunking.
        delays: Answers whose delay is remembered; four of five came no later than what is expected of the next.
    """

    chunk_len: int
    action_dim: int
    period_ns: int
    overlap: Overlap = Overlap.BLEND
    blend_steps: int = 3
    decay: float = 0.01
    discrete: tuple[int, ...] = ()
    execution_horizon: int = 1
    delays: int = 10

    def __post_init__(self) -> None:
        positive = (
            self.chunk_len,
            self.action_dim,
            self.period_ns,
            self.blend_steps,
            self.execution_horizon,
            self.delays,
        )
        if min(positive) < 1 or self.execution_horizon > self.chunk_len or self.decay < 0:
            raise ValueError(f"{self}: counts are positive, execution_horizon <= chunk_len, decay >= 0")
        if any(not 0 <= index < self.action_dim for index in self.discrete):
            raise ValueError(f"discrete {self.discrete} are no indices of {self.action_dim} numbers")


@dataclass(frozen=True)
class Chunk:
    """What a policy decided from one observation.

    Args:
        observed_ns: When the observation was taken.
        actions: [K, A].
        policy: Its version, for the record.
    """

    observed_ns: int
    actions: np.ndarray
    policy: str = ""


@dataclass(frozen=True)
class Receipt:
    """What became of a chunk.

    Args:
        accepted: Whether it is used.
        reason: Why not.
        delay_steps: Control steps from its observation to the first in which it can act.
        in_time: Whether it would be used by an arm that moves; one that stood still waits for any chunk.
    """

    accepted: bool
    reason: str
    delay_steps: int
    in_time: bool = True


@dataclass(frozen=True)
class StepAction:
    """The action of a step [A], and how much each chunk has in it: (observed_ns, index in the chunk, weight)."""

    step: int
    values: np.ndarray
    parts: tuple[tuple[int, int, float], ...]


@dataclass(frozen=True)
class PrefixRequest:
    """What a policy is asked to continue, for real-time chunking.

    Args:
        observed_ns: The observation that the answer starts at.
        previous: Planned actions from that step on, [K, A]; zeros where nothing is planned.
        planned: How many of them are planned.
        frozen: How many will have been executed before the answer can arrive, d. A flow policy must reproduce them; a
            policy that takes a prefix (training-time conditioning) is given `previous[:frozen]` as it is.
        weights: How strongly each action guides the sampling [K]: 1, then falling, then 0. K. Black et al., "Real-Time
            Execution of Action Chunking Flow Policies" (2025), equation 5.
    """

    observed_ns: int
    previous: np.ndarray
    planned: int
    frozen: int
    weights: np.ndarray

    @property
    def message(self) -> dict[str, Any]:
        """What a request to the policy server needs besides the observation; {} where nothing is planned.

        `weights` are those that the server makes of it.
        """
        if not self.planned:
            return {}
        return {
            "prev_action_chunk": self.previous[: self.planned].astype(np.float32),
            "inference_delay": self.frozen,
            "prefix_attention_horizon": min(self.planned, self.horizon),
        }

    @property
    def horizon(self) -> int:
        """From which action on the chunk is free."""
        return int(np.count_nonzero(self.weights))


def prefix_weights(chunk_len: int, frozen: int, execution_horizon: int) -> np.ndarray:
    """The soft mask of real-time chunking, equation 5.

    Args:
        chunk_len: H.
        frozen: d, the inference delay in steps.
        execution_horizon: s; what lies in the last s steps is free.

    Returns:
        W [H]: 1 for i < d; c (e^c - 1) / (e - 1) with c = (H - s - i) / (H - s - d + 1) for d <= i < H - s; else 0.
    """
    index, overlap = np.arange(chunk_len), chunk_len - execution_horizon
    c = (overlap - index) / max(overlap - frozen + 1, 1)
    soft = np.where(index < overlap, c * np.expm1(c) / np.expm1(1.0), 0.0)
    return np.where(index < frozen, 1.0, soft)


class ChunkExecutor:
    """Turns chunks into one action per control step.

    Args:
        config: Shapes, period and overlap.
        start_ns: The time of step 0.

    Example:
        >>> executor = ChunkExecutor(ExecutorConfig(8, 7, period_ns=50_000_000), start_ns=now)
        >>> if executor.due(now):
        ...     ask(executor.request(observation.stamp_ns))
        >>> executor.add(Chunk(observation.stamp_ns, actions), arrived_ns)
        >>> executor.action(now)  # None: nothing is planned for this step, so hold
    """

    def __init__(self, config: ExecutorConfig, start_ns: int) -> None:
        self.config, self._start_ns = config, start_ns
        self._chunks: list[tuple[Chunk, int, int]] = []  # with first step and first step to act in, oldest first
        self._delays: deque[int] = deque(maxlen=config.delays)
        self._first_delay: int | None = None
        self._answers: deque[tuple[range, str]] = deque(maxlen=JUDGED)  # steps in time, and why it is not used
        self._still: deque[int] = deque(maxlen=_STILL)
        self._begun: int | None = None
        self._newest_ns: int | None = None
        """When the observation of the last used chunk was taken: an older one stays unused, also after `clear`."""
        self._asked: int | None = None

    def step_of(self, time_ns: int) -> int:
        """The control step nearest to a time."""
        return (time_ns - self._start_ns + self.config.period_ns // 2) // self.config.period_ns

    @property
    def delay_steps(self) -> int:
        """The delay to expect of the next answer, used or not: what four of the last five stayed below.

        The first answer may be slow for reasons of its own: it counts until there is another, for a horizon at most.
        """
        if not self._delays:
            return min(self._first_delay or 0, self.config.execution_horizon)
        return sorted(self._delays)[math.ceil(USUAL * len(self._delays)) - 1]

    @property
    def pace(self) -> Pace:
        """Whether the last answers came in time for an arm that moves, whatever this one does."""
        return Pace.of(list(self._answers))

    def begin(self, now_ns: int, *, still: bool) -> None:
        """Note that the control step of `now_ns` has begun: what comes from now on acts from the next one on.

        Args:
            now_ns: The time of a control tick; there may be several in a step.
            still: Whether the arm stands still and no action is executed. A step is still where all its ticks are.
        """
        step = self.step_of(now_ns)
        if still and step != self._begun:
            self._still.append(step)
        elif not still and self._still and self._still[-1] == step:
            self._still.pop()
        self._begun = step

    def clear(self) -> None:
        """Forget all chunks: the arm is somewhere else now (a human had it, or it held)."""
        self._chunks.clear()
        self._asked = None

    def due(self, now_ns: int) -> bool:
        """Whether the policy should be asked: `execution_horizon` steps after the last request, or never asked."""
        return self._asked is None or self.step_of(now_ns) - self._asked >= self.config.execution_horizon

    def request(self, observed_ns: int) -> PrefixRequest:
        """Note that the policy is asked about an observation.

        Args:
            observed_ns: When it was taken.

        Returns:
            What is planned from there, and how much of it will have been executed when the answer comes.
        """
        config, observed = self.config, self.step_of(observed_ns)
        self._asked = observed
        first = self._first(observed, observed if self._begun is None else self._begun + 1)
        previous, planned = np.zeros((config.chunk_len, config.action_dim)), 0
        for index in range(config.chunk_len):
            action = self._at(first + index)
            if action is None:
                break
            previous[index], planned = action.values, index + 1
        frozen = min(self.delay_steps, planned)
        free = max(config.execution_horizon, config.chunk_len - planned)
        return PrefixRequest(observed_ns, previous, planned, frozen, prefix_weights(config.chunk_len, frozen, free))

    def add(self, chunk: Chunk, now_ns: int) -> Receipt:
        """Take a chunk that arrives at `now_ns`; one that can't be used changes nothing that is planned.

        Returns:
            Whether it is used. Not: wrong shape, a number that is not finite, an observation from the future or older
            than that of a chunk in use, or all its steps are past.
        """
        observed, begins = self.step_of(chunk.observed_ns), self.step_of(now_ns)
        broken = self._broken(chunk, begins - observed)
        if begins == self._begun:
            begins += 1
        delay, in_time = begins - observed, steps_in_time(observed, begins, self.config.chunk_len)
        late = "" if in_time else f"all its steps are past: it came {delay} steps after its observation"
        first = self._first(observed, begins)
        reason = broken or ("" if first + self.config.chunk_len > begins else late)
        if not reason:
            self._newest_ns = chunk.observed_ns
            self._chunks.append((chunk, first, begins))
            self._chunks = [kept for kept in self._chunks if kept[1] + self.config.chunk_len > begins]
        self._judge(in_time, delay, broken, late)
        return Receipt(not reason, reason, delay, not (broken or late))

    def _first(self, observed: int, begins: int) -> int:
        """The step of a chunk's first action: steps of a standstill since its observation are not past."""
        return observed + sum(observed <= step < begins for step in self._still)

    def _judge(self, in_time: range, delay: int, broken: str, late: str) -> None:
        """Note how late an answer was, for what is expected of the next and for the check before arming."""
        if self._first_delay is None:
            self._first_delay = delay
            return
        self._answers.append((in_time, broken or late))
        if not broken:
            self._delays.append(delay)

    def action(self, now_ns: int) -> StepAction | None:
        """The action of the step of `now_ns`; None where no chunk reaches it."""
        return self._at(self.step_of(now_ns))

    def _broken(self, chunk: Chunk, delay: int) -> str:
        """Why a chunk cannot be used, however early it came."""
        shape = (self.config.chunk_len, self.config.action_dim)
        if chunk.actions.shape != shape:
            return f"actions {chunk.actions.shape} instead of {shape}"
        if not np.isfinite(chunk.actions).all():
            return "an action is not finite"
        if delay < 0:
            return "its observation lies in the future"
        if self._newest_ns is not None and chunk.observed_ns <= self._newest_ns:
            return "a newer observation's chunk is in use"
        return ""

    def _at(self, step: int) -> StepAction | None:
        """What the chunks that reach `step` make of it together."""
        reaching = [
            (chunk, step - first, begins)
            for chunk, first, begins in self._chunks
            if 0 <= step - first < len(chunk.actions)
        ]
        if not reaching:
            return None
        weights = self._weights(step, [begins for _, _, begins in reaching])
        rows = np.array([chunk.actions[index] for chunk, index, _ in reaching], np.float64)
        values, discrete = weights @ rows, list(self.config.discrete)
        values[discrete] = rows[-1][discrete]
        parts = [(chunk.observed_ns, index, float(w)) for (chunk, index, _), w in zip(reaching, weights, strict=True)]
        return StepAction(step, values, tuple(part for part in parts if part[2] > 0))

    def _weights(self, step: int, begins: list[int]) -> np.ndarray:
        """Weights of chunks, oldest first, that sum to 1; `begins`: the first step in which each can act."""
        count = len(begins)
        if self.config.overlap is Overlap.ENSEMBLE:
            weights = np.exp(-self.config.decay * np.arange(count))
            return weights / weights.sum()
        weights = np.zeros(count)
        left = 1.0
        for place in range(count - 1, 0, -1):
            share = 1.0
            if self.config.overlap is Overlap.BLEND:
                share = min(max((step - begins[place] + 1) / (self.config.blend_steps + 1), 0.0), 1.0)
            elif step < begins[place]:
                share = 0.0
            weights[place], left = left * share, left * (1 - share)
        weights[0] = left
        return weights

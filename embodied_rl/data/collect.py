"""Run a scripted expert in parallel processes and store what it did as demonstrations.

The data should show how to recover from errors (Laskey et al. 2017, "DART: Noise injection for robust imitation
learning"). Here the simulator is now and then pushed off course for a few steps, and follows the expert again until the
next push: the label is always the expert's own action, and a chunk of labels without a push in it is a chunk that was
really executed. Noise in every step would make each label of a chunk depend on noise that the policy cannot see.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from embodied_rl.data import video, writer
from embodied_rl.data.layout import ENDS_IN_SUCCESS, DatasetSpec, Episode
from embodied_rl.errors import UserError
from embodied_rl.rng import EpisodeStream, philox
from embodied_rl.types import Array, EpisodeSpec
from embodied_rl.vec_env import VecEnv

_PREVIEW_PIXELS = 256
_PUSH_STEPS = (3, 9)  # length of a push in control steps, the end excluded
_PUSH_SIZE = (0.3, 1.2)  # size of a push, in units of the largest action
_FIRST_PUSH = 0.8  # share of the episodes that begin with one
_FIRST_STEPS = 16
_FIRST_SIZE = (0.5, 1.5)


class Expert(Protocol):
    """A scripted policy for one episode: it may keep state between calls, so every episode gets a new one."""

    def act(self) -> Array:
        """float32 [A] within the simulator's bounds, from its present state."""
        ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """One planned episode; `key` numbers it, `index` counts the attempts at its task."""

    key: int
    index: int
    task: str
    init_state: int
    seed: int


@dataclass(frozen=True, slots=True)
class Bench:
    """What a worker needs: the simulator with one env, and an expert for the episode that is in env 0 now.

    expert: from the episode's task and seed, at its present state.
    """

    env: VecEnv
    expert: Callable[[str, int], Expert]


@dataclass(frozen=True, slots=True)
class Job:
    """The part of a collection that every attempt shares.

    dart_noise_rate: chance that a push begins, a control step. preview: folder for one watchable video a task, or None.
    keep_failures: store failed attempts too; every episode then says whether it ends in success. Where tasks report no
    success, none does.
    """

    partial: Path
    spec: DatasetSpec
    dart_noise_rate: float
    preview: Path | None
    keep_failures: bool = False


def plan(tasks: Mapping[str, Sequence[int]], per_task: int, seed: int) -> list[Attempt]:
    """`per_task` attempts at each task (name -> its initial states), states in turn; every attempt has its own seed."""
    attempts = []
    for number, (task, states) in enumerate(tasks.items()):
        for index in range(per_task):
            draw = int(philox(seed, number, index).integers(2**62))
            attempts.append(Attempt(len(attempts), index, task, states[index % len(states)], draw))
    return attempts


def states_used(attempts: Sequence[Attempt]) -> dict[str, list[int]]:
    """The initial states that the attempts start from, by task."""
    names = dict.fromkeys(attempt.task for attempt in attempts)
    return {name: sorted({a.init_state for a in attempts if a.task == name}) for name in names}


class Pushes:
    """Pushes of the first 3 dimensions of an action (the end effector's motion), each a constant for a few steps.

    Most episodes begin with a longer one in which the expert has no say, so that where the hand is tells nothing about
    where the object is.
    """

    def __init__(self, rate: float, draws: np.random.Generator) -> None:
        self._rate, self._draws = rate, draws
        self._left, self._push = 0, np.zeros(3)
        self._first = 0
        if rate > 0 and draws.random() < _FIRST_PUSH:
            self._first = int(draws.integers(_FIRST_STEPS))
            self._push = self._draw(_FIRST_SIZE)

    def apply(self, action: Array) -> Array:
        """What to execute instead of `action` float32 [A] in [-1, 1]; the same one where there is no push."""
        arm = min(3, len(action) - 1)
        pushed = action.copy()
        if self._first > 0:
            self._first -= 1
            pushed[:arm] = self._push[:arm]
            return np.clip(pushed, -1.0, 1.0)
        if self._left == 0 and self._draws.random() < self._rate:
            self._left = int(self._draws.integers(*_PUSH_STEPS))
            self._push = self._draw(_PUSH_SIZE)
        if self._left > 0:
            self._left -= 1
            pushed[:arm] += self._push[:arm].astype(np.float32)
        return np.clip(pushed, -1.0, 1.0)

    def _draw(self, size: tuple[float, float]) -> Array:
        direction = self._draws.standard_normal(3)
        return direction / np.linalg.norm(direction) * self._draws.uniform(*size)


def record(bench: Bench, attempt: Attempt, dart_noise_rate: float) -> tuple[Episode, str]:
    """Run one attempt, one frame a control step; return the episode and '' or the reason why it failed.

    It ends at success. Where tasks report none, it ends as the simulator says, and is no failure.

    dart_noise_rate: chance that a push begins, a control step; rotation and gripper are left alone.
    """
    env, info = bench.env, bench.env.info
    low, high = (np.asarray(bound, np.float32) for bound in (info.action_low, info.action_high))
    env.reset([0], [EpisodeSpec(attempt.key, attempt.task, attempt.init_state, attempt.seed)])
    images, states, labels, executed = [], [], [], []
    expert = bench.expert(attempt.task, attempt.seed)
    pushes = Pushes(dart_noise_rate, philox(attempt.seed, EpisodeStream.PUSHES))
    obs = env.new_observation(1)
    while True:
        env.observe([0], obs)
        label = np.clip(np.asarray(expert.act(), dtype=np.float32), low, high)
        action = pushes.apply(label) if dart_noise_rate else label
        images.append(obs.images[0].numpy().copy())
        states.append(obs.proprio[0].numpy().copy())
        labels.append(label)
        executed.append(action)
        result = env.step([0], torch.from_numpy(action[None, None]))
        if result.failed[0] or result.success[0] or result.terminated[0] or result.truncated[0]:
            break
    extra: dict[str, str | int | float] = {
        "task": attempt.task,
        "init_state": attempt.init_state,
        "seed": attempt.seed,
        "dart_noise_rate": dart_noise_rate,
    }
    episode = Episode(
        attempt.key, obs.instruction[0], np.stack(images), np.stack(states), np.stack(labels), np.stack(executed), extra
    )
    if result.failed[0]:
        return episode, "the simulation broke down"
    if not info.has_success:
        episode.extra[ENDS_IN_SUCCESS] = 0
        return episode, ""
    return episode, "" if result.success[0] else f"no success in {len(images)} steps"


_bench: Bench | None = None  # one a worker process: scenes and renderer stay warm from episode to episode


def _start_worker(build: Callable[[], Bench]) -> None:
    global _bench
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    _bench = build()


def _leave_with_parent() -> None:
    """End this process when the parent is gone (kill -9): the pool's queue would let it wait for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def _attempt(job: Job, attempt: Attempt) -> tuple[Attempt, str, int]:
    if _bench is None:
        raise RuntimeError("the worker has no simulator")
    episode, reason = record(_bench, attempt, job.dart_noise_rate)
    if job.preview is not None and attempt.index == 0:
        outcome = "failure" if reason else "success"
        video.write_preview(
            job.preview / f"{attempt.task.replace('/', '_')}_{outcome}.mp4", preview(episode.images), job.spec.fps
        )
    if reason:
        writer.add_failure(job.partial, attempt.key, f"{attempt.task} from state {attempt.init_state}: {reason}")
    if job.keep_failures:
        episode.extra.setdefault(ENDS_IN_SUCCESS, int(not reason))
    if not reason or job.keep_failures:
        writer.add_episode(job.partial, job.spec, episode)
    return attempt, reason, len(episode.images)


def run(
    build: Callable[[], Bench], job: Job, attempts: Sequence[Attempt], workers: int
) -> Generator[tuple[Attempt, str, int], None, None]:
    """Run `attempts` in `workers` spawned processes; yield (attempt, '' or reason, frames) as each one is stored.

    build: picklable; called once in each worker. Closing the generator cancels what has not begun. Raises UserError
    when a worker dies; what was stored stays.
    """
    pool = ProcessPoolExecutor(
        workers, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker, initargs=(build,)
    )
    try:
        for future in as_completed([pool.submit(_attempt, job, attempt) for attempt in attempts]):
            yield future.result()
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process died (out of memory?); the same command goes on where it stopped, "
            "with fewer --workers if it happens again"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def preview(images: Array) -> Array:
    """Cameras side by side, enlarged to a height of at least 256: uint8 [T,V,H,W,3] -> [T, s H, V s W, 3]."""
    t, v, h, w, _ = images.shape
    factor = -(-_PREVIEW_PIXELS // h)
    factor += factor % 2 and (h % 2 or v * w % 2)  # yuv420p needs even sizes
    wide = images.transpose(0, 2, 1, 3, 4).reshape(t, h, v * w, 3)
    return wide.repeat(factor, axis=1).repeat(factor, axis=2)


def summary(attempts: Sequence[Attempt], failed: Collection[int]) -> list[dict[str, Any]]:
    """One row a task: attempts and successes."""
    rows: dict[str, dict[str, Any]] = {}
    for attempt in attempts:
        row = rows.setdefault(attempt.task, {"task": attempt.task, "attempts": 0, "successes": 0})
        row["attempts"] += 1
        row["successes"] += attempt.key not in failed
    return list(rows.values())

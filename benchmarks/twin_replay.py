"""Replays episodes of an exported data set on the twin in lockstep: their actions, through gate and controller."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.benchmarks.twin_lockstep import Lockstep, Twin
from embodied_rl.policy import PolicyTraits
from embodied_rl.real_robot.core.robot import load_robot
from embodied_rl.real_robot.core.runtime import Tick
from embodied_rl.real_robot.core.states import Event
from embodied_rl.real_robot.record.events import ControlStep, EpisodeStarted
from embodied_rl.real_robot.record.reader import RecordingFile
from embodied_rl.real_robot.ros2.context import ACTION_DIM, STEP_NS
from embodied_rl.real_robot.twin.node import TIMESTEP_NS
from embodied_rl.types import ActOutput, Array

_REST_STEPS = 10
"""Control steps in which the arm comes to rest: before each decision of the policy, and at the end."""


class _Nobody:
    """A policy that is never asked."""

    chunk_len, action_dim, terms_per_step, with_value, traits = 1, ACTION_DIM, ACTION_DIM, False, PolicyTraits()

    def act(self, obs: Any, rng: Any, mode: str) -> ActOutput:
        raise AssertionError("a replay asks no policy")


class Replay(Lockstep):
    """The twin without ROS and real time, moved by the actions of an episode.

    Args:
        suite: The twin's tasks.

    Example:
        >>> Replay("tabletop_goal").end(task, 3, 17, actions, decisions, human)
        array([0.1, 0.2, 1.0])
    """

    def __init__(self, suite: str) -> None:
        nobody: Any = _Nobody()
        super().__init__(nobody, suite, Twin())

    def end(
        self,
        task: str,
        state: int,
        seed: int,
        actions: Array,
        decisions: Array | Sequence[int],
        human: Array | Sequence[bool],
    ) -> Array:
        """Where the tool is asked to be after an episode's actions [3], m in the arm's base frame.

        Args:
            task: Its name.
            state: Number of its initial state.
            seed: Of the episode.
            actions: float [F, 7] in [-1, 1].
            decisions: int [F], number of the decision of each: before a new one the arm comes to rest, as an arm does
                whose policy looks and thinks.
            human: bool [F], whether a person did it.
        """
        now_ns = self.begin(task, state, seed)
        now_ns = self._steps(now_ns - now_ns % STEP_NS + STEP_NS, now_ns, 0)
        for place, action in enumerate(actions):
            if place and decisions[place] != decisions[place - 1]:
                now_ns = self._steps(now_ns, now_ns, _REST_STEPS)
            if place and human[place] and not human[place - 1]:
                # A person's actions are ways from set point to set point: what the policy asked beyond is over.
                self._loop.fire(Event.HOLD, now_ns, "a person takes over")
                self._loop.fire(Event.RESUME, now_ns, "a person takes over")
            self._loop.queue(np.asarray(action, np.float64))
            now_ns = self._steps(now_ns, now_ns, 1)
        self._steps(now_ns, now_ns, _REST_STEPS)
        return self._robot.chain.position(self._loop.runtime.gate.positions)

    def _steps(self, start_ns: int, now_ns: int, count: int) -> int:
        """Go on for some control steps from `start_ns`; the time then, ns."""
        while now_ns < start_ns + count * STEP_NS:
            now_ns += TIMESTEP_NS
            self._advance(now_ns)
        return now_ns

    def _ask(self, now_ns: int) -> None:
        """Whoever replays is there all the time."""

    def _advance(self, now_ns: int) -> None:
        self._loop.heartbeat(now_ns)
        super()._advance(now_ns)


def ends_of(recording: Path) -> dict[bytes, Array]:
    """Where the tool was asked to be as a person's last control step of each episode was over [3], m in the base frame.

    Args:
        recording: A bridge's, an MCAP file.

    Returns:
        By the person's actions, as the bytes of float32 [F, 7].
    """
    chain, found = load_robot("twin").chain, dict[bytes, Array]()
    human, setpoint = list[Array](), list[float]()
    for event in RecordingFile(recording).events(EpisodeStarted, ControlStep, Tick):
        if isinstance(event, EpisodeStarted):
            human = []
        elif isinstance(event, ControlStep) and event.intervention:
            human.append(event.action)
            end = chain.position(np.array(setpoint))  # of the tick that ended it
            found.pop(_key(human[:-1]), None)
            found[_key(human)] = end
        elif not isinstance(event, ControlStep):
            setpoint = event["setpoint"] or setpoint
    return found


def _key(actions: Sequence[Array]) -> bytes:
    return np.array(actions, np.float32).tobytes()

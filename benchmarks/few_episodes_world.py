"""Two tasks of `tabletop_goal` seen by their state, and who acts in them: a policy, the scripted expert, or both."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor

from embodied_rl.data.chunks import action_chunks, undisturbed
from embodied_rl.data.collect import Pushes
from embodied_rl.evaluation.benchmark import interleaved
from embodied_rl.factory.tasks import load_tasks
from embodied_rl.rng import DecisionRng, EpisodeStream, philox
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.sim.state.vector import StateLayout
from embodied_rl.sim.tabletop import with_fresh_states
from embodied_rl.sim.tabletop.expert import Expert
from embodied_rl.types import Array, EpisodeSpec

SUITE, TASKS = "tabletop_goal", ("turn_on_the_stove", "open_the_drawer_of_the_cabinet")
CHUNK, ACTIONS = 4, 7
HORIZON = 38
"""Decisions of an episode that does not succeed."""
TAKEOVER = 20
"""Decisions without success after which the person takes over."""
PUSH_RATE = 0.04
"""Chance of a push, a control step of a demonstration."""
_ENVS = 32

Act = Callable[[Tensor, DecisionRng], Tensor]
"""(states [N,S], random numbers of the decisions) -> chunks float32 [N,K,A]."""


class Draw(IntEnum):
    """First counters under a bench's seed, and what fresh initial states are for."""

    DEMONSTRATIONS = 0
    EPISODES = 1
    CALIBRATION = 2
    MIXED = 3
    SPARE = 4
    WEIGHTS = 8
    BATCH = 9
    CRITIC_BATCH = 10
    CANDIDATES = 11
    SHUFFLE = 12
    VALUE = 13


@dataclass(frozen=True, slots=True)
class Episode:
    """What was done in T rows: decisions of the policy, or single control steps of the expert.

    states: float32 [T+1,S], the last one after the end. chunks: float32 [T,K,A]; an expert's row has one action.
    human: bool [T], the expert acted; from its first row to the end. pushed: bool [T], pushed off course.
    """

    task: int
    success: bool
    states: Array
    chunks: Array
    human: Array
    pushed: Array

    @property
    def helped(self) -> bool:
        """Whether the expert acted in it."""
        return bool(self.human.any())


@dataclass(frozen=True, slots=True)
class Rows:
    """Chunks to learn from. state, next_state: [B,S]; chunk: [B,K*A]; over: the episode ended within the chunk, bool
    [B]; won: it ended so in success, bool [B]; human: bool [B]."""

    state: Tensor
    chunk: Tensor
    next_state: Tensor
    over: Tensor
    won: Tensor
    human: Tensor

    def __len__(self) -> int:
        return len(self.state)

    def take(self, rows: Tensor) -> Rows:
        """Some of the rows."""
        return Rows(*(getattr(self, name)[rows] for name in self.__slots__))


def join(parts: Sequence[Rows]) -> Rows:
    """One after the other."""
    return Rows(*(torch.cat([getattr(part, name) for part in parts]) for name in Rows.__slots__))


def rows_of(episode: Episode, success: bool | None = None) -> Rows:
    """The chunks of an episode: the policy's decisions, and one from every step of the expert whose chunk no push
    disturbs. success: what to believe of its outcome; None: the truth."""
    count = len(episode.human)
    at, end = np.arange(count), np.full(count, count)
    commands = action_chunks(episode.chunks[:, 0], at, end, CHUNK, np.full(count, episode.success))
    human = episode.human
    after = np.minimum(np.where(human, at + CHUNK, at + 1), count)
    kept = np.flatnonzero(~human | undisturbed(episode.pushed, end, CHUNK))
    over = (after == count)[kept]
    found = (
        episode.states[kept],
        np.where(human[:, None, None], commands, episode.chunks)[kept].reshape(len(kept), -1),
        episode.states[after[kept]],
        over,
        over & (episode.success if success is None else success),
        human[kept],
    )
    return Rows(*(torch.from_numpy(part) for part in found))


@dataclass(slots=True)
class _Running:
    """An episode that has not ended yet."""

    number: int
    spec: EpisodeSpec
    task: int
    states: list[Array] = field(default_factory=list)
    chunks: list[Array] = field(default_factory=list)
    human: list[bool] = field(default_factory=list)
    pushed: list[bool] = field(default_factory=list)
    expert: Expert | None = None
    pushes: Pushes | None = None

    def ended(self, last: Array, success: bool) -> Episode:
        states, chunks = np.stack([*self.states, last]), np.stack(self.chunks)
        return Episode(self.task, success, states, chunks, np.array(self.human), np.array(self.pushed))


class World:
    """The two tasks, from initial states of their own.

    Example:
        >>> episodes = World.fresh(0, Draw.EPISODES, 15).run(policy.act)
    """

    def __init__(self, tasks: Sequence[MujocoTask], specs: Sequence[EpisodeSpec]) -> None:
        self._tasks, self.specs = {task.name: (i, task) for i, task in enumerate(tasks)}, list(specs)
        layout = StateLayout.of(load_tasks(SUITE))
        self._env = MujocoVecEnv(tasks, min(_ENVS, len(specs)), threads=1, cameras=0, layout=layout)

    @classmethod
    def heldout(cls, count: int) -> World:
        """From `count` of the held-out initial states, the tasks in turn."""
        tasks = load_tasks(SUITE, TASKS)
        return cls(tasks, interleaved(evaluation_specs({task.name: task.heldout_states for task in tasks}, 0))[:count])

    @classmethod
    def fresh(cls, seed: int, what: Draw, each: int) -> World:
        """From `each` newly drawn initial states a task, the tasks in turn; more of them begin with the same ones."""
        tasks = [with_fresh_states(task, each, 8 * seed + what) for task in load_tasks(SUITE, TASKS)]
        specs = []
        for number in range(each * len(tasks)):
            state, task = divmod(number, len(tasks))
            specs.append(EpisodeSpec(number, tasks[task].name, state, int(philox(seed, what, number).integers(2**60))))
        return cls(tasks, specs)

    def run(
        self, act: Act, specs: Sequence[EpisodeSpec] | None = None, takeover: int | None = None, push_rate: float = 0.0
    ) -> list[Episode]:
        """Run `specs` (None: all), the results in their order; those whose simulation broke are left out.

        takeover: after so many decisions without success the expert acts to the end. push_rate: chance that a push
        begins, a control step of the expert.
        """
        waiting = deque(enumerate(self.specs if specs is None else specs))
        running: dict[int, _Running] = {}
        done: dict[int, Episode] = {}
        while waiting or running:
            for env in range(self._env.num_envs):
                if env not in running and waiting:
                    number, spec = waiting.popleft()
                    self._env.reset([env], [spec])
                    running[env] = _Running(number, spec, self._tasks[spec.task][0])
            for env, state in zip(running, self._states(running).numpy(), strict=True):
                running[env].states.append(state)
                if takeover is not None and running[env].expert is None and len(running[env].human) >= takeover:
                    self._hand_over(env, running[env], push_rate)
            self._step_policy({env: now for env, now in running.items() if now.expert is None}, act, running, done)
            self._step_expert({env: now for env, now in running.items() if now.expert is not None}, running, done)
        return [done[number] for number in sorted(done)]

    def _states(self, running: dict[int, _Running]) -> Tensor:
        """What a policy sees: the simulator's state, and which task it is."""
        which = torch.zeros(len(running), len(self._tasks))
        which[torch.arange(len(running)), torch.tensor([now.task for now in running.values()])] = 1.0
        return torch.cat([self._env.state(list(running)), which], dim=1)

    def _hand_over(self, env: int, now: _Running, push_rate: float) -> None:
        now.expert = Expert(self._tasks[now.spec.task][1], self._env.model(env))
        now.expert.reset()
        now.pushes = Pushes(push_rate, philox(now.spec.seed, EpisodeStream.PUSHES))

    def _step_policy(
        self, mine: dict[int, _Running], act: Act, running: dict[int, _Running], done: dict[int, Episode]
    ) -> None:
        if not mine:
            return
        seeds = np.array([now.spec.seed for now in mine.values()])
        decisions = np.array([len(now.human) for now in mine.values()])
        states = torch.from_numpy(np.stack([now.states[-1] for now in mine.values()]))
        chunks = act(states, DecisionRng(seeds, decisions))
        for now, chunk in zip(mine.values(), chunks.numpy(), strict=True):
            now.chunks.append(chunk)
            now.human.append(False)
            now.pushed.append(False)
        self._step(list(mine), chunks, running, done)

    def _step_expert(self, mine: dict[int, _Running], running: dict[int, _Running], done: dict[int, Episode]) -> None:
        if not mine:
            return
        actions = np.zeros((len(mine), 1, ACTIONS), np.float32)
        for row, (env, now) in enumerate(mine.items()):
            assert now.expert is not None
            assert now.pushes is not None
            wanted = np.clip(now.expert.act(self._env.data(env)).astype(np.float32), -1.0, 1.0)
            actions[row] = now.pushes.apply(wanted)
            now.chunks.append(np.concatenate([wanted[None], np.zeros((CHUNK - 1, ACTIONS), np.float32)]))
            now.human.append(True)
            now.pushed.append(bool((actions[row] != wanted).any()))
        self._step(list(mine), torch.from_numpy(actions), running, done)

    def _step(self, envs: list[int], actions: Tensor, running: dict[int, _Running], done: dict[int, Episode]) -> None:
        result = self._env.step(envs, actions)
        for row, env in enumerate(envs):
            if result.failed[row]:
                del running[env]
            elif result.terminated[row] or result.truncated[row]:
                last = self._states({env: running[env]})[0].numpy()
                now = running.pop(env)
                done[now.number] = now.ended(last, bool(result.success[row]))

    def close(self) -> None:
        """Free the simulators."""
        self._env.close()

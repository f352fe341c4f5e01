"""The ways to use few episodes that `bench few-episodes` compares; all of a seed begin from one policy."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from embodied_rl.benchmarks.few_episodes_policy import BAD, GOOD, ChunkCritic, FlowPolicy, Imitation, imitate
from embodied_rl.benchmarks.few_episodes_value import advantages
from embodied_rl.benchmarks.few_episodes_world import (
    PUSH_RATE,
    TAKEOVER,
    TASKS,
    Act,
    Draw,
    Episode,
    Rows,
    World,
    join,
    rows_of,
)
from embodied_rl.errors import UserError
from embodied_rl.rng import philox

STEPS = {"start": 1200, "round": 400, "critic": 700, "offline": 1200}
"""Updates: of the start, of the policy and of the critic in a round, and from the mixed episodes."""
ROUND_EPISODES = 30
MIXED = 300
"""Episodes of the offline arms: half of the start alone, half with a late takeover."""
_ATTEMPTS = 8
"""Demonstrations at a time."""
_GOOD_SHARE = 0.4
"""Share of a task's rows of the policy that count as good, the most advantageous ones."""


@dataclass(frozen=True, slots=True)
class Arm:
    """What is done with the episodes of a round.

    own: successes of the policy are imitated, and what a person did. people: the expert takes over late. critic: best
    of N chunks by a critic. shuffled: outcomes, or labels, are swapped between episodes. plain: as many frames of the
    expert as people gave come as plain demonstrations. offline: learns from MIXED episodes at once. labels: from all
    of their chunks, each labelled by its advantage.
    """

    words: str
    own: bool = False
    people: bool = False
    critic: bool = False
    shuffled: bool = False
    plain: bool = False
    offline: bool = False
    labels: bool = False

    @property
    def acts(self) -> bool:
        """Whether it runs episodes of its own."""
        return (self.own or self.critic) and not self.offline


ARMS = {
    "none": Arm("the start"),
    "more": Arm("as many more steps on the demonstrations"),
    "filter": Arm("imitates its own successes", own=True),
    "bon": Arm("best of 8 chunks by a critic, the policy frozen", critic=True),
    "steer": Arm("best of 8 chunks, and imitates its own successes", own=True, critic=True),
    "shuffled": Arm("as steer, outcomes shuffled", own=True, critic=True, shuffled=True),
    "people": Arm("the expert takes over late; imitates that and its own successes", own=True, people=True),
    "people_demo": Arm("as many expert frames as plain demonstrations", plain=True),
    "people_steer": Arm("people and steer together", own=True, people=True, critic=True),
    "offline": Arm("300 mixed episodes: imitates successes and corrections", own=True, offline=True),
    "advantage": Arm("300 mixed episodes, labelled by advantage", offline=True, labels=True),
    "advantage_shuffled": Arm("the same, labels shuffled", offline=True, labels=True, shuffled=True),
}


@dataclass(frozen=True, slots=True)
class Result:
    """Held-out success of one arm of one seed; a line of the bench's file.

    tasks: by task. alone: share of each round's episodes that succeeded without help. expert_frames: of each round.
    """

    arm: str
    seed: int
    demos: int
    episodes: int
    success: float
    tasks: list[float]
    alone: list[float] = field(default_factory=list)
    expert_frames: list[int] = field(default_factory=list)
    cpu_seconds: float = 0.0
    detectors: list[dict[str, float | str | None]] = field(default_factory=list)


class Start:
    """What the arms of a seed share: demonstrations, the policy that they gave, its first episodes.

    scale: of all numbers of updates, for a quick look.
    """

    def __init__(self, seed: int, demos: int, episodes: int, heldout: World, scale: float = 1.0) -> None:
        self.seed, self.demos, self.episodes = seed, demos, episodes
        self.heldout, self._scale = heldout, scale
        self.rounds = max(2, round(episodes / ROUND_EPISODES))
        self._first: dict[int | None, list[Episode]] = {}

    def steps(self, count: int) -> int:
        """So many updates or episodes, or fewer for a quick look."""
        return max(4, round(count * self._scale))

    @cached_property
    def shown(self) -> list[Episode]:
        """The demonstrations, `demos` a task."""
        kept: list[list[Episode]] = [[] for _ in TASKS]
        for episode in self.demonstrations(Draw.DEMONSTRATIONS, self.demos + 10):
            if len(kept[episode.task]) < self.demos:
                kept[episode.task].append(episode)
            if all(len(of_task) == self.demos for of_task in kept):
                return [episode for of_task in kept for episode in of_task]
        raise UserError(f"seed {self.seed}: the expert failed too often for {self.demos} demonstrations a task.")

    def demonstrations(self, what: Draw, most: int) -> Iterator[Episode]:
        """The expert's successes one by one, the tasks in turn, of at most so many attempts a task."""
        with closing(World.fresh(self.seed, what, most)) as world:
            for first in range(0, len(world.specs), _ATTEMPTS):
                found = world.run(_nobody, world.specs[first : first + _ATTEMPTS], takeover=0, push_rate=PUSH_RATE)
                yield from (episode for episode in found if episode.success)

    @cached_property
    def rows(self) -> Rows:
        """Of the demonstrations."""
        return join([rows_of(episode) for episode in self.shown])

    @cached_property
    def policy(self) -> FlowPolicy:
        """Imitates the demonstrations."""
        policy = FlowPolicy(self.rows.state, self.seed)
        imitate(policy, self.rows, None, self.steps(STEPS["start"]), (self.seed, 0), Imitation(lr=1e-3))
        return policy

    @cached_property
    def evaluated(self) -> list[Episode]:
        """The start's held-out episodes."""
        return self.heldout.run(self.policy.act)

    @cached_property
    def world(self) -> World:
        """Of the training episodes, each from a fresh initial state."""
        return World.fresh(self.seed, Draw.EPISODES, -(-self.episodes // len(TASKS)))

    @cached_property
    def mixed(self) -> list[Episode]:
        """Half of the start alone, half with a late takeover."""
        with closing(World.fresh(self.seed, Draw.MIXED, self.steps(MIXED) // len(TASKS))) as world:
            half = len(world.specs) // 2
            alone = world.run(self.policy.act, world.specs[:half])
            return alone + world.run(self.policy.act, world.specs[half:], takeover=TAKEOVER)

    def round(self, number: int, act: Act, takeover: int | None) -> list[Episode]:
        """Round 0, 1, ... of the training episodes; the first one is the start's, the same for all arms."""
        if number == 0 and takeover in self._first:
            return self._first[takeover]
        first, last = (self.episodes * at // self.rounds for at in (number, number + 1))
        found = self.world.run(act, self.world.specs[first:last], takeover)
        if number == 0:
            self._first[takeover] = found
        return found

    def close(self) -> None:
        """Free the simulators."""
        if "world" in self.__dict__:
            self.world.close()


def _nobody(state: Tensor, _rng: object) -> Tensor:
    raise AssertionError(f"the expert acts from the first step on, not a policy in {len(state)} envs")


def _of_task(episodes: Sequence[Episode], task: int) -> list[Episode]:
    return [episode for episode in episodes if episode.task == task]


def success_of(episodes: Sequence[Episode]) -> tuple[float, list[float]]:
    """Share of successes, of all and by task."""
    tasks = [[episode.success for episode in _of_task(episodes, task)] for task in range(len(TASKS))]
    return float(np.mean([episode.success for episode in episodes])), [float(np.mean(found)) for found in tasks]


def imitable(episodes: Sequence[Episode], outcomes: Sequence[bool]) -> Rows | None:
    """Rows to imitate: of successes without help all, of those with help what the person did. None without any."""
    parts = []
    for episode, success in zip(episodes, outcomes, strict=True):
        rows = rows_of(episode)
        if success:
            parts.append(rows.take(rows.human) if episode.helped else rows)
    return join(parts) if parts else None


def run_arm(name: str, start: Start, people_frames: Sequence[int] = ()) -> Result:
    """Run one arm. people_frames: frames that the expert gave in each round of arm `people`, for `people_demo`."""
    arm, policy = ARMS[name], copy.deepcopy(start.policy)
    began = time.process_time()
    alone, frames, act = [], [], policy.act
    if name == "none":
        held = start.evaluated
        return Result(name, start.seed, start.demos, 0, *success_of(held), cpu_seconds=_since(began))
    if arm.offline:
        _learn_offline(arm, start, policy)
    elif not arm.acts:
        frames = _learn_demonstrations(arm, start, policy, people_frames)
    else:
        act, alone, frames = _learn_rounds(arm, start, policy)
    held = start.heldout.run(act)
    episodes = MIXED if arm.offline else start.episodes
    return Result(name, start.seed, start.demos, episodes, *success_of(held), alone, frames, cpu_seconds=_since(began))


def _since(began: float) -> float:
    return round(time.process_time() - began, 1)


def _learn_rounds(arm: Arm, start: Start, policy: FlowPolicy) -> tuple[Act, list[float], list[int]]:
    """Act, learn, act again; returns how it acts at the end, success alone and expert frames of each round."""
    act: Act = policy.act
    critic = ChunkCritic(policy, start.rows, start.seed) if arm.critic else None
    episodes: list[Episode] = []
    outcomes: list[bool] = []
    alone, frames = [], []
    for number in range(start.rounds):
        new = start.round(number, act, TAKEOVER if arm.people else None)
        believed = [episode.success for episode in new]
        if arm.shuffled:
            believed = list(philox(start.seed, Draw.SHUFFLE, number).permutation(believed))
        episodes, outcomes = [*episodes, *new], [*outcomes, *believed]
        alone.append(float(np.mean([episode.success and not episode.helped for episode in new])))
        frames.append(int(sum(episode.human.sum() for episode in new if episode.success)))
        if critic is not None:
            critic.add(join([rows_of(one, bool(won)) for one, won in zip(new, believed, strict=True)]))
        if arm.own:
            others = imitable(episodes, outcomes)
            imitate(policy, start.rows, others, start.steps(STEPS["round"]), (start.seed, number + 1))
        if critic is not None:
            critic.learn(start.steps(STEPS["critic"]), number + 1)
            act = critic.act
    return act, alone, frames


def _learn_demonstrations(arm: Arm, start: Start, policy: FlowPolicy, people_frames: Sequence[int]) -> list[int]:
    """As many updates without episodes; where the arm is plain, on as many more expert frames as people gave."""
    frames: list[int] = []
    wanted = people_frames if arm.plain else [0] * start.rounds
    spare = start.demonstrations(Draw.SPARE, max(1, sum(wanted) // 20))
    taken: list[Episode] = []
    for number in range(start.rounds):
        got = 0
        while got < wanted[number]:
            taken.append(next(spare))
            got += len(taken[-1].human)
        frames.append(got)
        others = join([rows_of(episode) for episode in taken]) if taken else None
        imitate(policy, start.rows, others, start.steps(STEPS["round"]), (start.seed, number + 1))
    return frames


def _learn_offline(arm: Arm, start: Start, policy: FlowPolicy) -> None:
    """Learn from the mixed episodes at once."""
    steps, key = start.steps(STEPS["offline"]), (start.seed, 1)
    if not arm.labels:
        others = imitable(start.mixed, [episode.success for episode in start.mixed])
        imitate(policy, start.rows, others, steps, key)
        return
    rows = join([rows_of(episode) for episode in start.mixed])
    good = torch.ones(len(rows), dtype=torch.bool)
    advantage = torch.from_numpy(advantages(policy, start.mixed, start.seed))
    tasks = torch.cat([torch.full((len(episode.human),), episode.task) for episode in start.mixed])
    for task in range(len(TASKS)):
        mine = (tasks == task) & ~rows.human
        good[mine] = advantage[mine] > advantage[mine].quantile(1.0 - _GOOD_SHARE)
    if arm.shuffled:
        good = good[torch.from_numpy(philox(start.seed, Draw.SHUFFLE).permutation(len(good)))]
    policy.wanted = GOOD
    imitate(policy, start.rows, rows, steps, key, quality=torch.where(good, GOOD, BAD))

"""A scripted expert in a person's place: it takes an episode over and does the rest of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch

from embodied_rl.errors import UserError
from embodied_rl.rng import EpisodeStream, philox
from embodied_rl.sim.checks import check_env_ids
from embodied_rl.sim.stepping import bounded_actions
from embodied_rl.sim.wrappers.forwarding import VecEnvWrapper
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from embodied_rl.vec_env import VecEnv

Expert = Callable[[], Array]
"""The next action [A] in [-1, 1], from the simulator's present state."""


class Watcher(Protocol):
    """Looks on at every decision of an episode, and says when it is going to fail."""

    chunk_len: int
    """Control steps of a decision."""

    def see(self, shown: Observation) -> Any:
        """What one observation says: of it alone, whatever is shown beside it."""
        ...

    def alarm(self, sights: Sequence[Any], instruction: str) -> bool:
        """Whether the last decision of these raises an alarm."""
        ...


@dataclass(frozen=True, slots=True)
class TakeoverRule:
    """When the expert takes an episode over; it follows from the episode alone.

    Args:
        kind: 'late': after `after` control steps in which the goal was not reached. 'share': in a random `share` of the
            episodes, before a random one of the first `after` control steps. 'detector': at the decision at which a
            `Watcher` raises an alarm.
        after: control steps, at least 1; not of 'detector'.
        share: of the episodes, 0 to 1; of 'share' alone.

    Raises:
        UserError: A number is out of its range.

    Example:
        >>> TakeoverRule("late", after=80).first_step(EpisodeSpec(0, "reach", 0, seed=1))
        80
    """

    kind: Literal["late", "share", "detector"] = "late"
    after: int = 80
    share: float = 0.5

    def __post_init__(self) -> None:
        if self.after < 1:
            raise UserError(f"an expert takes over after at least 1 control step, got {self.after}.")
        if not 0.0 <= self.share <= 1.0:
            raise UserError(f"the share of the episodes that are taken over is 0 to 1, got {self.share}.")

    def first_step(self, spec: EpisodeSpec) -> int | None:
        """The control step that is the expert's first, counted from 0; None: the policy's until an alarm, if any."""
        if self.kind == "detector":
            return None
        if self.kind == "late":
            return self.after
        draws = philox(spec.seed, EpisodeStream.TAKEOVER)
        return int(draws.integers(self.after)) if draws.random() < self.share else None


@dataclass(slots=True)
class _Running:
    """An episode in an env. first: its `TakeoverRule.first_step`. sights: of its decisions, where one looks on."""

    spec: EpisodeSpec
    first: int | None
    steps: int = 0
    won: bool = False
    over: bool = False
    expert: Expert | None = None
    sights: list[Any] = field(default_factory=list)

    def alone(self, steps: int) -> int:
        """How many of the next `steps` control steps are the policy's."""
        if self.expert is not None:
            return 0
        return steps if self.first is None or self.won else min(max(self.first - self.steps, 0), steps)


class ExpertTakeover(VecEnvWrapper):
    """`embodied_rl.vec_env.VecEnv` that runs another one, some of whose episodes an expert takes over and ends.

    What the policy decides from there on is not done: `ChunkResult.human` says how many steps of a chunk were the
    expert's, and `executed` what it did. Where it takes nothing over, all is as without it, to the last bit.

    Args:
        env: the one that runs, on the CPU.
        rule: when the expert takes over.
        expert: makes the expert of the episode that an env holds, when it takes over.
        watcher: of the rule 'detector', and of it alone.

    Example:
        >>> env = ExpertTakeover(env, TakeoverRule("late", after=80), expert)
        >>> env.step([0, 1], actions).human
        tensor([0, 4], dtype=torch.int32)
    """

    def __init__(
        self,
        env: VecEnv,
        rule: TakeoverRule,
        expert: Callable[[int, EpisodeSpec], Expert],
        watcher: Watcher | None = None,
    ) -> None:
        if (rule.kind == "detector") != (watcher is not None):
            raise ValueError("a watcher goes with rule 'detector'")
        super().__init__(env)
        self._rule, self._expert, self._watcher = rule, expert, watcher
        self._running: dict[int, _Running] = {}

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """As `VecEnv.reset`."""
        super().reset(env_ids, episodes)
        for env_id, spec in zip(env_ids, episodes, strict=True):
            self._running[env_id] = _Running(spec, self._rule.first_step(spec))

    def observe(self, env_ids: Sequence[int], out: Observation) -> Sequence[int] | None:
        """As `VecEnv.observe`; whoever records looks between decisions too, when nobody decides."""
        unseen = super().observe(env_ids, out)
        if self._watcher is not None:
            for row, env_id in enumerate(env_ids):
                if row not in (unseen or ()) and env_id in self._running:
                    self._watch(self._watcher, self._running[env_id], out.rows(slice(row, row + 1)))
        return unseen

    def _watch(self, watcher: Watcher, running: _Running, shown: Observation) -> None:
        """Look on where the policy is about to decide, for the first time there."""
        if running.over or running.won or running.first is not None:
            return
        if running.steps == len(running.sights) * watcher.chunk_len:
            running.sights.append(watcher.see(shown))
            if watcher.alarm(running.sights, shown.instruction[0]):
                running.first = running.steps

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """As `VecEnv.step`."""
        steps = actions.shape[1] if actions.ndim == 3 else 0
        running = [self._running.get(env_id) for env_id in env_ids]
        helped = [row for row, one in enumerate(running) if one is not None and one.alone(steps) < steps]
        if helped:
            result = self._with_help(env_ids, actions, set(helped))
        else:
            result = super().step(env_ids, actions)
        over = (result.terminated | result.truncated | result.failed).tolist()
        for one, taken, won, end in zip(
            running, result.steps_taken.tolist(), result.success.tolist(), over, strict=True
        ):
            assert one is not None, "the simulator does not step an env that was never reset"
            one.steps, one.won, one.over = one.steps + taken, one.won or won, end
        return result

    def _with_help(self, env_ids: Sequence[int], actions: torch.Tensor, helped: set[int]) -> ChunkResult:
        """A chunk in which the expert has the envs of some rows, for a part of it or all of it."""
        asked = bounded_actions(actions, len(env_ids), self.info)
        check_env_ids(env_ids, self.num_envs)
        for env_id in env_ids:  # all are looked at before any moves
            if env_id not in self._running or self._running[env_id].over:
                raise ValueError(f"env {env_id} holds no running episode; reset it first")
        out = ChunkResult.zeros(*asked.shape[:2])
        if alone := [row for row in range(len(env_ids)) if row not in helped]:
            out.put(alone, super().step([env_ids[row] for row in alone], actions[alone]))
        out.executed = torch.zeros(asked.shape)
        steps = asked.shape[1]
        going = {row: self._running[env_ids[row]].alone(steps) for row in sorted(helped)}
        for k in range(steps):
            if not going:
                break
            self._control_step(env_ids, asked, k, going, out)
            ended, alone = out.terminated | out.truncated | out.failed, out.success & (out.human == 0)
            going = {row: steps if alone[row] else first for row, first in going.items() if not ended[row]}
        out.executed[out.human == 0] = 0.0  # the goal was reached before
        if not out.human.any():
            out.executed = None
        return out

    def _control_step(
        self, env_ids: Sequence[int], asked: Array, k: int, going: dict[int, int], out: ChunkResult
    ) -> None:
        """Control step `k` of the rows `going`, each with the first step of the chunk that is the expert's."""
        rows, done = list(going), []
        for row, first in going.items():
            done.append(asked[row, k] if k < first else self._expert_action(env_ids[row]))
        action = torch.from_numpy(np.stack(done))
        result = super().step([env_ids[row] for row in rows], action[:, None])
        assert out.executed is not None
        out.executed[rows, k] = action
        out.steps_taken[rows] += 1
        theirs = torch.tensor([k >= going[row] for row in rows])
        out.human[rows] += theirs.int()
        out.reward[rows, k] = torch.where(theirs, 0.0, result.reward[:, 0])
        for name in ("terminated", "truncated", "failed", "lost"):
            getattr(out, name)[rows] = getattr(result, name)
        out.success[rows] |= result.success

    def _expert_action(self, env_id: int) -> Array:
        running = self._running[env_id]
        if running.expert is None:
            running.expert = self._expert(env_id, running.spec)
        return np.clip(np.asarray(running.expert(), np.float32), -1.0, 1.0)

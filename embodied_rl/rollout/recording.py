"""Records what episodes show and what is done in them, at every control step and not at decisions alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from embodied_rl.vec_env import EnvInfo, VecEnv


@dataclass(slots=True)
class RecordedEpisode:
    """Frames of an episode, one a control step: what was seen before it, what was done, what it paid.

    images: uint8 [V,H,W,3] each. proprio: float32 [P]. action: float32 [A], executed. human: a person did it.
    decision: its number in the episode. calls: by decision, how many chunks were asked for before; asked: in all. One
    that a person did not let begin is no decision.
    """

    spec: EpisodeSpec
    instruction: str = ""
    images: list[Array] = field(default_factory=list)
    proprio: list[Array] = field(default_factory=list)
    action: list[Array] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    human: list[bool] = field(default_factory=list)
    decision: list[int] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)
    asked: int = 0
    success: bool = False
    """The goal held after the last control step."""


@runtime_checkable
class MovingVecEnv(Protocol):
    """A `VecEnv` in its own time, such as a real arm: it goes on while it is looked at in the middle of a chunk."""

    def glance(self, env_ids: Sequence[int], out: Observation) -> Sequence[int] | None:
        """As `VecEnv.observe`, without making anything wait."""
        ...


class RecordingVecEnv:
    """`VecEnv` that keeps what happens in `env`, which is stepped one control step at a time and drawn at each.

    A chunk that is stepped in parts is the same chunk, bit for bit: the contract of `VecEnv.step`. What is asked for is
    what whoever records sees as a decision; an env below that lets a person take over says what was executed instead.

    Example:
        >>> env = RecordingVecEnv(make_vec_env("tabletop_goal"))
        >>> env.reset([0], [spec])
        >>> env.observe([0], obs)
        >>> env.step([0], policy.act(obs, rng, "greedy").actions)
        >>> len(env.take(spec).action)
        4
    """

    def __init__(self, env: VecEnv) -> None:
        self.num_envs = env.num_envs
        self.info: EnvInfo = env.info
        self._env = env
        self._look = env.glance if isinstance(env, MovingVecEnv) else env.observe
        self._open: dict[int, RecordedEpisode] = {}
        self._between = env.new_observation(env.num_envs)
        self._bounds = np.asarray(env.info.action_low, np.float32), np.asarray(env.info.action_high, np.float32)

    def take(self, spec: EpisodeSpec) -> RecordedEpisode:
        """The recording of an episode that has ended, before its env is reset; ValueError where there is none."""
        for env_id, recorded in self._open.items():
            if recorded.spec == spec:
                return self._open.pop(env_id)
        raise ValueError(f"episode {spec.episode_id} was not recorded, or was taken already")

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """As `VecEnv.reset`."""
        self._env.reset(env_ids, episodes)
        self._open |= {env_id: RecordedEpisode(spec) for env_id, spec in zip(env_ids, episodes, strict=True)}

    def observe(self, env_ids: Sequence[int], out: Observation) -> Sequence[int] | None:
        """As `VecEnv.observe`."""
        unseen = self._env.observe(env_ids, out)
        self._see(env_ids, out, unseen or ())
        return unseen

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """As `VecEnv.step`; every env must have been observed since its last step."""
        result, executed = ChunkResult.zeros(*actions.shape[:2]), torch.zeros(actions.shape)
        going = list(range(len(env_ids)))
        for k in range(actions.shape[1]):
            ids = [env_ids[row] for row in going]
            if k:
                shown = self._between.rows(slice(0, len(ids)))
                self._see(ids, shown, self._look(ids, shown) or ())
            part = self._env.step(ids, actions[going, k : k + 1]).to("cpu")
            done = self._done(actions[going, k], part)
            executed[going, k] = torch.from_numpy(done) * part.steps_taken[:, None]
            self._keep(ids, done, part, begins=k == 0)
            _add(result, going, k, part)
            # without a step a person gave the env back: the policy must look again
            over = (part.terminated | part.truncated | part.failed | (part.steps_taken == 0)).tolist()
            going = [row for row, ended in zip(going, over, strict=True) if not ended]
            if not going:
                break
        if result.human.any():
            result.executed = torch.where(result.human[:, None, None] > 0, executed, 0.0)
        return result

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        """As `VecEnv.frame`."""
        return self._env.frame(env_id, camera, size)

    def new_observation(self, rows: int) -> Observation:
        """As `VecEnv.new_observation`."""
        return self._env.new_observation(rows)

    def close(self) -> None:
        """As `VecEnv.close`."""
        self._env.close()

    def _see(self, env_ids: Sequence[int], shown: Observation, unseen: Sequence[int]) -> None:
        """Keep what envs show, in place of what they showed before where no step came between."""
        for row, env_id in enumerate(env_ids):
            recorded = self._open.get(env_id)
            if row in unseen or recorded is None:  # broken, or over and taken
                continue
            del recorded.images[len(recorded.action) :], recorded.proprio[len(recorded.action) :]
            recorded.instruction = shown.instruction[row]
            recorded.images.append(shown.images[row].cpu().numpy().copy())
            recorded.proprio.append(shown.proprio[row].cpu().numpy().copy())

    def _done(self, asked: torch.Tensor, part: ChunkResult) -> Array:
        """What was executed in a control step where `asked` [N, A] was asked for: the same, or what a person did."""
        done = np.clip(asked.cpu().numpy(), *self._bounds)
        return (
            done if part.executed is None else np.where(part.human.numpy()[:, None], part.executed[:, 0].numpy(), done)
        )

    def _keep(self, env_ids: Sequence[int], done: Array, part: ChunkResult, *, begins: bool) -> None:
        """Keep a control step that ran. begins: it is the first of a decision."""
        for row, env_id in enumerate(env_ids):
            recorded = self._open[env_id]
            if part.failed[row]:
                continue
            recorded.success = bool(part.success[row])
            recorded.asked += begins
            if not part.steps_taken[row]:  # what was seen before it is no frame
                del recorded.images[len(recorded.action) :], recorded.proprio[len(recorded.action) :]
                continue
            if begins:
                recorded.calls.append(recorded.asked - 1)
            recorded.action.append(done[row].copy())
            recorded.reward.append(float(part.reward[row].sum()))
            recorded.human.append(bool(part.human[row]))
            recorded.decision.append(recorded.decision[-1] + begins if recorded.decision else 0)


def _add(result: ChunkResult, rows: Sequence[int], k: int, part: ChunkResult) -> None:
    """Add control step `k`, which ran in `rows`, to the result of a chunk."""
    index = list(rows)
    result.reward[index, k] = part.reward[:, 0]
    result.steps_taken[index] += part.steps_taken
    result.human[index] += part.human
    for name in ("terminated", "truncated", "success", "failed", "lost"):
        flags = getattr(result, name)
        flags[index] = flags[index] | getattr(part, name)

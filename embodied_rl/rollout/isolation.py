"""Simulators that raise: which episode broke one, and which were only beside it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from embodied_rl.errors import UserError
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from embodied_rl.vec_env import EnvInfo, SimulatorFailed, VecEnv

T = TypeVar("T")
_NOT_THE_EPISODES_DOING = (UserError, NotImplementedError, MemoryError, torch.OutOfMemoryError)
_log = logging.getLogger("embodied_rl.rollout")


class _Raised:
    """Stands for the result of a call that raised."""


class IsolatedVecEnv:
    """`VecEnv` over one that may raise: an episode that breaks it fails, and costs no other one an attempt.

    Where a call for several envs raises, nobody knows whose episode did it. A reset and a picture are then asked for
    again, one env at a time. A step can't be: its episodes are lost (`ChunkResult.lost`), and when they run again each
    is stepped apart from the others, until it came to its end. The same goes for episodes that the simulator itself
    reports as lost, such as those of a process that died. What was raised is logged once, with its traceback.

    A simulator whose episodes can't be run again (`EnvInfo.repeatable`), such as a real robot, raises as ever.

    Args:
        env: the simulator.

    Example:
        >>> env = IsolatedVecEnv(MyVecEnv())
        >>> env.step([0, 1], actions).failed
        tensor([False,  True])
    """

    def __init__(self, env: VecEnv) -> None:
        self.num_envs = env.num_envs
        self.info: EnvInfo = env.info
        self._env = env
        self._specs: dict[int, EpisodeSpec] = {}
        self._suspects: set[EpisodeSpec] = set()
        self._broken: set[int] = set()
        self._said: set[str] = set()

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """As `VecEnv.reset`; where an episode breaks the simulator, its first step fails."""
        specs = dict(zip(env_ids, episodes, strict=True))
        self._specs |= specs
        self._broken -= specs.keys()
        together, apart = self._split(env_ids)
        if together and isinstance(
            self._call(self._env.reset, together, [specs[env_id] for env_id in together]), _Raised
        ):
            apart = list(env_ids)
        for env_id in apart:
            if isinstance(self._call(self._env.reset, [env_id], [specs[env_id]]), _Raised):
                self._broken.add(env_id)

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """As `VecEnv.step`; an episode that breaks the simulator is `failed`, those beside it are also `lost`."""
        if actions.ndim != 3 or (len(actions), actions.shape[2]) != (len(env_ids), self.info.action_dim):
            wanted = f"[{len(env_ids)}, K, {self.info.action_dim}]"
            raise ValueError(f"actions must be {wanted}, got {list(actions.shape)}")
        together, apart = self._split([env_id for env_id in env_ids if env_id not in self._broken])
        out = ChunkResult.zeros(len(env_ids), actions.shape[1])
        out.failed[:] = True  # until a call brings the row's result
        rows = {env_id: row for row, env_id in enumerate(env_ids)}
        for part in filter(None, [together, *([env_id] for env_id in apart)]):
            index = [rows[env_id] for env_id in part]
            result = self._call(self._env.step, part, actions if len(part) == len(actions) else actions[index])
            if isinstance(result, _Raised):
                self._broken |= set(part)
                out.lost[index] = len(part) > 1 and not self.info.steps_together
            else:
                out.put(index, result.to("cpu"))
        self._learn(env_ids, out)
        return out

    def observe(self, env_ids: Sequence[int], out: Observation) -> Sequence[int] | None:
        """As `VecEnv.observe`; rows of episodes that broke the simulator keep what they held."""
        if not self._broken.intersection(env_ids) and not self._split(env_ids)[1]:
            unseen = self._call(self._env.observe, env_ids, out)
            if not isinstance(unseen, _Raised):
                return unseen
        return [row for row, env_id in enumerate(env_ids) if not self._see(env_id, out, row)] or None

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        """As `VecEnv.frame`."""
        image = _Raised() if env_id in self._broken else self._call(self._env.frame, env_id, camera, size)
        if isinstance(image, _Raised):
            raise SimulatorFailed("the simulator of this episode broke, so there is no frame of it")
        return image

    def new_observation(self, rows: int) -> Observation:
        """As `VecEnv.new_observation`."""
        return self._env.new_observation(rows)

    def close(self) -> None:
        """As `VecEnv.close`."""
        self._env.close()

    def _split(self, env_ids: Sequence[int]) -> tuple[list[int], list[int]]:
        """The envs of a call that go together, and those that go one by one."""
        apart: list[int] = []
        if self._suspects and not self.info.steps_together:
            apart = [env_id for env_id in env_ids if self._specs.get(env_id) in self._suspects]
        return [env_id for env_id in env_ids if env_id not in apart], apart

    def _learn(self, env_ids: Sequence[int], result: ChunkResult) -> None:
        """Suspect the episodes that were lost, and no more those that came to their end."""
        for row in result.lost.nonzero().flatten().tolist():
            self._suspects.add(self._specs[env_ids[row]])
        if self._suspects:
            ended = (result.terminated | result.truncated) & ~result.failed
            self._suspects -= {self._specs[env_ids[row]] for row in ended.nonzero().flatten().tolist()}

    def _see(self, env_id: int, out: Observation, row: int) -> bool:
        """Fill one row; whether that could be done."""
        one = out.rows(slice(row, row + 1))
        unseen = _Raised() if env_id in self._broken else self._call(self._env.observe, [env_id], one)
        if isinstance(unseen, _Raised):
            self._broken.add(env_id)
            return False
        out.instruction[row] = one.instruction[0]  # the only part of a slice that is a copy
        return not unseen

    def _call(self, method: Callable[..., T], *arguments: Any) -> T | _Raised:
        """Call the simulator; what it raises is logged, once for each text."""
        try:
            return method(*arguments)
        except _NOT_THE_EPISODES_DOING:
            raise
        except Exception as error:
            if not self.info.repeatable:
                raise
            if (text := f"{type(error).__name__}: {error}") not in self._said:
                self._said.add(text)
                _log.warning("The simulator broke: its episode fails, the others go on.", exc_info=True)
            return _Raised()

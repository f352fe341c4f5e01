"""A vector env that an id of gymnasium brings itself, behind the VecEnv contract: one object steps all envs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from embodied_rl.errors import UserError
from embodied_rl.sim.checks import check_counts, check_env_ids
from embodied_rl.sim.gymnasium.actions import action_map
from embodied_rl.sim.gymnasium.batches import device_of, in_host, read_rows, row_of, said_of, successes
from embodied_rl.sim.gymnasium.load import (
    RGB,
    SUITE,
    draw,
    drawing_options,
    env_info,
    horizon_of,
    opening,
    spec_of,
    squared,
)
from embodied_rl.sim.gymnasium.probe import (
    INSTRUCTION_ATTRIBUTES,
    INSTRUCTION_KEYS,
    Probed,
    close,
    one_line,
    reset_seed,
)
from embodied_rl.sim.gymnasium.spaces import ArrayObservation, ReadOptions, layout_of
from embodied_rl.sim.stepping import bounded_actions
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from embodied_rl.vec_env import SimulatorFailed

_log = logging.getLogger("embodied_rl.gymnasium")


class VectorEntryVecEnv:
    """`VecEnv` over the vector env that an id's `vector_entry_point` makes.

    It needs resets of some rows, by `options={"reset_mask": bool [N]}` with a seed a row. `vector_probe` finds out
    whether it has them, and what follows from them. A step moves all rows: a running episode that `step` does not name
    is given up, and rows whose episode is over move on unseen until they are reset. Everything in an episode follows
    from `EpisodeSpec.init_state`, also what its steps draw. Observations may be arrays or tensors on any device; they
    come to host memory, and actions go where observations came from.

    A row fails alone where what it gives is not finite. Where the vector env itself raises, all that ran is lost, and
    it is made anew. All else is as in `GymnasiumVecEnv`.

    Args:
        name: as `gymnasium.make_vec` takes it.
        num_envs: rows.
        read: as of `GymnasiumVecEnv`.

    Attributes:
        told_success: whether an info has said of success, one way or the other.

    Raises:
        UserError: It can't be made, its spaces are not supported, or it raises as it is first reset.

    Example:
        >>> env = VectorEntryVecEnv("my_package/Batched-v0", num_envs=1024)
    """

    def __init__(self, name: str, num_envs: int, read: ReadOptions | None = None) -> None:
        self.num_envs, self.told_success, self._told_broken = num_envs, False, False
        self._name, self._task, self._read = name, f"{SUITE}/{name}", read or ReadOptions()
        self._horizon, self._seeds = horizon_of(name), [reset_seed(0)] * num_envs
        self._env: Any = self._open()  # None once it raised, until the next reset
        env = self._env
        try:
            self._actions = action_map(env.single_action_space, name, own_units=self._read.own_units)
            self._layout = layout_of(env.single_observation_space, self._read)
            self._space = batch_space(env.single_observation_space, num_envs)
            observation, infos = self._reset_all()
            words = self._instruction(infos, 0)
            self._device, self._mode = device_of(observation), env.metadata.get("autoreset_mode")
        except BaseException:
            close(env)
            raise
        self.info = replace(
            env_info(
                self._layout, self._actions, self._read, env.metadata, self._horizon, [Probed(False, True, words)]
            ),
            simulator=f"gymnasium {gymnasium.__version__}, {type(env.unwrapped).__name__}",
            steps_together=True,
        )
        self._seen = self.info.new_observation(num_envs)
        self._steps = np.zeros(num_envs, np.int32)
        self._held, self._live, self._sound, self._ended, self._still = np.zeros((5, num_envs), np.bool_)

    def _open(self) -> VectorEnv[Any, Any, Any]:
        entry = spec_of(self._name).vector_entry_point
        with opening(self._name):
            env = gymnasium.make_vec(
                self._name, self.num_envs, vectorization_mode="vector_entry_point", **drawing_options(entry)
            )
        if not isinstance(env, VectorEnv) or env.num_envs != self.num_envs:
            raise UserError(f"{self._name}: its vector_entry_point makes no VectorEnv of {self.num_envs} envs.")
        return env

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """As `VecEnv.reset`."""
        check_env_ids(env_ids, self.num_envs)
        check_counts(env_ids, episodes)
        for row, spec in zip(env_ids, episodes, strict=True):
            if spec.task != self._task:
                raise ValueError(f"there is no task '{spec.task}' here")
            self._seeds[row] = reset_seed(spec.init_state)
        if not env_ids:
            return
        rows = np.array(env_ids, np.intp)
        self._live[rows] = self._sound[rows] = False  # until it is done
        observation, infos = self._reset(rows)
        seen, self._sound[rows] = read_rows(self._layout, self._space, observation, rows)
        self._keep(rows, seen)
        for row in env_ids:
            self._seen.instruction[row] = self._read.instruction or self._instruction(infos, row) or self._name
        self._steps[rows] = 0
        self._held[rows] = self._live[rows] = self._still[rows] = True

    def _reset_all(self) -> tuple[Any, dict[str, Any]]:
        try:
            return self._env.reset(seed=list(self._seeds))
        except Exception as error:
            raise UserError(f"{self._name} can't be reset by a seed for each row: {one_line(error)}") from error

    def _reset(self, rows: Array) -> tuple[Any, dict[str, Any]]:
        """Reset the env at these rows, each by its seed."""
        if self._env is None:
            self._env = self._open()
            self._reset_all()
        mask = np.zeros(self.num_envs, np.bool_)
        mask[rows] = True
        found = self._env.reset(seed=list(self._seeds), options={"reset_mask": mask})
        self._ended[rows] = False
        return found

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """As `VecEnv.step`; running episodes that `env_ids` does not name are given up."""
        array = bounded_actions(actions, len(env_ids), self.info)
        check_env_ids(env_ids, self.num_envs)
        rows = np.array(env_ids, np.intp)
        if not self._live[rows].all():
            raise ValueError("an env holds no running episode: it ended, or a step that did not name it gave it up")
        self._live[:] = False
        self._live[rows] = self._sound[rows]
        out = ChunkResult.zeros(*array.shape[:2])
        broken = torch.from_numpy(~self._sound[rows])
        out.failed |= broken
        out.steps_taken += broken.int()
        for k in range(array.shape[1]):
            running = np.flatnonzero(self._live[rows])
            if not running.size:
                break
            full = np.zeros((self.num_envs, self.info.action_dim), np.float32)  # rows without an episode get zeros
            full[rows[running]] = array[running, k]
            try:
                self._advance(full, rows[running], running, out, k)
            except Exception:
                self.close()  # the next reset opens another
                raise
        return out

    def _advance(self, actions: Array, rows: Array, index: Array, out: ChunkResult, k: int) -> None:
        """Step all rows by `actions`, float32 [N, A], and book it for those that run; index: their rows of `out`."""
        if self._mode is AutoresetMode.DISABLED and self._ended.any():
            self._reset(np.flatnonzero(self._ended))  # a step would be an error
        converted = self._actions.convert(actions)
        found = self._env.step(converted if self._device is None else torch.from_numpy(converted).to(self._device))
        seen, sound = read_rows(self._layout, self._space, found[0], rows)
        reward, terminated, truncated = (np.asarray(in_host(part)) for part in found[1:4])
        if not (reward.shape == terminated.shape == truncated.shape == (self.num_envs,)):
            raise ValueError(f"the shapes of rewards and ends must be [{self.num_envs}]")
        self._ended = (terminated == 1) | (truncated == 1)
        success, said, clear = successes(found[4], rows)
        for row in np.flatnonzero(self._ended[rows]) if self._mode is AutoresetMode.SAME_STEP else ():
            last = self._layout.read(row_of(found[4]["final_obs"], rows[row]))  # the row shows the next episode already
            seen.images[row], seen.proprio[row], seen.state[row], sound[row] = (
                last.images,
                last.proprio,
                last.state,
                True,
            )
            if "final_info" in found[4]:
                success[row], said[row], clear[row] = successes(found[4]["final_info"], rows[[row]])
        self.told_success |= bool(said.any())
        reward, terminated, truncated = reward[rows], terminated[rows], truncated[rows]
        sound &= clear & np.isfinite(reward) & np.isin(terminated, (0, 1)) & np.isin(truncated, (0, 1))
        self._steps[rows] += 1
        over, late = terminated == 1, (truncated == 1) | (self._steps[rows] >= self._horizon)
        self._keep(rows[sound], seen, sound)
        self._live[rows] = sound & ~(over | late)
        self._still[:] = False
        self._still[rows] = True
        if not sound.all() and not self._told_broken:
            self._told_broken = True
            _log.warning("%s broke in envs %s: what it gives is not finite.", self._name, rows[~sound].tolist())
        at = torch.from_numpy(index)
        out.reward[at, k] = torch.from_numpy(np.where(sound, reward, 0).astype(np.float32))
        out.steps_taken[at] += 1
        out.success[at] |= torch.from_numpy(success & sound)
        out.terminated[at] = torch.from_numpy(over & sound)
        out.truncated[at] = torch.from_numpy(late & ~over & sound)
        out.failed[at] = torch.from_numpy(~sound)

    def observe(self, env_ids: Sequence[int], out: Observation) -> Sequence[int] | None:
        """As `VecEnv.observe`."""
        check_env_ids(env_ids, self.num_envs)
        rows = np.array(env_ids, np.intp)
        if not self._held[rows].all():
            raise ValueError("an env holds no episode: reset it first")
        sound = np.flatnonzero(self._sound[rows])
        for name in ("images", "proprio", "state"):
            if (target := getattr(out, name)) is not None:
                target[sound] = getattr(self._seen, name)[rows[sound]]
        out.instruction[: len(rows)] = [self._seen.instruction[row] for row in rows]
        return np.flatnonzero(~self._sound[rows]).tolist() or None

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        """As `GymnasiumVecEnv.frame`.

        Raises:
            NotImplementedError: It draws nothing, or no longer what is asked for, since all rows move together.
            SimulatorFailed: It broke before it showed anything, or as it drew.
        """
        check_env_ids([env_id], self.num_envs)
        if not self._sound[env_id]:
            raise SimulatorFailed(f"{self._name} broke before it showed anything.")
        if camera in self._layout.cameras:
            return squared(self._seen.images[env_id, self._layout.cameras.index(camera)], size)
        env, gone = self._env, self._mode is AutoresetMode.SAME_STEP or not self._still[env_id]
        if env is None or env.render_mode != RGB or gone:
            raise NotImplementedError(f"{self._name} draws no pictures of the end of an episode.")
        return draw(lambda: in_host(env.render()[env_id]), self._name, size)

    def new_observation(self, rows: int) -> Observation:
        """As `VecEnv.new_observation`."""
        return self.info.new_observation(rows)

    def close(self) -> None:
        """Close the vector env."""
        self._live[:] = self._still[:] = False
        if self._env is not None:
            close(self._env)
            self._env = None

    def _keep(self, rows: Array, seen: ArrayObservation, which: Any = slice(None)) -> None:
        for name in ("images", "proprio", "state"):
            if (target := getattr(self._seen, name)) is not None:
                target[rows] = torch.from_numpy(getattr(seen, name)[which]).reshape(target[rows].shape)

    def _instruction(self, infos: dict[str, Any], row: int) -> str:
        """What is to be done in a row's episode; '' where neither infos nor the env say it in words."""
        said = [said_of(infos, key, row) for key in INSTRUCTION_KEYS]
        for name in INSTRUCTION_ATTRIBUTES:
            value = getattr(self._env.unwrapped, name, None)
            said.append(value[row] if isinstance(value, list | tuple) else value)
        return next((words.strip() for words in said if isinstance(words, str) and words.strip()), "")

"""Single gymnasium environments behind the VecEnv contract, one an env id."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import torch

from embodied_rl.errors import UserError
from embodied_rl.sim.checks import check_counts, check_env_ids
from embodied_rl.sim.gymnasium.actions import ActionMap, action_map
from embodied_rl.sim.gymnasium.load import RGB, SUITE, draw, env_info, horizon_of, make, squared
from embodied_rl.sim.gymnasium.probe import Probed, advance, begin, close, one_line, probe
from embodied_rl.sim.gymnasium.spaces import ArrayObservation, ReadOptions, layout_of
from embodied_rl.sim.stepping import bounded_actions
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from embodied_rl.utils.suites import as_names
from embodied_rl.vec_env import SimulatorFailed

_log = logging.getLogger("embodied_rl.gymnasium")


@dataclass(slots=True)
class _SubEnv:
    """What an env id holds now.

    seen: its last sound observation; None where its reset broke. instruction: of its episode; '' where none is said.
    over: its episode has ended. lost: it raised, and is made anew before the next episode.
    """

    env: gymnasium.Env[Any, Any]
    task: str
    seen: ArrayObservation | None = None
    instruction: str = ""
    steps: int = 0
    over: bool = True
    lost: bool = False


class GymnasiumVecEnv:
    """`VecEnv` over `gymnasium.make(id)`: one single environment an env id, stepped one after the other.

    A task is called 'gymnasium/ID'. Everything that an episode begins with follows from `EpisodeSpec.init_state`, and
    what its steps draw from `EpisodeSpec.seed`, as far as the environment uses gymnasium's `np_random`. The horizon is
    the id's `max_episode_steps`, or 1,000 where it names none. Success is what info says under `is_success` or
    `success`, whenever it says so; `EnvInfo.has_success` holds where all tasks said so in an episode of random actions
    as they were opened. `EnvInfo.repeatable` holds where episodes of one seed were the same then.

    Images may stand anywhere in a Dict of Dicts, the robot's own numbers beside them under `agent_pos`, `state` or
    `observation.state`, as LeRobot's environments have them; all other numbers are the state. The instruction is
    `info["task"]` or `info["instruction"]` of the reset, or the environment's `task_description` or `task`.

    An episode fails, as a simulator that breaks, where the environment raises, where what it shows is not of the form
    that it declares or not finite, or where its success is neither 0 nor 1. Why is said once, as a warning of the
    logger `embodied_rl.gymnasium`.

    Args:
        ids: as `gymnasium.make` takes them, also MODULE:ID; their spaces must be equal.
        num_envs: episodes that run at the same time.
        read: which images and numbers are read, and what the environment does not say.

    Raises:
        UserError: There is no such id, something that it needs is not installed, or its spaces are not supported.

    Example:
        >>> env = GymnasiumVecEnv(["Pendulum-v1"], num_envs=8)
        >>> env.reset([0], [EpisodeSpec(0, "gymnasium/Pendulum-v1", init_state=3, seed=1)])
    """

    def __init__(self, ids: str | Sequence[str], num_envs: int, read: ReadOptions | None = None) -> None:
        ids, self._read = as_names(ids), read or ReadOptions()
        if not ids or num_envs < 1:
            raise UserError("an environment needs at least one task and one env")
        self.num_envs = num_envs
        self._ids = {f"{SUITE}/{name}": name for name in ids}
        self._horizons = {task: horizon_of(name) for task, name in self._ids.items()}
        opened = [make(name) for name in ids]
        try:
            space, actions = _shared_spaces(ids, opened)
            self._actions: ActionMap = action_map(actions, ids[0], own_units=self._read.own_units)
            self._layout = layout_of(space, self._read)
            metadata = opened[0].metadata
        finally:
            for env in opened:
                close(env)
        probed = [self._probe(task) for task in self._ids]
        self._said: set[str] = set()
        self.info = env_info(self._layout, self._actions, self._read, metadata, max(self._horizons.values()), probed)
        self._sub_envs: list[_SubEnv | None] = [None] * num_envs

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """As `VecEnv.reset`."""
        check_env_ids(env_ids, self.num_envs)
        check_counts(env_ids, episodes)
        for env_id, spec in zip(env_ids, episodes, strict=True):
            sub_env = self._sub_env(env_id, spec.task)
            sub_env.seen, sub_env.steps, sub_env.over = None, 0, False
            try:
                begun = begin(sub_env.env, self._layout, spec.init_state, spec.seed)
                sub_env.seen, sub_env.instruction = begun.seen, begun.instruction
            except UserError:
                raise
            except Exception as error:  # noqa: BLE001 - an env raises what it likes
                self._lose(sub_env, f"initial state {spec.init_state}, reset", error)

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """As `VecEnv.step`."""
        array = bounded_actions(actions, len(env_ids), self.info)
        check_env_ids(env_ids, self.num_envs)
        running = [self._sub_envs[env_id] for env_id in env_ids]
        for env_id, sub_env in zip(env_ids, running, strict=True):
            if sub_env is None or sub_env.over:
                raise ValueError(f"env {env_id} holds no running episode: reset it first")
        out = ChunkResult.zeros(len(running), array.shape[1])
        for row, sub_env in enumerate(running):
            assert sub_env is not None
            self._run(sub_env, array[row], out, row)
        return out

    def observe(self, env_ids: Sequence[int], out: Observation) -> Sequence[int] | None:
        """As `VecEnv.observe`. The instruction is the env's id where neither the env nor its user says another."""
        broken: list[int] = []
        for row, env_id in enumerate(env_ids):
            sub_env = self._held(env_id)
            out.instruction[row] = self._read.instruction or sub_env.instruction or self._ids[sub_env.task]
            if sub_env.seen is None:
                broken.append(row)
                continue
            out.images[row] = torch.from_numpy(sub_env.seen.images).reshape(out.images[row].shape)
            out.proprio[row] = torch.from_numpy(sub_env.seen.proprio)
            if out.state is not None:
                out.state[row] = torch.from_numpy(sub_env.seen.state)
        return broken or None

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        """The image of that name that was last seen; of `camera` '' what the environment draws as `rgb_array`.

        Either is scaled, with black bars, to a square.

        Raises:
            NotImplementedError: It draws nothing, or something that drawing needs is not installed.
            SimulatorFailed: It raised something else.
        """
        sub_env = self._held(env_id)
        name = self._ids[sub_env.task]
        if camera in self._layout.cameras:
            if sub_env.seen is None:
                raise SimulatorFailed(f"{name} broke before it showed anything.")
            return squared(sub_env.seen.images[self._layout.cameras.index(camera)], size)
        if sub_env.env.render_mode != RGB:
            raise NotImplementedError(f"{name} draws no pictures.")
        return draw(sub_env.env.render, name, size)

    def new_observation(self, rows: int) -> Observation:
        """As `VecEnv.new_observation`."""
        return self.info.new_observation(rows)

    def close(self) -> None:
        """Close every environment."""
        for env_id, sub_env in enumerate(self._sub_envs):
            if sub_env is not None:
                close(sub_env.env)
                self._sub_envs[env_id] = None

    def _sub_env(self, env_id: int, task: str) -> _SubEnv:
        """What `env_id` holds, with an env of `task`; another task's is closed."""
        if task not in self._ids:
            raise ValueError(f"there is no task '{task}' here")
        sub_env = self._sub_envs[env_id]
        if sub_env is not None and sub_env.task == task and not sub_env.lost:
            return sub_env
        if sub_env is not None:
            close(sub_env.env)
        sub_env = self._sub_envs[env_id] = _SubEnv(make(self._ids[task]), task)
        return sub_env

    def _held(self, env_id: int) -> _SubEnv:
        check_env_ids([env_id], self.num_envs)
        sub_env = self._sub_envs[env_id]
        if sub_env is None:
            raise ValueError(f"env {env_id} holds no episode: reset it first")
        return sub_env

    def _run(self, sub_env: _SubEnv, chunk: Array, out: ChunkResult, row: int) -> None:
        """Run `chunk`, float32 [K, A], until the episode ends."""
        for k, action in enumerate(chunk):
            sub_env.steps += 1
            out.steps_taken[row] = k + 1
            try:
                if sub_env.seen is None:
                    raise SimulatorFailed("its reset broke")
                taken = advance(sub_env.env, self._layout, self._actions.convert(action))
            except UserError:
                raise
            except Exception as error:  # noqa: BLE001 - an env raises what it likes
                if sub_env.seen is not None:
                    self._lose(sub_env, f"control step {sub_env.steps}", error)
                sub_env.over = True
                out.failed[row] = True
                return
            sub_env.seen = taken.seen
            out.reward[row, k] = taken.reward
            out.success[row] |= bool(taken.success)
            out.terminated[row] = taken.terminated
            out.truncated[row] = not taken.terminated and (
                taken.truncated or sub_env.steps >= self._horizons[sub_env.task]
            )
            if taken.terminated or out.truncated[row]:
                sub_env.over = True
                return

    def _probe(self, task: str) -> Probed:
        name = self._ids[task]
        try:
            return probe(lambda: make(name), self._layout, self._actions, self._horizons[task])
        except UserError as error:
            raise UserError(f"{name}: {error}") from error

    def _lose(self, sub_env: _SubEnv, where: str, error: Exception) -> None:
        """The env raised, or gave what it should not: say it once, and trust it no more."""
        sub_env.lost = True
        text = one_line(error)
        if text not in self._said:
            self._said.add(text)
            _log.warning("%s broke (%s): %s: %s", self._ids[sub_env.task], where, type(error).__name__, text)


def _shared_spaces(ids: Sequence[str], envs: Sequence[gymnasium.Env[Any, Any]]) -> tuple[Any, Any]:
    """The observation and action space of all of `envs`."""
    first = envs[0]
    for name, env in zip(ids, envs, strict=True):
        if (env.observation_space, env.action_space) != (first.observation_space, first.action_space):
            raise UserError(f"{ids[0]} and {name} have other observations or actions: train them apart.")
    return first.observation_space, first.action_space

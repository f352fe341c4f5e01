"""Single gymnasium environments behind the VecEnv contract, one an env id."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import cv2
import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec, load_env_creator

from embodied_rl.errors import UserError
from embodied_rl.sim.checks import check_counts, check_env_ids
from embodied_rl.sim.gymnasium.actions import ActionMap, action_map
from embodied_rl.sim.gymnasium.probe import Probed, advance, begin, close, one_line, probe
from embodied_rl.sim.gymnasium.spaces import ArrayObservation, ReadOptions, layout_of
from embodied_rl.sim.stepping import bounded_actions
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from embodied_rl.utils.suites import as_names
from embodied_rl.vec_env import EnvInfo, SimulatorFailed

SUITE = "gymnasium"
_RGB = "rgb_array"
DEFAULT_HORIZON = 1000
"""Control steps of an episode whose id names no `max_episode_steps`."""
_DEFAULT_HZ = 30.0
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
        self._horizons = {task: _horizon(name) for task, name in self._ids.items()}
        opened = [make(name) for name in ids]
        try:
            space, actions = _shared_spaces(ids, opened)
            self._actions: ActionMap = action_map(actions, ids[0], own_units=self._read.own_units)
            self._layout = layout_of(space, self._read)
            hz = self._read.control_hz or _control_rate(opened[0])
        finally:
            for env in opened:
                close(env)
        probed = [self._probe(task) for task in self._ids]
        self._said: set[str] = set()
        self.info = EnvInfo(
            backend="gymnasium",
            suite=SUITE,
            simulator=f"gymnasium {gymnasium.__version__}",
            renderer=_RGB,
            cameras=self._layout.cameras,
            image_shape=self._layout.image_shape,
            proprio_dim=self._layout.proprio_dim,
            state_dim=self._layout.state_dim,
            action_dim=self._actions.dim,
            action_low=self._actions.low,
            action_high=self._actions.high,
            control_hz=hz,
            max_episode_steps=max(self._horizons.values()),
            has_success=all(found.has_success for found in probed),
            repeatable=all(found.repeatable for found in probed),
            instructed=bool(self._read.instruction) or all(found.instruction for found in probed),
            reads=tuple(self._layout.describe()),
        )
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
            return _squared(sub_env.seen.images[self._layout.cameras.index(camera)], size)
        if sub_env.env.render_mode != _RGB:
            raise NotImplementedError(f"{name} draws no pictures.")
        try:
            with _headless_gl():
                image = sub_env.env.render()
            return _squared(image, size)
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            raise NotImplementedError(f"{name} can't be drawn: {one_line(error)}") from error
        except Exception as error:
            raise SimulatorFailed(f"{name} broke while it was drawn: {one_line(error)}") from error

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


def make(name: str) -> gymnasium.Env[Any, Any]:
    """The environment of an id, without a time limit of its own; it draws as `rgb_array` where it can.

    Raises:
        UserError: There is no such id, or something that it needs is not installed.
    """
    spec = spec_of(name)
    try:  # the entry point's module may need what is not installed
        drawing = {"render_mode": _RGB} if _draws(spec) else {}  # not all environments take a render_mode
        return gymnasium.make(name, max_episode_steps=-1, disable_env_checker=True, **drawing)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise UserError(f"{name} needs something that is not installed: {one_line(error)}") from error
    except gymnasium.error.Error as error:
        raise UserError(f"gymnasium can't make '{name}': {one_line(error)}") from error
    except Exception as error:
        raise UserError(f"'{name}' can't be made: it raises {type(error).__name__}: {one_line(error)}") from error


def spec_of(name: str) -> EnvSpec:
    """What gymnasium knows of an id, as `gymnasium.make` takes it.

    Of NAMESPACE/ID, the package NAMESPACE is imported where gymnasium does not know it yet: it makes its ids known.

    Raises:
        UserError: There is no such id.
    """
    module, colon, plain = name.rpartition(":")
    if colon and (not module or module.startswith(".")):
        raise UserError(f"gymnasium has no {name!r}: write ID, or MODULE:ID with the full name of a module.")
    namespace = plain.partition("/")[0]
    try:
        if colon:
            import_module(module)
        elif "/" in plain and plain not in gymnasium.registry and namespace.isidentifier() and find_spec(namespace):
            import_module(namespace)
        return gymnasium.spec(plain)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise UserError(f"gymnasium has no {name!r}: {one_line(error)}") from error


def _draws(spec: EnvSpec) -> bool:
    made_by = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    metadata = getattr(made_by, "metadata", {})
    return _RGB in metadata.get("render_modes", ())


def _horizon(name: str) -> int:
    return spec_of(name).max_episode_steps or DEFAULT_HORIZON


def _shared_spaces(ids: Sequence[str], envs: Sequence[gymnasium.Env[Any, Any]]) -> tuple[Any, Any]:
    """The observation and action space of all of `envs`."""
    first = envs[0]
    for name, env in zip(ids, envs, strict=True):
        if (env.observation_space, env.action_space) != (first.observation_space, first.action_space):
            raise UserError(f"{ids[0]} and {name} have other observations or actions: train them apart.")
    return first.observation_space, first.action_space


@contextmanager
def _headless_gl() -> Iterator[None]:
    """Let gymnasium's MuJoCo renderer take EGL where there is no screen: its own choice ends the process there."""
    if "MUJOCO_GL" in os.environ or "DISPLAY" in os.environ:
        yield
        return
    os.environ["MUJOCO_GL"] = "egl"
    try:
        yield
    finally:
        del os.environ["MUJOCO_GL"]


def _control_rate(env: gymnasium.Env[Any, Any]) -> float:
    """Control steps a second as `metadata` says; the usual rate where it says nothing that can be one."""
    try:
        said = float(env.metadata.get("render_fps"))  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError):
        return _DEFAULT_HZ
    return said if 0 < said < math.inf else _DEFAULT_HZ


def _squared(drawn: Any, size: int) -> Array:
    image = np.asarray(drawn)
    if image.dtype.kind not in "iuf" or image.ndim != 3 or image.shape[2] not in (3, 4) or not image.size:
        raise ValueError(f"no picture [H, W, 3], but {image.dtype} {list(image.shape)}")
    height, width = image.shape[:2]
    scale = size / max(height, width)
    small = (max(1, round(width * scale)), max(1, round(height * scale)))
    shrunk = cv2.resize(np.ascontiguousarray(image[..., :3]), small, interpolation=cv2.INTER_AREA)
    out = np.zeros((size, size, 3), np.uint8)
    top, left = (size - small[1]) // 2, (size - small[0]) // 2
    out[top : top + small[1], left : left + small[0]] = shrunk
    return out

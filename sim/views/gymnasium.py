"""Any VecEnv as a `gymnasium.Env`, or as a `gymnasium.vector.VectorEnv` whose episodes follow each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.utils.seeding import np_random as new_generator
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from embodied_rl.types import Array, EpisodeSpec, Observation
from embodied_rl.vec_env import EnvInfo, SimulatorFailed, VecEnv

TaskStates = Mapping[str, Sequence[int]]
Parts = dict[str, Array]
"""An observation: 'images' uint8 [V, H, W, 3], 'proprio' float32 [P], 'state' float32 [S]; each where there is one."""
RENDER_SIZE = 256
_RGB = "rgb_array"
_SEEDS = 2**63 - 1


class GymnasiumEnv(gymnasium.Env[Parts, Array]):
    """Env 0 of a `VecEnv`, one control step at a time; episodes are drawn from `states` by `reset(seed=...)`.

    info has 'is_success', 'instruction', 'task', 'init_state', and 'failed', which is True where the simulator broke:
    such an episode is truncated at the last sound observation and should not be learned from. What else is drawn,
    `reset(options={'task': NAME, 'init_state': ROW})` chooses.

    Args:
        env: with at least one env; closed by `close`.
        states: by task, the rows of initial states to draw from.
        render_mode: None or 'rgb_array', the first camera at 256 pixels.

    Example:
        >>> env = GymnasiumEnv(vec_env, {"tabletop_spatial/...": range(50)})
        >>> observation, info = env.reset(seed=0)
        >>> observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
    """

    metadata: dict[str, Any] = {"render_modes": [_RGB], "render_fps": 20}  # noqa: RUF012 - as gymnasium has it

    def __init__(self, env: VecEnv, states: TaskStates, *, render_mode: str | None = None) -> None:
        self.render_mode = _checked(render_mode)
        self.metadata = {**self.metadata, "render_fps": env.info.control_hz}
        self.observation_space = observation_space(env.info)  # type: ignore[assignment]
        self.action_space = action_space(env.info)
        self._env, self._states = env, states
        self._episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Parts, dict[str, Any]]:
        """Begin an episode; the same seed begins the same one.

        Raises:
            SimulatorFailed: The simulator breaks as it begins.
        """
        super().reset(seed=seed, options=options)
        spec = draw_episode(self._states, self.np_random, self._episodes, options)
        self._episodes += 1
        self._env.reset([0], [spec])
        if not self._look():
            raise broken(spec)
        self._about = {"instruction": self._instruction, "task": spec.task, "init_state": spec.init_state}
        return self._observation(), {**self._about, "is_success": False, "failed": False}

    def step(self, action: Array) -> tuple[Parts, float, bool, bool, dict[str, Any]]:
        """Run one control step, float32 [A]."""
        result = self._env.step([0], one_step(np.asarray(action)[None]))
        failed = not self._look() or bool(result.failed[0])
        info = {**self._about, "is_success": bool(result.success[0]), "failed": failed}
        terminated, truncated = bool(result.terminated[0]) and not failed, bool(result.truncated[0])
        return self._observation(), float(result.reward[0, 0]), terminated, truncated or failed, info

    def render(self) -> Array | None:  # type: ignore[override]
        """uint8 [256, 256, 3] with render_mode 'rgb_array'."""
        return None if self.render_mode is None else _frame(self._env, 0)

    def close(self) -> None:
        """Close the simulator."""
        self._env.close()

    def _look(self) -> bool:
        """Keep what the env shows now; False where its simulator broke, and what it showed last is kept."""
        out = self._env.new_observation(1)
        if self._env.observe([0], out):
            return False
        self._seen, self._instruction = parts_of(out), out.instruction[0]
        return True

    def _observation(self) -> Parts:
        return {name: values[0].copy() for name, values in self._seen.items()}


class GymnasiumVectorEnv(gymnasium.vector.VectorEnv[dict[str, Array], Array, Array]):
    """All envs of a `VecEnv` in step; an episode that ends is followed by the next one in the same step.

    That is gymnasium's `AutoresetMode.SAME_STEP`: what the ended episode showed last is in info['final_obs'], its info
    in info['final_info']. Env i of `reset(seed=s)` runs the episodes of a `GymnasiumEnv` of seed s + i.

    Args:
        env: closed by `close`.
        states: by task, the rows of initial states to draw from.
        render_mode: None or 'rgb_array', the first camera of each env at 256 pixels.

    Example:
        >>> envs = gymnasium.make_vec("embodied_rl/tabletop_spatial-v0", num_envs=8)
        >>> observations, infos = envs.reset(seed=0)
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - as gymnasium has it
        "render_modes": [_RGB],
        "render_fps": 20,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }
    autoreset_mode = AutoresetMode.SAME_STEP

    def __init__(self, env: VecEnv, states: TaskStates, *, render_mode: str | None = None) -> None:
        self.render_mode = _checked(render_mode)
        self.metadata = {**self.metadata, "render_fps": env.info.control_hz}
        self.num_envs = env.num_envs
        self.single_observation_space = observation_space(env.info)  # type: ignore[assignment]
        self.single_action_space = action_space(env.info)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._env, self._states = env, states
        self._randoms = [new_generator()[0] for _ in range(self.num_envs)]
        self._episodes = [0] * self.num_envs
        self._about: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        self._seen = parts_of(env.new_observation(self.num_envs))

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Begin an episode in every env, or in those of options['reset_mask'], bool [N]; others stay as they are.

        Raises:
            SimulatorFailed: A simulator breaks as its episode begins; also of `step`.
        """
        options = dict(options or {})
        mask = np.asarray(options.pop("reset_mask", np.ones(self.num_envs, bool)))
        if mask.shape != (self.num_envs,):
            raise ValueError(f"reset_mask must be bool [{self.num_envs}], got {mask.shape}")
        which = np.flatnonzero(mask).tolist()
        for env_id, number in zip(range(self.num_envs), seeds_of(seed, self.num_envs), strict=True):
            if number is not None and mask[env_id]:
                self._randoms[env_id] = new_generator(number)[0]
                self._episodes[env_id] = 0
        self._begin(which, options)
        self._look([env_id for env_id in range(self.num_envs) if not mask[env_id]])
        infos: dict[str, Any] = {}
        for env_id in which:
            infos = self._add_info(infos, {**self._about[env_id], "is_success": False, "failed": False}, env_id)
        return self._observations(), infos

    def step(self, actions: Array) -> tuple[dict[str, Array], Array, Array, Array, dict[str, Any]]:
        """Run one control step in every env, float32 [N, A]."""
        result = self._env.step(range(self.num_envs), one_step(np.asarray(actions))).to("cpu")
        failed = result.failed.numpy().copy()
        failed[self._look(range(self.num_envs))] = True
        terminated, truncated = result.terminated.numpy() & ~failed, result.truncated.numpy() | failed
        ended = np.flatnonzero(terminated | truncated).tolist()
        infos: dict[str, Any] = {}
        last = [
            {**about, "is_success": bool(success), "failed": bool(broke)}
            for about, success, broke in zip(self._about, result.success, failed, strict=True)
        ]
        for env_id in ended:
            final = {name: values[env_id].copy() for name, values in self._seen.items()}
            infos = self._add_info(infos, {"final_obs": final, "final_info": last[env_id]}, env_id)
        self._begin(ended, {})
        for env_id in ended:
            last[env_id] = {**self._about[env_id], "is_success": False, "failed": False}
        for env_id, info in enumerate(last):
            infos = self._add_info(infos, info, env_id)
        return self._observations(), result.reward[:, 0].double().numpy(), terminated, truncated, infos

    def render(self) -> tuple[Array, ...] | None:  # type: ignore[override]
        """One uint8 [256, 256, 3] an env with render_mode 'rgb_array'."""
        if self.render_mode is None:
            return None
        return tuple(_frame(self._env, env_id) for env_id in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Close the simulator."""
        self._env.close()

    def _begin(self, env_ids: Sequence[int], options: Mapping[str, Any]) -> None:
        if not env_ids:
            return
        specs = [
            draw_episode(self._states, self._randoms[env_id], self._episodes[env_id], options) for env_id in env_ids
        ]
        self._env.reset(env_ids, specs)
        for env_id, spec in zip(env_ids, specs, strict=True):
            self._episodes[env_id] += 1
            self._about[env_id] = {"task": spec.task, "init_state": spec.init_state}
        lost = self._look(env_ids)
        if lost:
            raise broken(specs[env_ids.index(lost[0])])

    def _look(self, env_ids: Sequence[int]) -> list[int]:
        """Keep what these envs show now; returns those whose simulator broke: what they showed last is kept."""
        if not env_ids:
            return []
        out = self._env.new_observation(len(env_ids))
        lost = set(self._env.observe(env_ids, out) or ())
        rows = [row for row in range(len(env_ids)) if row not in lost]
        kept = [env_ids[row] for row in rows]
        for name, values in parts_of(out).items():
            self._seen[name][kept] = values[rows]
        for row, env_id in zip(rows, kept, strict=True):
            self._about[env_id]["instruction"] = out.instruction[row]
        return [env_ids[row] for row in sorted(lost)]

    def _observations(self) -> dict[str, Array]:
        return {name: values.copy() for name, values in self._seen.items()}


def broken(spec: EpisodeSpec) -> SimulatorFailed:
    """What is raised where a simulator breaks before its episode has shown anything."""
    return SimulatorFailed(f"the simulator broke as task '{spec.task}', initial state {spec.init_state}, began: reset.")


def draw_episode(
    states: TaskStates, random: np.random.Generator, number: int, options: Mapping[str, Any] | None
) -> EpisodeSpec:
    """An episode of a task and an initial state of `states`; options: 'task', 'init_state', where they are chosen.

    A task is named in full ('tabletop_goal/turn_on_the_stove') or, where only one has it, by its short name.

    Raises:
        ValueError: Another option is given, or `states` has no such task or row.
    """
    wanted = dict(options or {})
    names = list(states)
    drawn = names[int(random.integers(len(names)))]
    task = _named(wanted.pop("task", drawn), names)
    rows = states[task]
    row, seed = int(rows[int(random.integers(len(rows)))]), int(random.integers(_SEEDS))
    chosen = int(wanted.pop("init_state", row))
    if chosen not in rows:
        raise ValueError(f"task '{task}' has no initial state {chosen} here")
    if wanted:
        raise ValueError(f"unknown reset options: {', '.join(wanted)}")
    return EpisodeSpec(number, task, chosen, seed)


def _named(task: str, names: Sequence[str]) -> str:
    """The one of `names` that `task` is, in full or without its suite."""
    found = [name for name in names if name == task] or [name for name in names if name.partition("/")[2] == task]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"several tasks are called '{task}', name one in full: {', '.join(found)}")
    raise ValueError(f"there is no task '{task}' here: {', '.join(names)}")


def observation_space(info: EnvInfo) -> spaces.Dict:
    """What `parts_of` makes of one row."""
    parts: dict[str, spaces.Space[Any]] = {}
    if info.cameras:
        parts["images"] = spaces.Box(0, 255, (len(info.cameras), *info.image_shape, 3), np.uint8)
    for name, dim in (("proprio", info.proprio_dim), ("state", info.state_dim)):
        if dim:
            parts[name] = spaces.Box(-np.inf, np.inf, (dim,), np.float32)
    return spaces.Dict(parts)


def action_space(info: EnvInfo) -> spaces.Box:
    """The bounds of an action."""
    return spaces.Box(np.array(info.action_low, np.float32), np.array(info.action_high, np.float32))


def parts_of(observation: Observation) -> dict[str, Array]:
    """The arrays of an observation, in host memory; parts without numbers are left out."""
    parts = {"images": observation.images, "proprio": observation.proprio, "state": observation.state}
    return {name: part.cpu().numpy() for name, part in parts.items() if part is not None and part.numel()}


def one_step(values: Array) -> torch.Tensor:
    """float32 [N, A] as [N, 1, A]."""
    return torch.from_numpy(np.ascontiguousarray(values, np.float32))[:, None]


def _frame(env: VecEnv, env_id: int) -> Array:
    return env.frame(env_id, next(iter(env.info.cameras), ""), RENDER_SIZE)


def _checked(render_mode: str | None) -> str | None:
    if render_mode not in (None, _RGB):
        raise ValueError(f"render_mode must be None or '{_RGB}', got {render_mode!r}")
    return render_mode


def seeds_of(seed: int | Sequence[int | None] | None, count: int) -> Sequence[int | None]:
    """A seed for each env, as gymnasium's own vector environments share one out."""
    if seed is None:
        return [None] * count
    if isinstance(seed, int | np.integer):
        return [int(seed) + env_id for env_id in range(count)]
    if len(seed) != count:
        raise ValueError(f"there are {len(seed)} seeds for {count} envs")
    return seed

"""EnvPool's pools: made, read and drawn; what both modes share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.sim.envpool.load import load_envpool, why_no_images
from embodied_rl.sim.envpool.tasks import EnvPoolTask
from embodied_rl.sim.step_reward import RewardMode, StepReward, choose_reward
from embodied_rl.sim.stepping import StepOutcome
from embodied_rl.types import Array
from embodied_rl.vec_env import EnvInfo

CAMERA = "default"
_FREE_CAMERA = -1


def make_pool(task: EnvPoolTask, **options: Any) -> Any:
    """A pool of `task` with gymnasium's API; options: num_envs, batch_size, num_threads, seed, env_seed."""
    options |= {**dict(task.options), "max_episode_steps": task.max_episode_steps}
    return load_envpool().make_gymnasium(task.env_id, render_mode="rgb_array", **options)


def read_reset(found: tuple[Any, dict[str, Any]]) -> Array:
    """The state of one env after its reset, float32 [S]."""
    return flat_state(found[0])[0]


@dataclass(frozen=True, slots=True)
class PoolStep:
    """What a pool returned of one env: its number, its state float32 [S], and the outcome of the step."""

    env_id: int
    state: Array
    outcome: StepOutcome

    def shown(self, before: Array) -> Array:
        """The state to observe: `before`, that of the step before, where this one is not finite."""
        return before if self.outcome.failed else self.state


def read_step(
    found: tuple[Any, Any, Any, Any, dict[str, Any]], task: EnvPoolTask, rewards: Sequence[StepReward]
) -> PoolStep:
    """What `recv` returned of a pool of `task` with batch_size 1; rewards: of each of its envs."""
    observation, rewards_paid, terminated, truncated, info = found
    env_id, state, native = int(info["env_id"][0]), flat_state(observation)[0], float(rewards_paid[0])
    if not (np.isfinite(native) and np.isfinite(state).all()):
        return PoolStep(env_id, state, StepOutcome(0.0, failed=True))
    reward = rewards[env_id]
    success = task.success_key is not None and bool(info[task.success_key][0] > 0.5)
    ended = bool(terminated[0]) or (success and reward.mode != "native")
    late = bool(truncated[0]) and not ended
    paid = reward.pay(native, success, ended=ended, late=late)
    return PoolStep(env_id, state, StepOutcome(paid, success, ended, late))


def flat_state(observation: Any) -> Array:
    """Observations of N envs, an array or a dict of them, as float32 [N, S], in the order of the dict."""
    if not isinstance(observation, dict):
        return np.asarray(observation, np.float32).reshape(len(observation), -1)
    return np.concatenate([flat_state(part) for part in observation.values()], axis=1)


def draw(pool: Any, env_id: int, size: int) -> Array:
    """uint8 [size, size, 3] of one env of the pool; NotImplementedError where pictures can't be drawn."""
    reason = why_no_images()
    if reason is not None:
        raise NotImplementedError(reason)
    return pool._render(np.asarray([env_id], np.int32), size, size, _FREE_CAMERA)[0]


def describe(tasks: Sequence[EnvPoolTask], reward: RewardMode, image_size: int | None, mode: str) -> EnvInfo:
    """The stamp of these tasks; UserError where they don't fit into one env, or pictures can't be drawn."""
    if not tasks:
        raise UserError("an environment needs at least one task")
    if image_size is not None and (reason := why_no_images()) is not None:
        raise UserError(reason)
    first, *others = [_sizes(task) for task in tasks]
    for task, sizes in zip(tasks[1:], others, strict=True):
        if sizes != first:
            raise UserError(f"{tasks[0].name} and {task.name} differ in states or actions: train them one at a time.")
    state_dim, low, high = first
    rewards = {choose_reward(reward, task.success_key is not None, task.name) for task in tasks}
    return EnvInfo(
        backend="envpool",
        suite="+".join(dict.fromkeys(task.suite for task in tasks)),
        simulator=f"envpool {version('envpool')}, {mode}, reward {'+'.join(sorted(rewards))}",
        renderer="none" if image_size is None else "mujoco",
        cameras=() if image_size is None else (CAMERA,),
        image_shape=(image_size or 0, image_size or 0),
        proprio_dim=0,
        state_dim=state_dim,
        action_dim=len(low),
        action_low=low,
        action_high=high,
        control_hz=tasks[0].control_hz,
        max_episode_steps=max(task.max_episode_steps for task in tasks),
        has_success=all(task.success_key is not None for task in tasks),
    )


def _sizes(task: EnvPoolTask) -> tuple[int, tuple[float, ...], tuple[float, ...]]:
    """S, and the bounds of actions."""
    spec = load_envpool().make_spec(task.env_id, **dict(task.options))
    space, actions = spec.observation_space, spec.action_space
    parts = space.spaces.values() if hasattr(space, "spaces") else [space]
    size = sum(int(np.prod(part.shape)) for part in parts)
    return size, tuple(map(float, actions.low)), tuple(map(float, actions.high))

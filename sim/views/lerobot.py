"""A task of a suite in the form that LeRobot's `lerobot-eval` reads: observations, attributes, envs that wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from embodied_rl.sim.views.gymnasium import action_space, one_step, seeds_of
from embodied_rl.types import Array, EpisodeSpec
from embodied_rl.vec_env import EnvInfo, SimulatorFailed, VecEnv

CAMERAS = ("image", "image2")
"""What LeRobot's LIBERO calls the cameras, ours in their order."""
NEW_ROLLOUT = "lerobot_new_rollout"
"""The reset option by which LeRobot says that a reset is not an autoreset. Here none is."""


class LeRobotVectorEnv(gymnasium.vector.VectorEnv[dict[str, Any], Array, Array]):
    """N episodes of one task as a `gymnasium.vector.VectorEnv` in the form that LeRobot's `rollout` steps.

    Observations are {'pixels': {'image': uint8 [N, H, W, 3], ...}, 'agent_pos': float32 [N, P]}; info has 'is_success',
    bool [N]. An env whose episode ended waits until it is reset (gymnasium's `AutoresetMode.DISABLED`): `step` does not
    move it, and repeats its last observation, flags and success, with reward 0.

    The episode of seed s begins in `states[s % len(states)]`: as many seeds in a row run each of them once, whatever N.

    Args:
        open_env: opens the simulator, with `num_envs` envs. The first use calls it, since LeRobot makes the envs of all
            tasks before it runs the first.
        info: of that simulator.
        task: whole name of the task, such as 'libero_spatial/...'.
        states: rows of its initial states.

    Example:
        >>> open_env = functools.partial(erl.make_vec_env, "tabletop_goal", 4, tasks="turn_on_the_stove")
        >>> with open_env() as probe:
        ...     task, states = next(iter(probe.heldout_states.items()))
        >>> env = LeRobotVectorEnv(open_env, probe.info, 4, task, states)
        >>> observation, info = env.reset(seed=[0, 1, 2, 3])
    """

    render_mode = "rgb_array"

    def __init__(
        self, open_env: Callable[[], VecEnv], info: EnvInfo, num_envs: int, task: str, states: Sequence[int]
    ) -> None:
        self.num_envs = num_envs
        self.metadata = {
            "render_modes": ["rgb_array"],
            "render_fps": round(info.control_hz),
            "autoreset_mode": AutoresetMode.DISABLED,
        }
        self._names = CAMERAS[: len(info.cameras)]
        picture = spaces.Box(0, 255, (*info.image_shape, 3), np.uint8)
        self.single_observation_space = spaces.Dict(  # type: ignore[assignment]
            {
                "pixels": spaces.Dict(dict.fromkeys(self._names, picture)),
                "agent_pos": spaces.Box(-np.inf, np.inf, (info.proprio_dim,), np.float32),
            }
        )
        self.single_action_space = action_space(info)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._open_env, self._opened = open_env, None
        self._task, self._states = task, states
        self._seeds = list(range(-num_envs, 0))
        self._instructions = [""] * num_envs
        self._seen = info.new_observation(num_envs)
        self._terminated, self._truncated, self._success = np.zeros((3, num_envs), bool)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode in every env, or in those of options['reset_mask'], bool [N]; others stay as they are.

        Args:
            seed: one for each env, or that of the first. None goes on where the last reset was, from 0.
            options: 'reset_mask', and LeRobot's own 'lerobot_new_rollout'.

        Raises:
            ValueError: Another option is given, or as many seeds or flags as there are envs are not.
            SimulatorFailed: A simulator broke as its episode began.
        """
        asked = {name: value for name, value in (options or {}).items() if name != NEW_ROLLOUT}
        mask = np.asarray(asked.pop("reset_mask", np.ones(self.num_envs, bool)))
        if asked or mask.shape != (self.num_envs,):
            raise ValueError(f"reset takes reset_mask, bool [{self.num_envs}], and no other options: got {options}")
        given, rows = seeds_of(seed, self.num_envs), np.flatnonzero(mask).tolist()
        for row in rows:
            number = given[row]
            self._seeds[row] = self._seeds[row] + self.num_envs if number is None else int(number)
        self._simulator.reset(rows, [self._episode(row) for row in rows])
        self._terminated[rows] = self._truncated[rows] = self._success[rows] = False
        self._look(rows)
        return self._observation(), {"is_success": self._success.copy()}

    def step(self, actions: Array) -> tuple[dict[str, Any], Array, Array, Array, dict[str, Any]]:
        """Run one control step, float32 [N, A], in every env whose episode goes on.

        Raises:
            SimulatorFailed: A simulator broke. LeRobot can't leave an episode out, and it must not count as one.
        """
        rows = np.flatnonzero(~(self._terminated | self._truncated)).tolist()
        reward = np.zeros(self.num_envs)
        if rows:
            result = self._simulator.step(rows, one_step(np.asarray(actions)[rows])).to("cpu")
            self._refuse_broken([row for row, failed in zip(rows, result.failed.tolist(), strict=True) if failed])
            reward[rows] = result.reward[:, 0].numpy()
            self._terminated[rows] = result.terminated.numpy()
            self._truncated[rows] = result.truncated.numpy()
            self._success[rows] = result.success.numpy()
            self._look(rows)
        info = {"is_success": self._success.copy()}
        return self._observation(), reward, self._terminated.copy(), self._truncated.copy(), info

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """An attribute of each env, or what its method returns, as of gymnasium's own vector envs.

        Args:
            name: 'task' (short name), 'task_description' (the instruction), '_max_episode_steps' or 'render'.

        Raises:
            AttributeError: There is no other.
        """
        if name == "render":
            return self.render()
        return self.get_attr(name)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """The same of attributes only."""
        if name == "task":
            return (self._task.partition("/")[2],) * self.num_envs
        if name == "task_description":
            return tuple(self._instructions)
        if name == "_max_episode_steps":
            return (self._simulator.info.max_episode_steps,) * self.num_envs
        raise AttributeError(f"envs of embodied_rl have no attribute '{name}'")

    def render(self) -> tuple[Array, ...]:  # type: ignore[override]
        """What the policy last saw of the first camera in each env, uint8 [H, W, 3]: nothing is drawn for it."""
        return tuple(self._seen.images[:, 0].numpy().copy())

    def close_extras(self, **kwargs: Any) -> None:
        """Close the simulator."""
        if self._opened is not None:
            self._opened.close()

    @property
    def _simulator(self) -> VecEnv:
        if self.closed:
            raise gymnasium.error.ClosedEnvironmentError(f"the envs of task '{self._task}' are closed")
        if self._opened is None:
            self._opened = self._open_env()
        return self._opened

    def _episode(self, row: int) -> EpisodeSpec:
        seed = self._seeds[row]
        return EpisodeSpec(seed, self._task, self._states[seed % len(self._states)], seed)

    def _look(self, rows: list[int]) -> None:
        """Keep what these envs show now."""
        out = self._simulator.new_observation(len(rows))
        self._refuse_broken([rows[row] for row in self._simulator.observe(rows, out) or ()])
        self._seen.images[rows], self._seen.proprio[rows] = out.images.cpu(), out.proprio.cpu()
        for row, words in zip(rows, out.instruction, strict=True):
            self._instructions[row] = words

    def _refuse_broken(self, rows: list[int]) -> None:
        if rows:
            raise SimulatorFailed(
                f"the simulator broke in task '{self._task}', initial state {self._episode(rows[0]).init_state}: its "
                "episode does not count. Run the task again; if it breaks again, leave it out by its number (task_ids)."
            )

    def _observation(self) -> dict[str, Any]:
        pictures = self._seen.images.numpy()
        return {
            "pixels": {name: pictures[:, view].copy() for view, name in enumerate(self._names)},
            "agent_pos": self._seen.proprio.numpy().copy(),
        }

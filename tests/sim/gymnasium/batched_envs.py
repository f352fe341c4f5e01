"""A gymnasium environment as a single env and as a vector env of its own, registered when this module is imported."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.utils.seeding import np_random
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from embodied_rl.types import Array

NAMESPACE = "embodied_rl_batched"
HORIZON = 12
TASK = ("Go left", "Go right")
_MODES = {"next": AutoresetMode.NEXT_STEP, "same": AutoresetMode.SAME_STEP, "disabled": AutoresetMode.DISABLED}
_OBSERVATION = spaces.Dict(
    {
        "pixels": spaces.Box(0, 255, (6, 8, 3), np.uint8),
        "agent_pos": spaces.Box(-1, 1, (2,), np.float64),
        "side": spaces.Discrete(2, start=1),
    }
)
_STATE = spaces.Box(-1, 1, (5,), np.float64)
_ACTION = spaces.Box(-2.0, 2.0, (2,), np.float32)


class Worlds:
    """N points that must come to their goals; the arithmetic is the same for one and for many."""

    def __init__(self, count: int) -> None:
        self.position, self.goal = np.zeros((2, count, 2))
        self.steps = np.zeros(count, np.int64)

    def begin(self, row: int, draws: np.random.Generator) -> None:
        self.position[row] = draws.uniform(-0.2, 0.2, 2)
        self.goal[row] = draws.choice([-0.8, 0.8], 2)
        self.steps[row] = 0

    def move(self, actions: Array) -> tuple[Array, Array]:
        """Rewards, and who came to the goal."""
        self.steps += 1
        self.position[:] = (self.position + 0.2 * actions.astype(np.float64)).clip(-1, 1)
        away = np.abs(self.position - self.goal).max(axis=1)
        return 1 - away, away < 0.25

    def seen(self, *, images: bool) -> Any:
        right = (self.goal[:, 0] > 0).astype(np.int64)
        if not images:
            return np.concatenate([self.position, self.goal, self.steps[:, None] / 10 % 1], axis=1)
        pixels = np.zeros((len(self.steps), 6, 8, 3), np.uint8)
        row, column = ((self.position + 1) / 2 * (5, 7)).astype(int).T
        pixels[np.arange(len(self.steps)), row, column] = 255
        return {"pixels": pixels, "agent_pos": self.position.copy(), "side": 1 + right}

    def words(self) -> list[str]:
        return [TASK[int(goal > 0)] for goal in self.goal[:, 0]]


class One(gymnasium.Env[Any, Array]):
    """The single env. noise: its steps draw random numbers."""

    def __init__(self, *, images: bool = False, noise: bool = False, flag: bool = True, **_: Any) -> None:
        self._images, self._noise, self._flag, self._worlds = images, noise, flag, Worlds(1)
        self.observation_space = _OBSERVATION if images else _STATE  # type: ignore[assignment]
        self.action_space = _ACTION

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._worlds.begin(0, self.np_random)
        return self._seen(), {"task": self._worlds.words()[0]}

    def step(self, action: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        noise = self.np_random.normal(0, 0.01, 2) if self._noise else 0
        reward, near = self._worlds.move(action[None] + noise)
        return self._seen(), float(reward[0]), bool(near[0]), False, {"is_success": bool(near[0])} if self._flag else {}

    def _seen(self) -> Any:
        batch = self._worlds.seen(images=self._images)
        return {key: part[0] for key, part in batch.items()} if self._images else batch[0]


class Many(VectorEnv[Any, Any, Any]):
    """The vector env.

    mode: of autoreset. fault: 'one stream' draws all rows' starts from one generator; 'whole' resets all rows whatever
    the mask says; 'pending' resets an ended row in its next step although it was reset meanwhile; 'row' lets an episode
    depend on its row; 'raises' raises in the third step of an episode, 'NaN' shows NaN there; 'flat' has no task;
    'unmade' can't be made.
    tensors: it speaks torch.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}  # type: ignore[misc]

    def __init__(
        self,
        num_envs: int = 1,
        max_episode_steps: int = HORIZON,
        render_mode: str | None = None,
        *,
        mode: str = "next",
        fault: str = "",
        images: bool = False,
        tensors: bool = False,
        noise: bool = False,
        **_: Any,
    ) -> None:
        if fault == "unmade":
            raise RuntimeError("there is no such device")
        self.num_envs, self._fault, self._images, self._tensors = num_envs, fault, images, tensors
        self._limit, self._noise = max_episode_steps, noise
        self.render_mode = render_mode
        self.metadata = {"autoreset_mode": _MODES[mode]}  # type: ignore[misc]
        self.single_observation_space = _OBSERVATION if images else _STATE  # type: ignore[assignment]
        self.single_action_space = _ACTION
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(_ACTION, num_envs)
        self._worlds = Worlds(num_envs)
        self._draws = [np_random(row)[0] for row in range(num_envs)]
        self._ended = np.zeros(num_envs, np.bool_)
        self.resets = 0

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, np.bool_))
        rows = range(self.num_envs) if self._fault == "whole" else np.flatnonzero(mask).tolist()
        for row in rows:
            if self._fault != "one stream":
                self._draws[row] = np_random(seed[row])[0]
            self._begin(row)
        if self._fault != "pending":
            self._ended[mask] = False
        return self._seen(), self._infos(rows)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if self._tensors:
            assert isinstance(actions, torch.Tensor)
            actions = actions.numpy()
        assert self.action_space.contains(actions)
        mode = self.metadata["autoreset_mode"]
        assert mode is not AutoresetMode.DISABLED or not self._ended.any()
        before, noise = self._ended, 0
        if self._noise:
            noise = np.stack([draws.normal(0, 0.01, 2) for draws in self._draws])
        reward, near = self._worlds.move(actions + noise)
        if self._fault == "raises" and (self._worlds.steps == 3).any():
            raise RuntimeError("the kernel failed")
        late = (self._worlds.steps >= self._limit) & ~near
        if mode is AutoresetMode.NEXT_STEP:
            for row in np.flatnonzero(before).tolist():
                self._begin(row)
                reward[row] = near[row] = late[row] = 0
        self._ended = near | late
        infos: dict[str, Any] = {"is_success": near.copy(), "_is_success": np.ones(self.num_envs, np.bool_)}
        if mode is AutoresetMode.SAME_STEP and self._ended.any():
            infos |= {"final_obs": self._seen(), "final_info": infos.copy()}
            for row in np.flatnonzero(self._ended).tolist():
                self._begin(row)
            infos["is_success"] = near & ~self._ended
        seen = self._seen()
        if self._fault == "NaN":
            seen[self._worlds.steps == 3] = np.nan
        results = reward, near, late
        return seen, *(map(torch.from_numpy, results) if self._tensors else results), infos  # type: ignore[return-value]

    def render(self) -> Any:
        return tuple(self._worlds.seen(images=True)["pixels"])

    def _begin(self, row: int) -> None:
        self.resets += 1
        self._worlds.begin(row, self._draws[0 if self._fault == "one stream" else row])
        if self._fault == "row":
            self._worlds.position[row] += 1e-9 * row

    def _infos(self, rows: Any) -> dict[str, Any]:
        said = np.isin(np.arange(self.num_envs), list(rows))
        words = np.array(
            [word if here else None for word, here in zip(self._worlds.words(), said, strict=True)], object
        )
        return {} if self._fault == "flat" else {"task": words, "_task": said}

    def _seen(self) -> Any:
        seen = self._worlds.seen(images=self._images)
        if not self._tensors:
            return seen
        return {key: torch.from_numpy(part) for key, part in seen.items()} if self._images else torch.from_numpy(seen)


def batched(name: str, *, single: bool = True, **options: Any) -> str:
    """An id of both, or of the vector env only, known to gymnasium from now on."""
    full = f"{NAMESPACE}/{name}-v0"
    if full not in gymnasium.registry:
        entry = f"{__name__}:One" if single else None
        gymnasium.register(
            full, entry, max_episode_steps=HORIZON, vector_entry_point=f"{__name__}:Many", kwargs=options
        )
    return full


for _mode in _MODES:
    batched(_mode.title(), mode=_mode)
    batched(f"{_mode.title()}Seen", mode=_mode, images=True)

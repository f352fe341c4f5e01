"""ManiSkill on a GPU behind the contract: all envs in one simulation, states and pictures stay on the card.

Written from ManiSkill's documentation; the tests run on machines without a GPU and cover only what they can.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import torch

from embodied_rl.errors import UserError
from embodied_rl.policy import action_array
from embodied_rl.sim.checks import check_env_ids, check_episodes
from embodied_rl.sim.maniskill.control import LIBERO, describe_control, libero_proprio, pick_mode
from embodied_rl.sim.maniskill.load import NO_REWARD, hand_camera, load_maniskill, make
from embodied_rl.sim.maniskill.tasks import ManiSkillTask
from embodied_rl.sim.maniskill.vec_env import Setup
from embodied_rl.sim.step_reward import choose_reward
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from embodied_rl.vec_env import EnvInfo


class ManiSkillGpuVecEnv:
    """`embodied_rl.vec_env.VecEnv` over N envs of one task on a GPU.

    A simulation on a GPU moves all of its envs, so a running episode that `step` does not name is given up. Envs
    whose episode is over move on unseen: what they showed at the end is kept. Envs are reset one at a time, since
    ManiSkill draws a batch of starts from one seed. PhysX on a GPU repeats itself up to rounding only.

    Raises:
        UserError: where torch sees no GPU.

    Example:
        >>> env = ManiSkillGpuVecEnv(load_tasks(["PushCube-v1"])[0], 1024)
        >>> env.info.device
        'cuda:0'
    """

    def __init__(self, task: ManiSkillTask, num_envs: int, setup: Setup | None = None) -> None:
        if not torch.cuda.is_available():
            raise UserError("ManiSkill's GPU backend needs an NVIDIA GPU, and torch sees none: take its CPU backend.")
        load_maniskill()
        self.num_envs, self._task, self._setup = num_envs, task, setup or Setup()
        self._env = self._open(None)
        mode = pick_mode(self._setup.control, self._env, task.name)
        if mode != self._env.control_mode:
            self._env.close()
            self._env = self._open(mode)
        self._control = describe_control(self._setup.control, self._env, task.name)
        state, info = self._env.reset(seed=0)
        has_reward = self._env.reward_mode != NO_REWARD
        self._reward = choose_reward(self._setup.reward, "success" in info, task.name, has_reward=has_reward)
        self._state = state.clone()
        self._potential = torch.zeros(num_envs, device=state.device)
        self._steps = torch.zeros(num_envs, dtype=torch.int32, device=state.device)
        self._live = torch.zeros(num_envs, dtype=torch.bool, device=state.device)
        self._held = [False] * num_envs
        self.info = self._describe(state, "success" in info)
        shown = self.info.new_observation(num_envs)
        self._images, self._proprio = shown.images, shown.proprio
        if self.info.proprio_dim:
            self._proprio[:] = libero_proprio(self._env)

    def _open(self, mode: str | None) -> Any:
        size = self._setup.image_size
        options = {"control_mode": mode} if mode else {}
        cameras = {} if size is None else {"sensor_configs": {"width": size, "height": size}}
        with hand_camera() if self._setup.wants_hand else nullcontext():
            return make(
                self._task.env_id,
                num_envs=self.num_envs,
                obs_mode="state",
                sim_backend="gpu",
                render_backend="gpu",
                **options,
                **cameras,
            )

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """Put `episodes[i]` into `env_ids[i]`, one after the other."""
        check_env_ids(env_ids, self.num_envs)
        check_episodes(env_ids, episodes, {self._task.name: self._task})
        for env_id, spec in zip(env_ids, episodes, strict=True):
            seed = int(self._task.init_states[spec.init_state])
            index = torch.tensor([env_id], device=self._state.device)
            state, _ = self._env.reset(seed=[seed] * self.num_envs, options={"env_idx": index})
            self._state[env_id] = state[env_id]
            self._steps[env_id], self._live[env_id], self._held[env_id] = 0, True, True
            self._potential[env_id] = 0.0
            if self.info.proprio_dim:
                self._proprio[env_id] = libero_proprio(self._env)[env_id]
        if self._setup.for_policies:
            self._env._hidden_objects = []  # goals, such as PickCube's
        if self.info.cameras:
            self._look(torch.tensor(list(env_ids), device=self._state.device))

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """Run up to K control steps of all envs; running episodes that `env_ids` does not name are given up."""
        arrays = self._bounded(actions, len(env_ids))
        check_env_ids(env_ids, self.num_envs)
        rows = torch.tensor(list(env_ids), device=self._state.device)
        if not bool(self._live[rows].all()):
            raise ValueError("an env holds no running episode: it ended, or a step that did not name it gave it up")
        named = torch.zeros_like(self._live)
        named[rows] = True
        self._live &= named
        count, steps = arrays.shape[:2]
        out = ChunkResult.zeros(count, steps).to(self._state.device.type)
        full = torch.zeros((self.num_envs, arrays.shape[2]), device=self._state.device)
        for k in range(steps):
            running = self._live[rows].clone()
            if not bool(running.any()):
                break
            full[rows] = arrays[:, k]
            self._advance(full, rows, running, out, k)
        if self.info.cameras:
            self._look(rows[self._live[rows]])
        return out

    def _advance(self, full: torch.Tensor, rows: torch.Tensor, running: torch.Tensor, out: ChunkResult, k: int) -> None:
        """One control step, booked for the rows that ran."""
        state, native, terminated, _, info = self._env.step(full)
        native, terminated = native[rows].float(), terminated[rows]
        success = info["success"][rows] if "success" in info else torch.zeros_like(running)
        fine = torch.isfinite(state[rows]).all(dim=1) & torch.isfinite(native)
        sound = running & fine  # of a broken env the last sound state is what is seen
        self._state[rows[sound]] = state[rows[sound]]
        if self.info.proprio_dim:
            self._proprio[rows[sound]] = libero_proprio(self._env)[rows[sound]]
        self._steps[rows[running]] += 1
        ended = terminated & ~(success & (self._reward == "native")) & fine
        late = (self._steps[rows] >= self._task.max_episode_steps) & ~ended & fine
        potential = torch.where(ended, 0.0, native)
        growth = torch.where(late | (k == out.reward.shape[1] - 1), self._setup.gamma, 1.0) * potential
        growth -= self._potential[rows]
        out.reward[:, k] = torch.where(sound, self._pay(native, success, growth), 0.0)
        self._potential[rows[sound]] = potential[sound]
        out.success |= running & fine & success
        out.terminated |= running & ended
        out.truncated |= running & late
        out.failed |= running & ~fine
        out.steps_taken += running.int()
        over = running & (ended | late | ~fine)
        self._live[rows[over]] = False
        if self.info.cameras and bool(over.any()):
            self._look(rows[over])

    def _pay(self, native: torch.Tensor, success: torch.Tensor, growth: torch.Tensor) -> torch.Tensor:
        """As `StepReward.pay`, for all rows; growth: of the potential."""
        if self._reward == "native":
            return native
        if self._reward == "success":
            return success.float()
        return growth + success.float()

    def _bounded(self, actions: torch.Tensor, rows: int) -> torch.Tensor:
        action_array(actions)  # raises unless they are finite float32 [N, K, A]
        if len(actions) != rows or actions.shape[2] != self.info.action_dim:
            raise ValueError(f"actions must be [{rows}, K, {self.info.action_dim}], got {tuple(actions.shape)}")
        control, device = self._control, self._state.device
        low, high, scale = (torch.from_numpy(part).to(device) for part in (control.low, control.high, control.scale))
        scaled = actions.to(device).clamp(low, high) * scale
        return scaled.clamp(-1, 1) if control.name == LIBERO else scaled

    def _look(self, env_ids: torch.Tensor) -> None:
        """Keep what the cameras of these envs see now."""
        seen = self._env._get_obs_sensor_data()
        for camera, name in enumerate(self.info.cameras):
            self._images[env_ids, camera] = seen[name]["rgb"][env_ids]

    def observe(self, env_ids: Sequence[int], out: Observation) -> None:
        """Fill row i of `out` for `env_ids[i]`, on the GPU."""
        assert out.state is not None
        check_env_ids(env_ids, self.num_envs)
        if not all(self._held[env_id] for env_id in env_ids):
            raise ValueError("an env that holds no episode was observed; reset it first")
        rows = torch.tensor(list(env_ids), device=self._state.device)
        out.state[: len(rows)] = self._state[rows]
        out.proprio[: len(rows)] = self._proprio[rows]
        out.images[: len(rows)] = self._images[rows]
        out.instruction[: len(rows)] = [self._task.instruction] * len(rows)

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        """NotImplementedError: videos are made on the CPU backend, of the same episodes."""
        raise NotImplementedError("ManiSkill's GPU backend makes no videos; its CPU backend does")

    def new_observation(self, rows: int) -> Observation:
        """Allocate an Observation of `rows` rows on the GPU."""
        return self.info.new_observation(rows)

    def close(self) -> None:
        """Close ManiSkill's environment."""
        self._env.close()

    def _describe(self, state: torch.Tensor, has_success: bool) -> EnvInfo:
        size, control = self._setup.image_size, self._control
        cameras = self._setup.sensors(self._env, self._task.name)
        return EnvInfo(
            backend="maniskill",
            suite=self._task.suite,
            simulator=f"maniskill {version('mani-skill')}, sapien {version('sapien')}, PhysX on a GPU, control "
            f"{control.name}, reward {self._reward} of {self._env.reward_mode}",
            renderer="sapien on the GPU" if cameras else "none",
            cameras=cameras,
            image_shape=(size or 0, size or 0),
            proprio_dim=self._setup.proprio_dim(control, self._env),
            state_dim=int(state.shape[1]),
            action_dim=len(control.low),
            action_low=tuple(map(float, control.low)),
            action_high=tuple(map(float, control.high)),
            control_hz=float(self._env.control_freq),
            max_episode_steps=self._task.max_episode_steps,
            has_success=has_success,
            steps_together=True,
            device=str(state.device),
        )


@dataclass(frozen=True, slots=True)
class ManiSkillGpuFactory:
    """Call it with a number of envs to open a `ManiSkillGpuVecEnv` of one task."""

    task: ManiSkillTask
    setup: Setup

    @property
    def why_no_processes(self) -> str:
        """Why a `ProcessVecEnv` can't hold its envs, in one line."""
        return "a GPU holds all worlds in one simulation: leave --env.processes out."

    def __call__(self, num_envs: int) -> ManiSkillGpuVecEnv:
        return ManiSkillGpuVecEnv(self.task, num_envs, self.setup)

"""Isaac Gym's VecTask over any VecEnv: all envs in lock step, one control step a call, tensors in and out.

The surface is that of IsaacGymEnvs (Makoviychuk et al. 2021, "Isaac Gym: High performance GPU-based physics simulation
for robot learning"); what differs is said at `IsaacGymEnv`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Literal, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from embodied_rl.errors import UserError
from embodied_rl.types import Array, ChunkResult, EpisodeSpec
from embodied_rl.utils.suites import as_names
from embodied_rl.vec_env import VecEnv

ResetMode = Literal["same_step", "next_step"]
Part = Literal["state", "proprio"]
Obs = dict[str, Tensor]


class Episodes(Protocol):
    """Which episode runs next; the order repeats with its seed."""

    def start(self) -> EpisodeSpec:
        """The next episode."""
        ...

    def finish(self, spec: EpisodeSpec) -> None:
        """`spec` ended, or was given up for another one."""
        ...

    def requeue(self, spec: EpisodeSpec) -> EpisodeSpec:
        """What to run in place of `spec`, whose simulator broke."""
        ...


class IsaacGymEnv:
    """`VecTask` over a VecEnv, for trainers of state policies: rl_games, rsl_rl and others of that interface.

    Actions lie in [-1, 1] and are scaled to the env's bounds. Tensors that are returned are clones; the buffers
    `obs_buf`, `states_buf`, `rew_buf`, `reset_buf`, `progress_buf` and `timeout_buf` are the view's own and change with
    every step.

    * reset: 1 where an episode ended (int64). `extras["time_outs"]`: bool [N], where the task did not end it.
    * A row that ended shows the first observation of its next episode (same_step), and its last one is in
      `extras["final_obs"]` [N, num_obs], which is there when any row ended. With next_step it shows its last
      observation, and the next `step` ignores its action, resets it and pays 0: `extras["reset"]`, bool [N], marks it.
    * An episode whose simulator broke is dropped: its row is done, pays 0, counts as timed out at the last sound
      observation, is marked in `extras["failed"]`, counted in `extras["num_failed"]`, and runs again from its start.
    * `progress_buf` may be written, as trainers do to spread episodes over time: a row times out when it reaches
      `max_episode_length`. Other writes to buffers change nothing; `reset_idx` begins new episodes.

    Args:
        env: any VecEnv with a state or proprio. Its episodes are replaced.
        episodes: what runs.
        obs: parts of an observation, joined; None: the state, or the proprio where there is no state.
        states: parts that only a critic sees; empty: none, `num_states` is 0.
        reset_mode: same_step, or next_step as Isaac Gym's own tasks.
        rl_device: where the trainer's tensors are; None: where the env's are.
        max_episode_length: control steps after which an episode times out, at most the env's own horizon (None).

    Example:
        >>> env = erl.make_isaacgym_env("tabletop_goal", num_envs=64, reward="shaped", gamma=0.99)
        >>> obs = env.reset()["obs"]
        >>> obs, reward, reset, extras = env.step(torch.zeros(64, env.num_actions))
    """

    def __init__(
        self,
        env: VecEnv,
        episodes: Episodes,
        *,
        obs: Part | Sequence[Part] | None = None,
        states: Part | Sequence[Part] = (),
        reset_mode: ResetMode = "same_step",
        rl_device: str | None = None,
        max_episode_length: int | None = None,
    ) -> None:
        if reset_mode not in ("same_step", "next_step"):
            raise UserError(f"unknown reset mode '{reset_mode}': same_step or next_step")
        if max_episode_length is not None and not 1 <= max_episode_length <= env.info.max_episode_steps:
            raise UserError(
                f"max_episode_length must lie in 1..{env.info.max_episode_steps}, the simulator's own horizon, "
                f"got {max_episode_length}"
            )
        if rl_device is not None and rl_device.startswith("cuda") and not torch.cuda.is_available():
            raise UserError(f"rl_device {rl_device}: torch sees no GPU here")
        info, count = env.info, env.num_envs
        self.env, self.reset_mode = env, reset_mode
        self._episodes = episodes
        self._obs = as_names(obs) if obs is not None else ("state",) if info.state_dim else ("proprio",)
        self._states = as_names(states)
        self.num_envs = self.num_environments = count
        self.num_obs = self.num_observations = sum(_size(env, part) for part in self._obs)
        self.num_states = sum(_size(env, part) for part in self._states)
        self.num_acts = self.num_actions = info.action_dim
        self.num_agents = self.control_freq_inv = 1
        self.max_episode_length = max_episode_length or info.max_episode_steps
        self.sim_device = info.device
        self.device = self.rl_device = rl_device or info.device
        self.dt = 1.0 / info.control_hz
        self.clip_obs, self.clip_actions = float("inf"), 1.0
        self.cfg: dict[str, Any] = {"env": {"numEnvs": count, "episodeLength": self.max_episode_length}}
        self.observation_space = self.obs_space = _box(self.num_obs, np.inf)
        self.state_space = _box(self.num_states, np.inf)
        self.action_space = self.act_space = _box(self.num_acts, 1.0)
        self.metadata: dict[str, Any] = {"render_modes": []}
        self.num_failed = 0
        self._allocate()
        self._scale, self._shift = _bounds(info.action_low, info.action_high, self.sim_device)
        self._specs: list[EpisodeSpec | None] = [None] * count
        self._all = list(range(count))

    def _allocate(self) -> None:
        count, device = self.num_envs, self.device
        self._seen = self.env.new_observation(count)
        self.obs_buf = torch.zeros((count, self.num_obs), device=device)
        self.states_buf = torch.zeros((count, self.num_states), device=device)
        self.rew_buf = torch.zeros(count, device=device)
        self.reset_buf = torch.ones(count, dtype=torch.long, device=device)
        self.progress_buf = torch.zeros(count, dtype=torch.long, device=device)
        self.timeout_buf = torch.zeros(count, dtype=torch.bool, device=device)
        self._pending = torch.ones(count, dtype=torch.bool)
        self.extras: dict[str, Any] = {}

    @property
    def unwrapped(self) -> IsaacGymEnv:
        """Itself."""
        return self

    def reset(self) -> Obs:
        """Begin a new episode in every env; its observations."""
        self.reset_idx(torch.arange(self.num_envs))
        return self._observations()

    def reset_idx(self, env_ids: Tensor | Sequence[int]) -> None:
        """Begin new episodes in these envs; `obs_buf` shows them. An episode that has not ended is given up.

        One whose simulator broke, and that has not begun again, begins here.
        """
        ids = [int(env_id) for env_id in env_ids]
        for env_id in ids:
            spec = self._specs[env_id]
            if spec is not None and not self._pending[env_id]:
                self._episodes.finish(spec)
                self._specs[env_id] = None
        self._begin(ids)
        self.reset_buf[ids] = 0

    def reset_done(self) -> tuple[Obs, Tensor]:
        """Begin new episodes where one ended and none has begun; the observations, and the ids of those envs."""
        ids = self._pending.nonzero().flatten()
        self.reset_idx(ids)
        return self._observations(), ids.to(self.device)

    def step(self, actions: Tensor) -> tuple[Obs, Tensor, Tensor, dict[str, Any]]:
        """One control step of every env.

        Args:
            actions: float [N, num_actions], clipped to [-1, 1].

        Returns:
            observations, rewards float32 [N], resets int64 [N], extras.

        Raises:
            ValueError: for actions that are misshapen or not finite; no env has moved then.
        """
        if tuple(actions.shape) != (self.num_envs, self.num_acts):
            raise ValueError(f"actions must be [{self.num_envs}, {self.num_acts}], got {tuple(actions.shape)}")
        chunk = self._scaled(actions)
        fresh = self._pending.clone()
        running = (~fresh).nonzero().flatten().tolist()
        result = ChunkResult.zeros(self.num_envs, 1)
        if running:
            result.put(running, self.env.step(running, chunk[running]).to("cpu"))
        self._begin(fresh.nonzero().flatten().tolist())
        self._look([env_id for env_id in running if not result.failed[env_id]])
        self._settle(result, fresh)
        return self._observations(), self.rew_buf.clone(), self.reset_buf.clone(), self.extras

    def _settle(self, result: ChunkResult, fresh: Tensor) -> None:
        """Fill the buffers from what happened, and begin what comes next in the same step."""
        device = self.device
        self.progress_buf += (~fresh).to(device)
        late = (self.progress_buf.cpu() >= self.max_episode_length) & ~fresh & ~result.terminated
        timed_out = result.truncated | result.failed | late
        over = result.terminated | timed_out
        self.rew_buf.copy_(torch.where(result.failed, 0.0, result.reward[:, 0]))
        self.reset_buf.copy_(over)
        self.timeout_buf.copy_(timed_out)
        self.num_failed += int(result.failed.sum())
        self.extras = {
            "time_outs": self.timeout_buf.clone(),
            "success": (result.success & over).to(device),
            "failed": result.failed.to(device),
            "num_failed": self.num_failed,
            "reset": fresh.to(device),
        }
        counted = over & ~result.failed
        if counted.any():
            self.extras["episode"] = {"success": result.success[counted].float().mean()}
        self._end(over.nonzero().flatten().tolist(), result.failed)

    def _end(self, ids: list[int], failed: Tensor) -> None:
        for env_id in ids:
            spec = self._specs[env_id]
            assert spec is not None
            if failed[env_id]:
                self._specs[env_id] = self._episodes.requeue(spec)
            else:
                self._episodes.finish(spec)
                self._specs[env_id] = None
        self._pending[ids] = True
        if ids and self.reset_mode == "same_step":
            self.extras["final_obs"] = self.obs_buf.clone()
            if self.num_states:
                self.extras["final_states"] = self.states_buf.clone()
            self._begin(ids)

    def _begin(self, ids: list[int]) -> None:
        """Put an episode into these envs: one that is to run again, else the next."""
        if not ids:
            return
        specs = []
        for env_id in ids:
            spec = self._specs[env_id] or self._episodes.start()
            self._specs[env_id] = spec
            specs.append(spec)
        self.env.reset(ids, specs)
        self.progress_buf[ids] = 0
        self._pending[ids] = False
        self._look(ids)

    def _look(self, ids: list[int]) -> None:
        """Bring the observations of these envs up to date; one whose simulator broke keeps its last."""
        if not ids:
            return
        lost = set(self.env.observe(ids, self._seen) or ())
        rows = [row for row in range(len(ids)) if row not in lost]
        kept = [ids[row] for row in rows]
        self.obs_buf[kept] = self._join(self._obs)[rows].to(self.device)
        if self.num_states:
            self.states_buf[kept] = self._join(self._states)[rows].to(self.device)

    def _join(self, parts: Sequence[str]) -> Tensor:
        found = [getattr(self._seen, part) for part in parts]
        return found[0] if len(found) == 1 else torch.cat(found, dim=1)

    def _scaled(self, actions: Tensor) -> Tensor:
        """float32 [N, 1, A] within the env's bounds; NaN stays, for the env to refuse."""
        values = actions.detach().to(self.sim_device, torch.float32).clamp(-self.clip_actions, self.clip_actions)
        return (values * self._scale + self._shift)[:, None]

    def _observations(self) -> Obs:
        out = {"obs": self.obs_buf.clone()}
        return out | {"states": self.states_buf.clone()} if self.num_states else out

    def get_state(self) -> Tensor:
        """What only a critic sees now: float32 [N, num_states]."""
        return self.states_buf.clone()

    def zero_actions(self) -> Tensor:
        """float32 [N, num_actions] of zeros."""
        return torch.zeros((self.num_envs, self.num_acts), device=self.device)

    def render(self, mode: str = "rgb_array") -> Array:
        """A picture of env 0, uint8 [256, 256, 3]; NotImplementedError where the env has no camera to show."""
        cameras = self.env.info.cameras
        return self.env.frame(0, cameras[0] if cameras else "", 256)

    def close(self) -> None:
        """Close the env."""
        self.env.close()


def _size(env: VecEnv, part: str) -> int:
    size = {"state": env.info.state_dim, "proprio": env.info.proprio_dim}.get(part)
    if not size:
        raise UserError(f"suite '{env.info.suite}' has no '{part}' to observe; for a state open it with state=True.")
    return size


def _box(size: int, bound: float) -> spaces.Box:
    """A gymnasium Box; where the gym of Isaac Gym's days is installed, one of its boxes too: trainers ask for that."""
    kind: type[spaces.Box] = spaces.Box
    with suppress(ImportError):
        old = import_module("gym.spaces").Box
        # where `gym` is another name of gymnasium its Box is no second base class
        kind = old if issubclass(old, spaces.Box) else type("Box", (spaces.Box, old), {})
    return kind(-bound, bound, (size,), np.float32)


def _bounds(low: Sequence[float], high: Sequence[float], device: str) -> tuple[Tensor, Tensor]:
    """Scale and shift that take [-1, 1] to the bounds; an action without bounds stays as it is."""
    lowest, highest = torch.tensor(low, device=device), torch.tensor(high, device=device)
    bounded = torch.isfinite(lowest) & torch.isfinite(highest)
    scale = torch.where(bounded, (highest - lowest) / 2, 1.0)
    shift = torch.where(bounded, (highest + lowest) / 2, 0.0)
    return scale, shift

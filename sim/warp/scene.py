"""One model with the states of its worlds: what tasks with the same physics share."""

from __future__ import annotations

from collections.abc import Sequence

import mujoco
import numpy as np
import torch

from embodied_rl.errors import UserError
from embodied_rl.sim.eras import CURRENT
from embodied_rl.sim.mujoco import kernel
from embodied_rl.sim.mujoco.env import Env, find_robot
from embodied_rl.sim.mujoco.era import era_of
from embodied_rl.sim.mujoco.goal import Goal, compile_goal
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.warp import kernels
from embodied_rl.sim.warp.batch import (
    LIBERO_SIZES,
    TABLETOP_SIZES,
    Batch,
    Columns,
    Settings,
    capacity,
    field_views,
    put_model,
    to_rows,
)
from embodied_rl.sim.warp.goal import GoalTable
from embodied_rl.sim.warp.randomize import EnvFields, Randomization
from embodied_rl.types import Array


class Scene:
    """A physics model, the tasks that have it, and a state row for each env of the `VecEnv`.

    Args:
        model: the physics model, on the CPU.
        tasks: the first task that has it.
        num_envs: N, of the VecEnv.
        randomize: how worlds differ; None: they have the model's own fields.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        task: MujocoTask,
        num_envs: int,
        settings: Settings,
        randomize: Randomization | None = None,
    ) -> None:
        if era_of(model) != CURRENT:
            raise UserError(f"MuJoCo Warp has its own contacts, not those of {task.era}: load the tasks of era current")
        self.model, self.settings = model, settings
        self.robot = find_robot(model)
        self.columns = Columns(model)
        self.tasks: list[MujocoTask] = []
        self._goals: list[Goal] = []
        self._num_envs = num_envs
        self._sizes = LIBERO_SIZES if task.is_official else TABLETOP_SIZES
        self._warp = put_model(model, settings)
        self._batches: dict[int, Batch] = {}
        self._views: dict[int, dict[str, torch.Tensor]] = {}
        self._randomize = randomize if randomize is not None and randomize.changes_physics else None
        self._fields: EnvFields | None = None
        if self._randomize is not None:
            base = Randomization().physics(model, 0)
            self._fields = EnvFields(base, num_envs + 1, settings.device)
        self._env = Env(model, self.robot, None, "fast")
        self._starts: dict[tuple[int, int], Array] = {}
        self.add(task)
        rest = torch.from_numpy(self.start(0, 0)).to(settings.device)
        self.rows = rest.repeat(num_envs + 1, 1)
        """float32 [N + 1, columns]: the envs' states, and a state at rest for worlds that no env needs."""
        self.task_of = torch.zeros(num_envs + 1, dtype=torch.int64, device=settings.device)

    def add(self, task: MujocoTask) -> int:
        """Another task with the same model; its number here."""
        self._goals.append(compile_goal(task, self.model))
        self.tasks.append(task)
        self.goal = GoalTable(self._goals, self.settings.device)
        return len(self.tasks) - 1

    def start(self, task: int, init_state: int) -> Array:
        """The state row of an episode's start, float32 [columns]; computed once by MuJoCo."""
        key = task, init_state
        if key not in self._starts:
            source = self.tasks[task]
            self._env.reset(source.init_states[init_state], source.start)
            self._starts[key] = self._row(self._env, source.start is not None)
        return self._starts[key]

    def _row(self, env: Env, official: bool) -> Array:
        data, control, seen = env.data, env.control, env.seen
        if not official:
            mujoco.mj_forward(self.model, data)
        pose = [control.goal_pos, control.goal_ori.ravel(), control.posture, control.grip]
        stale = np.zeros(kernels.STALE_WIDTH)
        if control.stale[0] == kernel.KEEP_STALE:
            parts = (control.pos, control.ori, control.velocity, control.q, control.qd, control.jac, control.mass)
            stale = np.concatenate([[1.0], *(part.ravel() for part in parts)])
        return to_rows(
            self.columns,
            [
                ("qpos", data.qpos),
                ("qvel", data.qvel),
                ("warm", data.qacc_warmstart),
                ("control", np.concatenate(pose)),
                ("seen", np.concatenate([seen.eef_pos, seen.eef_quat, seen.joints[7:], data.qpos])),
                ("stale", stale),
            ],
        )

    def batch(self, count: int) -> Batch:
        """A batch with room for `count` worlds."""
        worlds = capacity(count, self._num_envs)
        batch = self._batches.get(worlds)
        if batch is None:
            model = self._warp
            if self._fields is not None:
                model = put_model(self.model, self.settings, dict.fromkeys(self._fields.names, worlds))
                self._views[worlds] = field_views(model, self._fields.names)
            batch = Batch(self.model, model, self.robot, worlds, self._sizes, self.settings)
            self._batches[worlds] = batch
        return batch

    def randomize(self, env_ids: Sequence[int], seeds: Sequence[int]) -> None:
        """Draw the physics of the episodes with these seeds, where it is to differ."""
        if self._randomize is not None and self._fields is not None:
            self._fields.put(env_ids, [self._randomize.physics(self.model, seed) for seed in seeds])

    def load(self, batch: Batch, env_ids: torch.Tensor) -> None:
        """Put the states and the fields of these envs, int64 [W], into the worlds of `batch`."""
        batch.load(self.rows[env_ids])
        if self._fields is not None:
            self._fields.copy_to(self._views[batch.worlds], env_ids)

    def grow(self, overflow: int) -> None:
        """Give the next steps twice the room that ran out; overflow: bits of mujoco_warp.OverflowType."""
        sizes = self._sizes.grown(overflow)
        if sizes == self._sizes:
            raise UserError(f"MuJoCo Warp ran out of a buffer that cannot grow (overflow bits {overflow})")
        self._sizes, self._batches = sizes, {}

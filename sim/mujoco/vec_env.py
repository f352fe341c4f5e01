"""The MuJoCo VecEnv: N envs in one process, chunks stepped over threads, frames rendered on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import mujoco
import numpy as np
import torch

from embodied_rl.errors import UserError, refuse_twice, suggest
from embodied_rl.policy import action_array
from embodied_rl.sim.checks import check_env_ids, check_episodes
from embodied_rl.sim.eras import CURRENT
from embodied_rl.sim.mujoco import kernel
from embodied_rl.sim.mujoco.env import ControllerMode, Env
from embodied_rl.sim.mujoco.episodes import TASKS_OWN, Shown, Shows, TrainingEpisodes
from embodied_rl.sim.mujoco.indicators import lit_groups
from embodied_rl.sim.mujoco.joint_env import JointEnv
from embodied_rl.sim.mujoco.pool import AnyLayout, FrameRenderer, Scene, ScenePool
from embodied_rl.sim.mujoco.robot import RobotSpec
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.mujoco_log import leave_divergence_to_results
from embodied_rl.sim.state.staged import Shaping
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from embodied_rl.utils.machine import cpu_count
from embodied_rl.vec_env import EnvInfo


class _Slot:
    """One env: the physics of the task that it holds or held last, and how far its episode is."""

    def __init__(self) -> None:
        self.scene: Scene | None = None
        self.env: Env | JointEnv | None = None
        self.shown: Shown | None = None
        self.steps = 0
        self.live = False
        self.potential = 0.0
        """Of its state now, where rewards are shaped."""


class MujocoVecEnv:
    """`embodied_rl.vec_env.VecEnv` over MuJoCo for LIBERO-format tasks. Any env can hold any of the tasks.

    Args:
        tasks: with different names.
        num_envs: N.
        image_size: H = W in pixels of the images of `observe`, or (H, W).
        renderer: see `embodied_rl.sim.render.make_renderer`. Without one, `observe` and `frame` raise UserError.
        threads: workers over envs, by default the CPUs that this process may use.
        controller: 'exact' is robosuite's linear algebra bit for bit; 'fast' is within 1e-7 N m of it and cheaper.
            None takes 'exact' for LIBERO's official tasks and 'fast' for ours, which have no official run to agree
            with.
        stop_at_success: end an episode when its goal holds. Otherwise it goes on to its horizon, with a reward for
            every step after which the goal holds.
        max_scene_bytes: memory for the models of tasks that no env holds now; the least recently used are dropped and
            built again when needed.
        cameras: which of the robot's `observe` renders, by name, or how many, from the first (None: all); 0 needs no
            renderer.
        layout: of `Observation.state`, see `StateLayout` and `JointStateLayout`. None: there is no state.
        shaping: what is added to the sparse reward. None: an episode pays 1 for success, and nothing else.
        pay_stages: of tasks with stages: every step pays the number of the highest stage that holds, as the benchmark
            itself does, and nothing else.
        training: how episodes may differ from the tasks' own, where their specs say so.

    Example:
        >>> env = MujocoVecEnv(tasks, num_envs=8, image_size=64, renderer=make_renderer("raycast", ()))
        >>> env.reset([0], [EpisodeSpec(0, tasks[0].name, init_state=0, seed=1)])
        >>> env.step([0], torch.zeros(1, 4, 7)).steps_taken
        tensor([4], dtype=torch.int32)
    """

    def __init__(
        self,
        tasks: Sequence[MujocoTask],
        num_envs: int,
        *,
        image_size: int | tuple[int, int] = 128,
        renderer: FrameRenderer | None = None,
        threads: int | None = None,
        controller: ControllerMode | None = None,
        stop_at_success: bool = True,
        max_scene_bytes: int = 2 << 30,
        cameras: int | Sequence[str] | None = None,
        layout: AnyLayout | None = None,
        shaping: Shaping | None = None,
        pay_stages: bool = False,
        training: TrainingEpisodes = TASKS_OWN,
    ) -> None:
        if not tasks:
            raise UserError("an environment needs at least one task")
        shape = (image_size, image_size) if isinstance(image_size, int) else image_size
        if num_envs < 1 or min(shape) < 1 or (threads is not None and threads < 1):
            raise UserError("num_envs, image_size and threads must be at least 1")
        if controller not in (None, "exact", "fast"):
            raise UserError(f"unknown controller '{controller}'.{suggest(controller, ('exact', 'fast'))}")
        robot = _one_robot(tasks)
        shown = _shown(robot, cameras)
        if pay_stages and not all(task.stages for task in tasks):
            raise UserError("these tasks have no stages to be paid for; leave pay_stages out")
        leave_divergence_to_results()
        self.num_envs = num_envs
        self._tasks = {task.name: task for task in tasks}
        if len(self._tasks) != len(tasks):
            raise UserError("two tasks have the same name")
        self._scenes = ScenePool(self._tasks, renderer, controller, max_scene_bytes, num_envs, layout)
        self._shows = Shows(tuple(tasks), renderer, training)
        self._slots = [_Slot() for _ in range(num_envs)]
        self._stop, self._shaping, self._pay_stages = stop_at_success, shaping, pay_stages
        self._renderer, self._cameras = renderer, robot.cameras
        self._threads = min(threads or cpu_count(), num_envs)
        self._pool = ThreadPoolExecutor(self._threads, "sim") if self._threads > 1 else None
        self.info = EnvInfo(
            backend="mujoco",
            suite="+".join(dict.fromkeys(task.suite for task in tasks)),
            simulator=f"native-mujoco {mujoco.__version__}{_era(tasks)}",
            renderer=renderer.name if renderer is not None else "none",
            cameras=shown,
            image_shape=shape,
            proprio_dim=robot.proprio_dim,
            action_dim=robot.action_dim,
            action_low=robot.action_low,
            action_high=robot.action_high,
            control_hz=robot.control_hz,
            max_episode_steps=max(task.max_episode_steps for task in tasks),
            state_dim=0 if layout is None else layout.dim,
        )

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """Put `episodes[i]` into `env_ids[i]`; UserError for an unknown task or initial state."""
        check_env_ids(env_ids, len(self._slots))
        check_episodes(env_ids, episodes, self._tasks)
        self._each(len(env_ids), lambda i: self._reset(self._slots[env_ids[i]], episodes[i]))

    def _reset(self, slot: _Slot, spec: EpisodeSpec) -> None:
        scene, env = slot.scene, slot.env
        if scene is None or env is None or scene.task.name != spec.task:
            if scene is not None and env is not None:
                slot.scene = slot.env = None
                self._scenes.give_back(scene, env)
            scene, env = self._scenes.take(spec.task)
            slot.scene, slot.env = scene, env
        self._shows.end(slot.shown)
        slot.shown = None
        begun = self._shows.begin(scene, spec)
        slot.shown, slot.live = begun.shown, True
        env.reset(begun.state, scene.start)
        slot.steps = 0
        if self._shaping is not None or scene.reader is not None:
            env.judge_start()
        if self._shaping is not None:
            slot.potential = self._shaping.potential(scene.facts, env.data, env.held)

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """Run up to K control steps in each env; actions float32 [N, K, A], clipped to the bounds of `info`.

        Raises:
            ValueError: for non-finite or misshapen actions, and for an env whose episode has ended.
        """
        arrays = np.ascontiguousarray(action_array(actions))
        rows, steps, dim = arrays.shape
        if rows != len(env_ids) or steps < 1 or dim != self.info.action_dim:
            raise ValueError(
                f"actions must be [{len(env_ids)}, K, {self.info.action_dim}] with K >= 1, got {arrays.shape}"
            )
        check_env_ids(env_ids, len(self._slots))
        for index in env_ids:
            if not self._slots[index].live:
                raise ValueError(f"env {index} holds no running episode; reset it first")
        reward = np.zeros((rows, steps), np.float32)
        taken, status, late = np.zeros(rows, np.int32), np.zeros(rows, np.int64), np.zeros(rows, np.bool_)
        success = np.zeros(rows, np.bool_)

        def run(row: int) -> None:
            slot = self._slots[env_ids[row]]
            bonus = np.zeros(steps)
            taken[row], status[row], late[row] = self._step(slot, arrays[row], reward[row], bonus)
            success[row] = reward[row].any()
            reward[row] += bonus

        self._each(rows, run)
        return ChunkResult.from_numpy(
            reward=reward,
            terminated=status == kernel.SUCCESS,
            truncated=(status == kernel.RUNNING) & late,
            success=success,
            steps_taken=taken,
            failed=status == kernel.FAILED,
        )

    def _step(self, slot: _Slot, actions: Array, reward: Array, bonus: Array) -> tuple[int, int, bool]:
        """Run a chunk, fill its sparse rewards and what shaping adds; return steps taken, the kernel's status and
        whether the horizon is over."""
        scene, env = _occupied(slot)
        actions = actions[: scene.task.max_episode_steps - slot.steps]
        if self._pay_stages:
            taken, status = self._run_staged(env, actions, reward, bonus)
        elif self._shaping is None:
            taken, status = env.run(actions, reward, stop=self._stop)
        else:
            taken, status = self._run_shaped(slot, self._shaping, actions, reward, bonus)
        slot.steps += taken
        late = slot.steps >= scene.task.max_episode_steps
        slot.live = status == kernel.RUNNING and not late
        return taken, status, late

    def _run_staged(self, env: Env | JointEnv, actions: Array, reward: Array, bonus: Array) -> tuple[int, int]:
        """`Env.run` step by step: with its bonus a step pays the number of stages that are reached."""
        status = kernel.RUNNING
        for k in range(len(actions)):
            _, status = env.run(actions[k : k + 1], reward[k : k + 1], stop=self._stop)
            if status == kernel.FAILED:
                return k + 1, status
            bonus[k] = env.held.sum() - reward[k]
            if status == kernel.SUCCESS:
                return k + 1, status
        return len(actions), status

    def _run_shaped(
        self, slot: _Slot, shaping: Shaping, actions: Array, reward: Array, bonus: Array
    ) -> tuple[int, int]:
        """`Env.run` step by step. The potential of a task's end is 0; a chunk is discounted once, as a decision."""
        scene, env = _occupied(slot)
        status, last = kernel.RUNNING, len(actions) - 1
        for k in range(len(actions)):
            before = slot.potential
            _, status = env.run(actions[k : k + 1], reward[k : k + 1], stop=self._stop)
            if status == kernel.FAILED:
                return k + 1, status
            ended = status == kernel.SUCCESS
            slot.potential = 0.0 if ended else shaping.potential(scene.facts, env.data, env.held)
            bonus[k] = (shaping.gamma if k == last else 1.0) * slot.potential - before
            if ended:
                return k + 1, status
        return len(actions), status

    def observe(self, env_ids: Sequence[int], out: Observation) -> None:
        """Render and fill row i of `out` for `env_ids[i]`; `out` may have more rows. UserError where there are cameras
        and no renderer."""
        if self._renderer is None and self.info.cameras:
            raise UserError("this environment has no renderer; pass one made by embodied_rl.sim.render.make_renderer")
        check_env_ids(env_ids, len(self._slots))
        shape = (len(self.info.cameras), *self.info.image_shape, 3)
        if len(out.instruction) < len(env_ids) or out.images.shape[1:] != shape:
            raise ValueError(f"the observation does not fit {len(env_ids)} envs; allocate it with new_observation")
        images, proprio = out.images.numpy(), out.proprio.numpy()
        state = None if out.state is None else out.state.numpy()

        def fill(row: int) -> None:
            slot = self._slots[env_ids[row]]
            scene, env = _occupied(slot)
            if self.info.cameras:
                self._draw(slot, self.info.cameras, images[row])
            env.proprio(proprio[row])
            if scene.reader is not None and state is not None:
                scene.reader.read(env, state[row])
            assert slot.shown is not None
            out.instruction[row] = slot.shown.instruction

        self._each(len(env_ids), fill)

    def _draw(self, slot: _Slot, cameras: tuple[str, ...], out: Array) -> None:
        scene, env = _occupied(slot)
        drawn = None if slot.shown is None else slot.shown.drawn
        if self._renderer is None or drawn is None:
            raise UserError("this environment has no renderer; pass one made by embodied_rl.sim.render.make_renderer")
        seen, lit = env.seen, lit_groups(scene.switches, env.seen.switch_qpos)
        self._renderer.render(drawn, seen.xpos, seen.xmat, cameras, out, lit)

    def state(self, env_ids: Sequence[int]) -> torch.Tensor:
        """What `Observation.state` would be now, without a picture: float32 [N, S], laid out as `StateLayout` says.

        Raises:
            UserError: the env was made without a layout.
        """
        if not self.info.state_dim:
            raise UserError("this environment has no state; make it with a layout (make_vec_env: state=True)")
        check_env_ids(env_ids, len(self._slots))
        out = torch.zeros(len(env_ids), self.info.state_dim)
        for row, env_id in enumerate(env_ids):
            scene, env = _occupied(self._slots[env_id])
            assert scene.reader is not None
            scene.reader.read(env, out[row].numpy())
        return out

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        """Render `camera` at `size`, also after the episode's end: uint8 [size, size, 3].

        Raises:
            NotImplementedError: where there are no cameras.
        """
        if not self.info.cameras:
            raise NotImplementedError("this environment has no cameras; make it with cameras=1 or 2")
        if camera not in self._cameras:
            raise UserError(f"unknown camera '{camera}'.{suggest(camera, self._cameras)}")
        check_env_ids([env_id], len(self._slots))
        out = np.empty((1, size, size, 3), np.uint8)
        self._draw(self._slots[env_id], (camera,), out)
        return out[0]

    def data(self, env_id: int) -> mujoco.MjData:
        """MuJoCo's state of an env (of the task it holds or held last), to read. ValueError before its first reset."""
        return _occupied(self._slots[env_id])[1].data

    def model(self, env_id: int) -> mujoco.MjModel:
        """The physics model of an env, shared by all envs of its task."""
        return _occupied(self._slots[env_id])[1].model

    def held(self, env_id: int) -> Array:
        """Which predicates of its task's goal hold in an env since its last control step: bool [G]."""
        return _occupied(self._slots[env_id])[1].held.copy()

    def single_env(self, env_id: int) -> tuple[MujocoTask, Env]:
        """The task that an env holds or held last, and its physics, to read. ValueError before its first reset.

        Raises:
            UserError: The robot is not LIBERO's Panda.
        """
        scene, env = _occupied(self._slots[env_id])
        if not isinstance(env, Env):
            raise UserError(f"this is for LIBERO's Panda, and suite '{scene.task.suite}' has a {scene.task.robot.name}")
        return scene.task, env

    def task(self, env_id: int) -> MujocoTask:
        """The task that an env holds or held last."""
        return _occupied(self._slots[env_id])[0].task

    def new_observation(self, rows: int) -> Observation:
        """Allocate an Observation of `rows` rows."""
        return self.info.new_observation(rows)

    def close(self) -> None:
        """Stop the threads; the environment cannot be used afterwards."""
        if self._pool is not None:
            self._pool.shutdown()
        self._slots = []

    def _each(self, rows: int, job: Callable[[int], None]) -> None:
        """Run `job` for every row; threads take the next row as they get free, so a short chunk holds nobody up."""
        if self._pool is None or rows == 1:
            for row in range(rows):
                job(row)
            return
        ticket = count()  # next() is atomic under the GIL

        def work() -> None:
            while (row := next(ticket)) < rows:
                job(row)

        # the calling thread works as well: with one worker less, N threads run on N cores
        others = [self._pool.submit(work) for _ in range(min(self._threads, rows) - 1)]
        work()
        for other in others:
            other.result()


def _shown(robot: RobotSpec, cameras: int | Sequence[str] | None) -> tuple[str, ...]:
    """The cameras that are rendered; UserError for one that there is not."""
    known = robot.cameras
    if cameras is None:
        return known
    if isinstance(cameras, int):
        if not 0 <= cameras <= len(known):
            raise UserError(f"there are 0 to {len(known)} cameras ({', '.join(known)}), not {cameras}")
        return known[:cameras]
    for name in cameras:
        if name not in known:
            raise UserError(f"unknown camera '{name}'.{suggest(name, known)}")
    refuse_twice(cameras, "camera")
    return tuple(cameras)


def _one_robot(tasks: Sequence[MujocoTask]) -> RobotSpec:
    robot, *others = dict.fromkeys(task.robot for task in tasks)
    if others:
        raise UserError("the tasks of one environment have one robot; open an environment for each suite")
    return robot


def _era(tasks: Sequence[MujocoTask]) -> str:
    """Words on the eras of these tasks, none where the running MuJoCo is as it is."""
    eras = dict.fromkeys(task.era for task in tasks)
    return "" if list(eras) == [CURRENT] else f", era {'+'.join(eras)}"


def _occupied(slot: _Slot) -> tuple[Scene, Env | JointEnv]:
    if slot.scene is None or slot.env is None:
        raise ValueError("the env holds no episode; reset it first")
    return slot.scene, slot.env

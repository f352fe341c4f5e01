"""N worlds in one process: chunk-native stepping over threads, frames only where somebody reads them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import mujoco
import numpy as np

from embodied_rl.errors import UserError, suggest
from embodied_rl.policy import action_array
from embodied_rl.sim.mujoco import kernel
from embodied_rl.sim.mujoco.env import ControllerMode, Env
from embodied_rl.sim.mujoco.indicators import lit_groups
from embodied_rl.sim.mujoco.pool import FrameRenderer, Scene, ScenePool
from embodied_rl.sim.mujoco_log import leave_divergence_to_results
from embodied_rl.sim.task import Task
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from embodied_rl.vec_env import EnvInfo

CAMERAS = ("agentview", "robot0_eye_in_hand")
ACTION_DIM = 7
PROPRIO_DIM = 8
CONTROL_HZ = 20.0


class _Slot:
    """A place for one episode, with the world of the task that it holds or held last."""

    def __init__(self) -> None:
        self.scene: Scene | None = None
        self.world: Env | None = None
        self.steps = 0
        self.live = False


class NativeVecEnv:
    """`embodied_rl.vec_env.VecEnv` over MuJoCo worlds of LIBERO-format tasks; any env takes any of the tasks.

    tasks: their names must differ. num_envs: envs. image_size: pixels of the square frames of `observe`.
    renderer: see embodied_rl.sim.render.make_renderer; without one, `observe` and `frame` raise UserError.
    threads: workers over envs, by default the CPUs this process may use. controller: 'exact' is robosuite's linear
    algebra bit for bit, 'fast' is within 1e-7 N m of it and cheaper; None takes 'exact' for LIBERO's official tasks and
    'fast' for ours, which no official run can be compared with. stop_at_success: an episode ends when its goal holds;
    else it goes on to its horizon, with a reward for every step after which the goal holds. max_scene_bytes: memory for
    the models of tasks that no env holds now; the least recently used ones are dropped and built again when needed.
    cameras: how many of CAMERAS `observe` draws, from the first.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        num_envs: int,
        *,
        image_size: int = 128,
        renderer: FrameRenderer | None = None,
        threads: int | None = None,
        controller: ControllerMode | None = None,
        stop_at_success: bool = True,
        max_scene_bytes: int = 2 << 30,
        cameras: int = len(CAMERAS),
    ) -> None:
        if not tasks:
            raise UserError("an environment needs at least one task")
        if num_envs < 1 or image_size < 1 or (threads is not None and threads < 1):
            raise UserError("num_envs, image_size and threads must be at least 1")
        if controller not in (None, "exact", "fast"):
            raise UserError(f"unknown controller '{controller}'.{suggest(controller, ('exact', 'fast'))}")
        if not 1 <= cameras <= len(CAMERAS):
            raise UserError(f"there are 1 to {len(CAMERAS)} cameras ({', '.join(CAMERAS)}), not {cameras}")
        leave_divergence_to_results()
        self.num_envs = num_envs
        self._tasks = {task.name: task for task in tasks}
        if len(self._tasks) != len(tasks):
            raise UserError("two tasks have the same name")
        self._scenes = ScenePool(self._tasks, renderer, controller, max_scene_bytes, max_spare=num_envs)
        self._slots = [_Slot() for _ in range(num_envs)]
        self._stop = stop_at_success
        self._renderer = renderer
        self._threads = min(threads or len(os.sched_getaffinity(0)), num_envs)
        self._pool = ThreadPoolExecutor(self._threads, "sim") if self._threads > 1 else None
        self.info = EnvInfo(
            suite="+".join(dict.fromkeys(task.suite for task in tasks)),
            simulator=f"native-mujoco {mujoco.__version__}",
            renderer=renderer.name if renderer is not None else "none",
            cameras=CAMERAS[:cameras],
            image_size=image_size,
            action_dim=ACTION_DIM,
            proprio_dim=PROPRIO_DIM,
            control_hz=CONTROL_HZ,
        )

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """Put `episodes[i]` into `env_ids[i]`; UserError for an unknown task or initial state."""
        if len(env_ids) != len(episodes):
            raise ValueError(f"{len(env_ids)} envs for {len(episodes)} episodes")
        self._check_env_ids(env_ids)
        for spec in episodes:
            if spec.task not in self._tasks:
                raise UserError(f"unknown task '{spec.task}'.{suggest(spec.task, self._tasks)}")
            available = len(self._tasks[spec.task].init_states)
            if not 0 <= spec.init_state < available:
                raise UserError(f"task '{spec.task}' has initial states 0 to {available - 1}, got {spec.init_state}")
        self._each(len(env_ids), lambda i: self._reset(self._slots[env_ids[i]], episodes[i]))

    def _reset(self, env_id: _Slot, spec: EpisodeSpec) -> None:
        scene, world = env_id.scene, env_id.world
        if scene is None or world is None or scene.task.name != spec.task:
            if scene is not None and world is not None:
                env_id.scene = env_id.world = None
                self._scenes.give_back(scene, world)
            scene, world = self._scenes.take(spec.task)
            env_id.scene, env_id.world = scene, world
        world.reset(scene.task.init_states[spec.init_state], scene.start)
        env_id.steps, env_id.live = 0, True

    def step(self, env_ids: Sequence[int], actions: Array) -> ChunkResult:
        """Run up to K control steps in each env; actions float32 [len(envs), K, 7], clipped to [-1, 1].

        ValueError for non-finite or misshapen actions and for a env whose episode has ended.
        """
        actions = np.ascontiguousarray(action_array(actions))
        rows, steps, dim = actions.shape
        if rows != len(env_ids) or steps < 1 or dim != ACTION_DIM:
            raise ValueError(f"actions must be [{len(env_ids)}, K, {ACTION_DIM}] with K >= 1, got {actions.shape}")
        self._check_env_ids(env_ids)
        for index in env_ids:
            if not self._slots[index].live:
                raise ValueError(f"env {index} holds no running episode; reset it first")
        result = ChunkResult(
            reward=np.zeros((rows, steps), np.float32),
            terminated=np.zeros(rows, np.bool_),
            truncated=np.zeros(rows, np.bool_),
            success=np.zeros(rows, np.bool_),
            steps_taken=np.zeros(rows, np.int32),
            failed=np.zeros(rows, np.bool_),
        )
        self._each(rows, lambda i: self._step(self._slots[env_ids[i]], actions[i], result, i))
        return result

    def _step(self, env_id: _Slot, actions: Array, result: ChunkResult, row: int) -> None:
        scene, world = _occupied(env_id)
        actions = actions[: scene.task.horizon - env_id.steps]
        taken, status = world.run(actions, result.reward[row], stop=self._stop)
        env_id.steps += taken
        result.steps_taken[row] = taken
        result.failed[row] = status == kernel.FAILED
        result.success[row] = result.reward[row].any()
        result.terminated[row] = status == kernel.SUCCESS
        result.truncated[row] = status == kernel.RUNNING and env_id.steps >= scene.task.horizon
        env_id.live = status == kernel.RUNNING and not result.truncated[row]

    def observe(self, env_ids: Sequence[int], out: Observation) -> None:
        """Render and fill row i of `out` for `env_ids[i]`; `out` may have more rows. UserError without a renderer."""
        if self._renderer is None:
            raise UserError("this environment has no renderer; pass one made by embodied_rl.sim.render.make_renderer")
        self._check_env_ids(env_ids)
        size = self.info.image_size
        if len(out.instruction) < len(env_ids) or out.images.shape[1:] != (len(self.info.cameras), size, size, 3):
            raise ValueError(f"the observation does not fit {len(env_ids)} envs; allocate it with new_observation")
        self._each(len(env_ids), lambda i: self._observe(self._slots[env_ids[i]], out, i))

    def _observe(self, env_id: _Slot, out: Observation, row: int) -> None:
        scene, world = _occupied(env_id)
        self._draw(scene, world, self.info.cameras, out.images[row])
        world.proprio(out.proprio[row])
        out.instruction[row] = scene.task.instruction

    def _draw(self, scene: Scene, world: Env, cameras: tuple[str, ...], out: Array) -> None:
        if self._renderer is None or scene.drawn is None:
            raise UserError("this environment has no renderer; pass one made by embodied_rl.sim.render.make_renderer")
        seen, lit = world.seen, lit_groups(scene.switches, world.seen.switch_qpos)
        self._renderer.render(scene.drawn, seen.xpos, seen.xmat, cameras, out, lit)

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        """What `camera` sees in a env, also after its episode ended: uint8 [size, size, 3]."""
        if camera not in CAMERAS:
            raise UserError(f"unknown camera '{camera}'.{suggest(camera, CAMERAS)}")
        self._check_env_ids([env_id])
        out = np.empty((1, size, size, 3), np.uint8)
        self._draw(*_occupied(self._slots[env_id]), (camera,), out)
        return out[0]

    def data(self, env_id: int) -> mujoco.MjData:
        """MuJoCo's state of a env (of the task it holds or held last), to read. ValueError before its first reset."""
        return _occupied(self._slots[env_id])[1].data

    def model(self, env_id: int) -> mujoco.MjModel:
        """The physics model of a env, shared by all envs of its task."""
        return _occupied(self._slots[env_id])[1].model

    def task(self, env_id: int) -> Task:
        """The task that a env holds or held last."""
        return _occupied(self._slots[env_id])[0].task

    def new_observation(self, rows: int) -> Observation:
        """Allocate an Observation of `rows` rows."""
        size = self.info.image_size
        images = np.zeros((rows, len(self.info.cameras), size, size, 3), np.uint8)
        return Observation(images, np.zeros((rows, PROPRIO_DIM), np.float32), [""] * rows)

    def close(self) -> None:
        """Stop the threads; the environment cannot be used afterwards."""
        if self._pool is not None:
            self._pool.shutdown()
        self._slots = []

    def _check_env_ids(self, env_ids: Sequence[int]) -> None:
        if len(set(env_ids)) != len(env_ids):
            raise ValueError(f"env_ids must differ, got {list(env_ids)}")
        for index in env_ids:
            if not 0 <= index < len(self._slots):
                raise ValueError(f"env {index} is not in 0..{len(self._slots) - 1}")

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


def _occupied(env_id: _Slot) -> tuple[Scene, Env]:
    if env_id.scene is None or env_id.world is None:
        raise ValueError("the env holds no episode; reset it first")
    return env_id.scene, env_id.world

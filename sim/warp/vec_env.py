"""The MuJoCo Warp VecEnv: all worlds of a model step together on one device, observations and results stay there."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Literal

import mujoco
import numpy as np
import torch

from embodied_rl.errors import UserError, suggest
from embodied_rl.policy import action_chunks
from embodied_rl.sim.checks import check_env_ids, check_episodes
from embodied_rl.sim.mujoco.pool import FrameRenderer
from embodied_rl.sim.mujoco.robot import PANDA
from embodied_rl.sim.mujoco.task import MujocoTask
from embodied_rl.sim.warp import install, kernels
from embodied_rl.sim.warp.batch import Settings, wp_device
from embodied_rl.sim.warp.chunk import run_chunk
from embodied_rl.sim.warp.host_images import HostImages
from embodied_rl.sim.warp.images import Images, Shown, digest, group
from embodied_rl.sim.warp.randomize import Randomization, described
from embodied_rl.sim.warp.render import View
from embodied_rl.sim.warp.scene import Scene
from embodied_rl.sim.warp.transfer import to_device
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from embodied_rl.vec_env import EnvInfo


class WarpVecEnv:
    """`embodied_rl.vec_env.VecEnv` over MuJoCo Warp for LIBERO-format tasks. Any env can hold any of the tasks.

    Tasks whose physics models are equal are one batch. An env claims a world of its task's batch when it is reset; a
    call steps the worlds of its env ids, and what the others hold stays as it is. Physics is float32 and its contacts
    are MuJoCo Warp's: close to the CPU engine's, not equal.

    Args:
        tasks: with different names.
        num_envs: N.
        device: 'cpu' or 'cuda'; there are the worlds, observations and results.
        image_size: H = W in pixels of the images of `observe`.
        cameras: how many of the robot's `observe` renders, from the first; 0: `images` is empty.
        renderer: 'warp' draws all worlds in one batch on the device; a renderer of `embodied_rl.sim.render` draws them
            one by one on the CPU. Without one, `observe` fills no images and needs cameras=0.
        exact: pictures of 'warp' have shadows and are antialiased.
        stop_at_success: as `MujocoVecEnv`.
        graph: replay a control step as a CUDA graph. None: on a GPU. UserError where it can't be captured.
        randomize: how the worlds of episodes differ; None: they are the tasks' own.
        deterministic: a GPU repeats an episode bit for bit, much slower; not where `randomize` changes physics. A CPU
            always does.

    Example:
        >>> env = WarpVecEnv(load_suite("tabletop_spatial"), 1024, device="cuda", image_size=128)
        >>> env.reset(range(1024), [EpisodeSpec(i, task.name, i % 50, seed=i) for i in range(1024)])
        >>> env.step(range(1024), torch.zeros(1024, 8, 7, device="cuda")).reward.device
        device(type='cuda', index=0)
    """

    def __init__(
        self,
        tasks: Sequence[MujocoTask],
        num_envs: int,
        *,
        device: str = "cpu",
        image_size: int = 128,
        cameras: int = len(PANDA.cameras),
        renderer: FrameRenderer | Literal["warp"] | None = "warp",
        exact: bool = False,
        stop_at_success: bool = True,
        graph: bool | None = None,
        deterministic: bool = False,
        randomize: Randomization | None = None,
    ) -> None:
        if not tasks:
            raise UserError("an environment needs at least one task")
        if num_envs < 1 or image_size < 1:
            raise UserError("num_envs and image_size must be at least 1")
        if not 0 <= cameras <= len(PANDA.cameras):
            raise UserError(f"there are 0 to {len(PANDA.cameras)} cameras ({', '.join(PANDA.cameras)}), not {cameras}")
        if renderer is None and cameras:
            raise UserError("without a renderer an environment has no cameras: open it with cameras=0")
        if randomize is not None and randomize.changes_looks and renderer != "warp":
            raise UserError("colours, lights and cameras vary where MuJoCo Warp draws: take the renderer warp")
        self._randomize = randomize
        on_gpu = torch.device(device).type == "cuda"
        if graph and not on_gpu:
            raise UserError("CUDA graphs need a GPU: leave graph out, or open with device='cuda'")
        self.num_envs = num_envs
        self._tasks = {task.name: task for task in tasks}
        if len(self._tasks) != len(tasks):
            raise UserError("two tasks have the same name")
        place = wp_device(device)
        where = "cpu" if place.is_cpu else f"cuda:{place.ordinal}"
        self._settings = Settings(where, on_gpu if graph is None else graph, deterministic)
        self._stop = stop_at_success
        view = View(PANDA.cameras[:cameras], image_size, exact)
        if renderer == "warp":
            self._images: Images | HostImages | None = Images(num_envs, view, self._settings, randomize)
        else:
            self._images = None if renderer is None else HostImages(renderer, view)
        self._scenes: dict[str, Scene] = {}
        self._scene_of_task: dict[str, tuple[Scene, int]] = {}
        self._held: dict[int, Scene] = {}
        self._task_of: dict[int, MujocoTask] = {}
        self._steps = torch.zeros(num_envs, dtype=torch.int32, device=where)
        self._horizon = torch.zeros(num_envs, dtype=torch.int32, device=where)
        self._live = torch.zeros(num_envs, dtype=torch.bool, device=where)
        self._overflow: list[tuple[Scene, torch.Tensor]] = []
        self._lock = threading.RLock()
        repeats = _repeats(self._settings, randomize)
        self.info = EnvInfo(
            backend="warp",
            suite="+".join(dict.fromkeys(task.suite for task in tasks)),
            simulator=f"mujoco-warp {install.version()} on {where}{repeats}{described(randomize)}",
            renderer=_name_of(renderer, where),
            cameras=PANDA.cameras[:cameras],
            image_shape=(image_size, image_size),
            proprio_dim=PANDA.proprio_dim,
            action_dim=PANDA.action_dim,
            action_low=PANDA.action_low,
            action_high=PANDA.action_high,
            control_hz=PANDA.control_hz,
            max_episode_steps=max(task.max_episode_steps for task in tasks),
            device=where,
        )

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """Put `episodes[i]` into `env_ids[i]`; UserError for an unknown task or initial state."""
        check_env_ids(env_ids, self.num_envs)
        check_episodes(env_ids, episodes, self._tasks)
        with self._lock:
            by_scene: dict[int, tuple[Scene, list[int], list[Array], list[int]]] = {}
            for env_id, spec in zip(env_ids, episodes, strict=True):
                scene, number = self._scene(spec.task)
                self._held[env_id] = scene
                self._task_of[env_id] = self._tasks[spec.task]
                scene.randomize([env_id], [spec.key_of_world])
                if self._images is not None:
                    self._images.reset(env_id, self._tasks[spec.task], spec.key_of_world)
                _, ids, rows, numbers = by_scene.setdefault(id(scene), (scene, [], [], []))
                ids.append(env_id)
                rows.append(scene.start(number, spec.init_state))
                numbers.append(number)
            for scene, ids, rows, numbers in by_scene.values():
                index = self._ids(ids)
                scene.rows[index] = to_device(torch.from_numpy(np.stack(rows)), self.info.device)
                scene.task_of[index] = self._ids(numbers)
            index = self._ids(env_ids)
            horizons = [self._tasks[spec.task].max_episode_steps for spec in episodes]
            self._horizon[index] = self._ids(horizons).int()
            self._steps[index] = 0
            self._live[index] = True

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """Run up to K control steps in each env; actions float32 [N, K, 7] on any device, clipped to [-1, 1].

        Raises:
            ValueError: for non-finite or misshapen actions, and for an env whose episode has ended.
        """
        rows, steps, dim = action_chunks(actions).shape
        if rows != len(env_ids) or steps < 1 or dim != PANDA.action_dim:
            raise ValueError(
                f"actions must be [{len(env_ids)}, K, {PANDA.action_dim}] with K >= 1, got {(rows, steps, dim)}"
            )
        check_env_ids(env_ids, self.num_envs)
        actions = actions.to(self.info.device)
        with self._lock:
            index = self._ids(env_ids)
            self._check_ready(env_ids, index, actions)
            actions = actions.clamp(-1.0, 1.0)
            result = ChunkResult.zeros(rows, steps).to(self.info.device)
            for scene, places in self._by_scene(env_ids):
                at = self._ids(places)
                ids = index[at]
                left = self._horizon[ids] - self._steps[ids]
                part, overflow = run_chunk(scene, ids, actions[at], left, stop=self._stop)
                result.put(at, part)
                # Read by the next `step`: asking now would wait for the device.
                self._overflow.append((scene, overflow))
            self._steps[index] += result.steps_taken
            self._live[index] = ~(result.terminated | result.truncated | result.failed)
        return result

    def _check_ready(self, env_ids: Sequence[int], index: torch.Tensor, actions: torch.Tensor) -> None:
        """Ask the device once for all that must be known before a chunk."""
        known = [torch.isfinite(actions).all().int()[None], self._live[index].int()]
        bits = [_any_bit(overflow) for _, overflow in self._overflow]
        answers = torch.cat([*known, *bits]).tolist()
        for (scene, _), word in zip(self._overflow, answers[1 + len(env_ids) :], strict=True):
            if word:
                scene.grow(word)
        self._overflow = []
        if not answers[0]:
            raise ValueError("the policy returned non-finite actions")
        for env_id, live in zip(env_ids, answers[1:], strict=False):  # not strict: the overflows follow
            if not live:
                raise ValueError(f"env {env_id} holds no running episode; reset it first")

    def observe(self, env_ids: Sequence[int], out: Observation) -> None:
        """Fill row i of `out` for `env_ids[i]`; `out` may have more rows."""
        check_env_ids(env_ids, self.num_envs)
        shape = (len(self.info.cameras), *self.info.image_shape, 3)
        if len(out.instruction) < len(env_ids) or out.images.shape[1:] != shape:
            raise ValueError(f"the observation does not fit {len(env_ids)} envs; allocate it with new_observation")
        with self._lock:
            for scene, places in self._by_scene(env_ids):
                at = self._ids(places)
                ids = [env_ids[place] for place in places]
                seen = scene.rows[self._ids(ids)][:, scene.columns["seen"]]
                out.proprio[at] = _proprio(seen)
                if self._images is not None and self.info.cameras:
                    tasks = [self._task_of[env_id] for env_id in ids]
                    self._images.draw(tasks, seen[:, kernels.SEEN_QPOS :], out.images, Shown(ids, places))
        for row, env_id in enumerate(env_ids):
            out.instruction[row] = self._task_of[env_id].instruction

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        """Render `camera` at `size`, also after the episode's end: uint8 [size, size, 3]."""
        if camera not in PANDA.cameras:
            raise UserError(f"unknown camera '{camera}'.{suggest(camera, PANDA.cameras)}")
        if self._images is None:
            raise NotImplementedError("this environment was opened without a renderer")
        check_env_ids([env_id], self.num_envs)
        with self._lock:
            scene = self._occupied(env_id)
            qpos = scene.rows[env_id, scene.columns["seen"]][kernels.SEEN_QPOS :]
            return self._images.frame(self._task_of[env_id], qpos, View((camera,), size, exact=True), env_id)

    def mirror(self, env_id: int, data: mujoco.MjData) -> None:
        """Put the state of an env into `data` of its physics model, with all that follows from it (mj_forward)."""
        scene = self._occupied(env_id)
        row = scene.rows[env_id].cpu().numpy().astype(np.float64)
        data.qpos[:], data.qvel[:] = row[scene.columns["qpos"]], row[scene.columns["qvel"]]
        mujoco.mj_forward(scene.model, data)

    def model(self, env_id: int) -> mujoco.MjModel:
        """The physics model of an env, shared by all envs of its task."""
        return self._occupied(env_id).model

    def new_observation(self, rows: int) -> Observation:
        """Allocate an Observation of `rows` rows on the env's device."""
        return self.info.new_observation(rows)

    def close(self) -> None:
        """Free the worlds; the environment cannot be used afterwards."""
        self._scenes, self._scene_of_task, self._held = {}, {}, {}

    def _scene(self, name: str) -> tuple[Scene, int]:
        """The scene of a task and the task's number there; built when it is first asked for."""
        if name not in self._scene_of_task:
            task = self._tasks[name]
            model = task.build_physics()
            # Tasks of one scene differ in their goals: with one model their envs step in one batch.
            key = digest(model)
            if key in self._scenes:
                scene = self._scenes[key]
                self._scene_of_task[name] = scene, scene.add(task)
            else:
                scene = Scene(model, task, self.num_envs, self._settings, self._randomize)
                self._scenes[key] = scene
                self._scene_of_task[name] = scene, 0
        return self._scene_of_task[name]

    def _by_scene(self, env_ids: Sequence[int]) -> list[tuple[Scene, list[int]]]:
        """The scenes of these envs, each with the rows of the call that belong to it."""
        scenes = [self._occupied(env_id) for env_id in env_ids]
        return [(scenes[rows[0]], rows) for rows in group(scenes)]

    def _occupied(self, env_id: int) -> Scene:
        if env_id not in self._held:
            raise ValueError(f"env {env_id} holds no episode; reset it first")
        return self._held[env_id]

    def _ids(self, values: Sequence[int]) -> torch.Tensor:
        return to_device(torch.tensor(values, dtype=torch.int64), self.info.device)


def _any_bit(words: torch.Tensor) -> torch.Tensor:
    """All bits that are set in any of `words`, int32 [1]."""
    # torch has no reduction by bitwise or.
    bits = torch.arange(16, dtype=torch.int32, device=words.device)
    return ((((words[:, None] >> bits) & 1).amax(dim=0)) << bits).sum(dtype=torch.int32)[None]


def _proprio(seen: torch.Tensor) -> torch.Tensor:
    """float32 [N, 8] from what is seen: eef position (m), its axis-angle (rad), finger positions (m), as in LIBERO."""
    quat, fingers = seen[:, kernels.EEF_QUAT : kernels.FINGERS], seen[:, kernels.FINGERS : kernels.SEEN_QPOS]
    w = quat[:, :1].double().clamp(-1.0, 1.0)  # rounded beyond 1 it has no arccos
    sine = (1.0 - w * w).sqrt()
    angle = 2.0 * w.arccos()
    turn = torch.where(sine.abs() <= 1e-8, 0.0, quat[:, 1:] * angle / sine)
    return torch.cat([seen[:, :3], turn.float(), fingers], dim=1)


def _repeats(settings: Settings, randomize: Randomization | None = None) -> str:
    """For the stamp: whether a GPU repeats an episode; worlds of different physics do so up to rounding at most."""
    if settings.device == "cpu":
        return ""
    differ = randomize is not None and randomize.changes_physics
    return ", repeats bit for bit" if settings.deterministic and not differ else ", repeats up to rounding"


def _name_of(renderer: FrameRenderer | str | None, where: str) -> str:
    if renderer is None:
        return "none"
    return f"mujoco-warp {install.version()} on {where}" if isinstance(renderer, str) else renderer.name

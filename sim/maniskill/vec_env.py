"""ManiSkill on the CPU behind the contract: one of its environments for each env, for `ProcessVecEnv`'s children."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, Literal

import numpy as np
import torch

from embodied_rl.errors import UserError, suggest
from embodied_rl.sim.checks import check_env_ids, check_episodes
from embodied_rl.sim.maniskill.control import AUTO, LIBERO, PROPRIO_DIM, Control, describe_control, pick_mode
from embodied_rl.sim.maniskill.load import NO_REWARD, hand_camera, load_maniskill, make
from embodied_rl.sim.maniskill.tasks import ManiSkillTask
from embodied_rl.sim.step_reward import RewardMode, StepReward, choose_reward
from embodied_rl.sim.stepping import ChunkBook, StepOutcome, bounded_actions
from embodied_rl.types import Array, ChunkResult, EpisodeSpec, Observation
from embodied_rl.utils.words import counted
from embodied_rl.vec_env import EnvInfo

RENDER_CAMERA = "render_camera"


@dataclass(frozen=True, slots=True)
class Setup:
    """What is asked of ManiSkill; `ManiSkillFactory` documents the fields."""

    control: str = AUTO
    reward: RewardMode = "auto"
    image_size: int | None = None
    gamma: float = 1.0
    cameras: int | None = None
    for_policies: bool = False

    @property
    def wants_hand(self) -> bool:
        """Whether a Panda has a camera in its hand."""
        return self.image_size is not None and self.for_policies and self.cameras != 1

    def proprio_dim(self, control: Control, env: Any) -> int:
        """LIBERO's numbers with its actions; for policies of images also with a Panda's other controllers."""
        has_hand = env.agent.uid in ("panda", "panda_wristcam")
        return PROPRIO_DIM if control.name == LIBERO or (self.for_policies and has_hand) else 0

    def sensors(self, env: Any, task: str) -> tuple[str, ...]:
        """Names of the cameras that are drawn; UserError where there are fewer than were asked for."""
        known = () if self.image_size is None else tuple(env.scene.sensors)
        if self.cameras is not None and self.cameras > len(known):
            raise UserError(f"{task} has {counted(len(known), 'camera')} ({', '.join(known)}), not {self.cameras}.")
        return known[: self.cameras]


class SubEnv:
    """One environment of ManiSkill, and how far its episode is."""

    def __init__(self, task: ManiSkillTask, setup: Setup, mode: str | None = None) -> None:
        options: dict[str, Any] = {"control_mode": mode} if mode else {}
        if setup.image_size is not None:
            options["sensor_configs"] = {"width": setup.image_size, "height": setup.image_size}
        self.task = task
        with hand_camera() if setup.wants_hand else nullcontext():
            # always states: obs_mode 'rgb' would draw after every step
            self.env = make(
                task.env_id, num_envs=1, obs_mode="state", sim_backend="cpu", render_backend="cpu", **options
            )
        self.reward = StepReward("native")
        self.steps, self.live = 0, False
        self.state: Array = np.zeros(0, np.float32)

    def reset(self, seed: int, setup: Setup) -> None:
        """Begin the episode of `seed`, paid as `setup` says."""
        state, info = self.env.reset(seed=seed)
        if setup.for_policies:
            self.env._hidden_objects = []  # goals, such as PickCube's
        self.reward = StepReward(self.paid(setup.reward, has_success="success" in info), gamma=setup.gamma)
        self.state, self.steps, self.live = _row(state), 0, True

    def paid(self, wanted: RewardMode, *, has_success: bool) -> Literal["progress", "native", "success"]:
        """`wanted` with 'auto' filled in; UserError where the task has nothing of it."""
        return choose_reward(wanted, has_success, self.task.name, has_reward=self.env.reward_mode != NO_REWARD)

    def step(self, action: Array) -> StepOutcome:
        """One control step, with ManiSkill's own action float32 [A]."""
        state, paid, terminated, _, info = self.env.step(torch.from_numpy(action[None]))
        shown, native, self.steps = _row(state), float(paid[0]), self.steps + 1
        if not (np.isfinite(native) and np.isfinite(shown).all()):
            self.live = False  # and the last sound state is what is seen
            return StepOutcome(0.0, failed=True)
        self.state, success = shown, "success" in info and bool(info["success"][0])
        goes_on = success and self.reward.mode == "native"  # `terminated` is success or a failure of the task
        ended = bool(terminated[0]) and not goes_on
        late = self.steps >= self.task.max_episode_steps and not ended
        self.live = not (ended or late)
        paid = self.reward.pay(native, success, ended=ended, late=late)
        return StepOutcome(paid, success, ended, late)

    def images(self, cameras: Sequence[str]) -> Array:
        """What the robot's cameras see now: uint8 [V, H, W, 3]."""
        seen = self.env._get_obs_sensor_data()
        return np.stack([seen[name]["rgb"][0].cpu().numpy() for name in cameras])

    def proprio(self) -> Array:
        """LIBERO's eight numbers: float32 [8]."""
        pose = self.env.agent.tcp.pose
        position, (w, *xyz) = pose.p[0].cpu().numpy(), pose.q[0].cpu().numpy()
        fingers = self.env.agent.robot.get_qpos()[0, -2:].cpu().numpy()
        axis, sine = np.asarray(xyz), float(np.linalg.norm(xyz))
        turned = axis / sine * 2 * np.arctan2(sine, w) if sine > 1e-9 else np.zeros(3)
        return np.concatenate([position, turned, fingers]).astype(np.float32)


class ManiSkillVecEnv:
    """`embodied_rl.vec_env.VecEnv` over ManiSkill on the CPU. Any env can hold any of the tasks.

    The state is ManiSkill's `state` observation. With LIBERO's control, proprio holds LIBERO's eight numbers. `observe`
    draws, `step` does not. Episodes end at success unless the reward is 'native'.

    Args:
        tasks: with states of one size, and the same controller, control frequency and cameras.
        num_envs: N.
        setup: control, reward and images.

    Raises:
        UserError: The tasks differ too much, or one of them can't be made here.

    Example:
        >>> env = ManiSkillVecEnv(load_tasks(["PushCube-v1"]), 2)
        >>> env.reset([0], [EpisodeSpec(0, "maniskill/PushCube-v1", init_state=0, seed=1)])
        >>> env.step([0], torch.zeros(1, 4, 7)).steps_taken
        tensor([4], dtype=torch.int32)
    """

    def __init__(self, tasks: Sequence[ManiSkillTask], num_envs: int, setup: Setup | None = None) -> None:
        if not tasks or num_envs < 1:
            raise UserError("an environment needs at least one task and one env")
        self._setup = setup or Setup()
        driver = load_maniskill()
        self.num_envs = num_envs
        self._tasks = {task.name: task for task in tasks}
        opened = _open_all(tasks, self._setup)
        self._control = opened[0].control
        self._sub_envs: dict[tuple[int, str], SubEnv] = {(0, one.sub_env.task.name): one.sub_env for one in opened}
        self._held: list[SubEnv | None] = [None] * num_envs
        self._lock = threading.RLock()  # SAPIEN's environments share a renderer
        self.info = _describe(opened, self._setup, driver)

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        """Put `episodes[i]` into `env_ids[i]`; UserError for an unknown task or initial state."""
        check_env_ids(env_ids, self.num_envs)
        check_episodes(env_ids, episodes, self._tasks)
        with self._lock:
            for env_id, spec in zip(env_ids, episodes, strict=True):
                sub_env = self._sub_env(env_id, self._tasks[spec.task])
                sub_env.reset(int(sub_env.task.init_states[spec.init_state]), self._setup)
                self._held[env_id] = sub_env

    def _sub_env(self, env_id: int, task: ManiSkillTask) -> SubEnv:
        key = (env_id, task.name)
        if key not in self._sub_envs:
            self._sub_envs[key] = SubEnv(task, self._setup, self._control.mode)
        return self._sub_envs[key]

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        """Run up to K control steps in each env, one env after the other.

        Raises:
            ValueError: for non-finite or misshapen actions, env ids that are none or come twice, and an env whose
                episode has ended.
        """
        arrays = self._control.map(bounded_actions(actions, len(env_ids), self.info))
        check_env_ids(env_ids, self.num_envs)
        sub_envs = [self._sub_env_of(env_id) for env_id in env_ids]
        for env_id, sub_env in zip(env_ids, sub_envs, strict=True):
            if not sub_env.live:
                raise ValueError(f"env {env_id} holds no running episode; reset it first")
        book = ChunkBook(*arrays.shape[:2])
        with self._lock:
            for row, sub_env in enumerate(sub_envs):
                sub_env.reward.begin_chunk(arrays.shape[1])
                for action in arrays[row]:
                    book.add(row, sub_env.step(action))
                    if not sub_env.live:
                        break
        return book.result()

    def observe(self, env_ids: Sequence[int], out: Observation) -> None:
        """Fill row i of `out` for `env_ids[i]`; draws where images were asked for."""
        assert out.state is not None
        with self._lock:
            for row, env_id in enumerate(env_ids):
                sub_env = self._sub_env_of(env_id)
                out.state[row] = torch.from_numpy(sub_env.state)
                out.instruction[row] = sub_env.task.instruction
                if self.info.proprio_dim:
                    out.proprio[row] = torch.from_numpy(sub_env.proprio())
                if self.info.cameras:
                    out.images[row] = torch.from_numpy(sub_env.images(self.info.cameras))

    def frame(self, env_id: int, camera: str, size: int) -> Array:
        """Draw a camera of the robot, or 'render_camera' (or ''), ManiSkill's for people: uint8 [size, size, 3].

        A camera draws at the size that it was made with; the picture is scaled.
        """
        import cv2

        with self._lock:
            sub_env = self._sub_env_of(env_id)
            if camera in ("", RENDER_CAMERA):
                drawn = sub_env.env.render_rgb_array(RENDER_CAMERA)
                if drawn is None:
                    raise NotImplementedError(f"{sub_env.task.name} has no camera '{RENDER_CAMERA}'")
                image = drawn[0].cpu().numpy()
            elif camera in self.info.cameras:
                image = sub_env.images([camera])[0]
            else:
                raise UserError(f"unknown camera '{camera}'.{suggest(camera, [RENDER_CAMERA, *self.info.cameras])}")
        return np.asarray(cv2.resize(image, (size, size), interpolation=cv2.INTER_AREA), np.uint8)

    def new_observation(self, rows: int) -> Observation:
        """Allocate an Observation of `rows` rows."""
        return self.info.new_observation(rows)

    def close(self) -> None:
        """Close ManiSkill's environments."""
        for sub_env in self._sub_envs.values():
            sub_env.env.close()
        self._sub_envs, self._held = {}, [None] * self.num_envs

    def _sub_env_of(self, env_id: int) -> SubEnv:
        check_env_ids([env_id], self.num_envs)
        sub_env = self._held[env_id]
        if sub_env is None:
            raise ValueError(f"env {env_id} holds no episode; reset it first")
        return sub_env


def _row(state: torch.Tensor) -> Array:
    """The only row of a state, a copy."""
    return state[0].cpu().numpy().astype(np.float32)


@dataclass(frozen=True, slots=True)
class _Opened:
    """The first env of a task, and what ManiSkill tells only once it is made."""

    sub_env: SubEnv
    control: Control
    state_dim: int
    has_success: bool

    def why_not_beside(self, first: _Opened, cameras: bool) -> str | None:
        """What keeps this task out of an environment with `first`; None if nothing does."""
        env, other = self.sub_env.env, first.sub_env.env
        if self.state_dim != first.state_dim:
            return f"has states of {self.state_dim} numbers, not {first.state_dim}"
        if not self.control.equals(first.control):
            return f"is controlled by other actions ({self.control.name})"
        if env.control_freq != other.control_freq:
            return f"runs at {env.control_freq:g} Hz, not {other.control_freq:g}"
        if cameras and list(env.scene.sensors) != list(other.scene.sensors):  # their order too
            return "has other cameras"
        return None


def _open_all(tasks: Sequence[ManiSkillTask], setup: Setup) -> list[_Opened]:
    """An env of each task; UserError, and none of them, where they don't fit into one environment."""
    opened: list[_Opened] = []
    try:
        for task in tasks:
            opened.append(_open(task, setup))
            reason = opened[-1].why_not_beside(opened[0], setup.image_size is not None)
            if reason is not None:
                raise UserError(f"{task.name} {reason}: train it apart from {tasks[0].name}.")
    except BaseException:
        for one in opened:
            one.sub_env.env.close()
        raise
    return opened


def _open(task: ManiSkillTask, setup: Setup) -> _Opened:
    """An env with the control that was asked for."""
    sub_env = SubEnv(task, setup)
    try:
        mode = pick_mode(setup.control, sub_env.env, task.name)
        if mode != sub_env.env.control_mode:
            sub_env.env.close()
            sub_env = SubEnv(task, setup, mode)
        control = describe_control(setup.control, sub_env.env, task.name)
        state, info = sub_env.env.reset(seed=0)
        sub_env.paid(setup.reward, has_success="success" in info)  # raises where it has none to pay for
    except BaseException:
        sub_env.env.close()
        raise
    return _Opened(sub_env, control, int(state.shape[1]), "success" in info)


def _describe(opened: Sequence[_Opened], setup: Setup, driver: str) -> EnvInfo:
    first, control, size = opened[0].sub_env, opened[0].control, setup.image_size
    tasks = [one.sub_env.task for one in opened]
    cameras = setup.sensors(first.env, first.task.name)
    paid = {
        f"{one.sub_env.paid(setup.reward, has_success=one.has_success)} of {one.sub_env.env.reward_mode}"
        for one in opened
    }
    return EnvInfo(
        backend="maniskill",
        suite="+".join(dict.fromkeys(task.suite for task in tasks)),
        simulator=f"maniskill {version('mani-skill')}, sapien {version('sapien')}, PhysX on the CPU, control "
        f"{control.name}, reward {'+'.join(sorted(paid))}",
        renderer=f"sapien, {driver}" if cameras else "none",
        cameras=cameras,
        image_shape=(size or 0, size or 0),
        proprio_dim=setup.proprio_dim(control, first.env),
        state_dim=opened[0].state_dim,
        action_dim=len(control.low),
        action_low=tuple(map(float, control.low)),
        action_high=tuple(map(float, control.high)),
        control_hz=float(first.env.control_freq),
        max_episode_steps=max(task.max_episode_steps for task in tasks),
        has_success=all(one.has_success for one in opened),
    )


@dataclass(frozen=True, slots=True)
class ManiSkillFactory:
    """Call it with a number of envs to open a `ManiSkillVecEnv`, best in the children of a `ProcessVecEnv`.

    Args:
        tasks: see `load_tasks`.
        control: 'libero' (its scales, +1 closes the gripper; turns saturate at ManiSkill's 0.1 rad a step), the name of
            one of ManiSkill's controllers, or 'auto': 'libero' for a Panda with its gripper, else the task's first one.
        reward: see `embodied_rl.sim.step_reward`; ManiSkill's own is 'normalized_dense' in [0, 1] where a task
            has it, else 'dense' or 'sparse'.
        gamma: the learner's discount of a decision, for the reward 'progress'.
        image_size: also draw the robot's cameras at H = W of this many pixels; None: no images.
        cameras: how many of them, from the first; None: all.
        for_policies: what policies of images need: a Panda has a camera in its hand, also where its task gives it none,
            and goals that ManiSkill hides from cameras are seen. Without it images are those of its mode `rgb`.
    """

    tasks: tuple[ManiSkillTask, ...]
    control: str = AUTO
    reward: RewardMode = "auto"
    gamma: float = 1.0
    image_size: int | None = None
    cameras: int | None = None
    for_policies: bool = False

    def __call__(self, num_envs: int) -> ManiSkillVecEnv:
        setup = Setup(self.control, self.reward, self.image_size, self.gamma, self.cameras, self.for_policies)
        return ManiSkillVecEnv(self.tasks, num_envs, setup)

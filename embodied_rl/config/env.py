"""Options of the simulated environments: each simulator has a class of its own, as each policy has."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Literal, get_args

from embodied_rl.errors import UserError
from embodied_rl.utils.options import Expert

AUTO = "auto"

RenderQuality = Literal["auto", "exact", "fast"]
Reward = Literal["sparse", "staged", "shaped"]
RewardMode = Literal["auto", "progress", "native", "success"]
POTENTIALS = ("auto", "progress")
"""Reward modes that may be a potential, which needs the learner's discount."""
_CHOICES = {"render_quality": get_args(RenderQuality), "reward": get_args(Reward), "reward_mode": get_args(RewardMode)}


@dataclass(frozen=True, kw_only=True)
class _AnyEnvConfig:
    num_envs: int = 32
    """Environments that run at the same time; more are faster up to a point, the result does not depend on it."""

    def __post_init__(self) -> None:
        for name, known in _CHOICES.items():  # from Python anything may come
            if getattr(self, name, known[0]) not in known:
                raise UserError(f"env.{name} '{getattr(self, name)}': choose {', '.join(known)}.")
        for name in ("num_envs", "num_threads", "processes"):
            value = getattr(self, name, None)
            if value is not None and value < 1:
                raise UserError(f"env.{name} must be at least 1, got {value}.")

    @property
    def threads(self) -> int | None:
        """CPU threads that the user gave the envs; None: as many as there are cores."""
        return None

    @property
    def watched(self) -> int | None:
        """Watched processes that hold the envs; None: they are in this process."""
        return None


@dataclass(frozen=True, kw_only=True)
class _WatchedEnvConfig(_AnyEnvConfig):
    processes: Expert[int | None] = None
    """Watched processes that hold the envs: one that crashes, hangs or leaks memory is replaced, and its episodes
    run again (None: the envs are in this process, and a crash of the simulator ends the run). Env groups of a pipelined
    scheduler whose envs share a process wait for each other: take at least as many."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.processes is not None and self.processes > self.num_envs:
            raise UserError(f"--env.processes {self.processes}: there are only {self.num_envs} envs.")

    @property
    def watched(self) -> int | None:
        """As `processes`."""
        return self.processes


@dataclass(frozen=True, kw_only=True)
class _DrawnEnvConfig(_AnyEnvConfig):
    renderer: Literal["auto", "egl", "osmesa", "raycast", "raster", "warp"] = "auto"
    """What draws the images; auto takes the first that works and says which. warp: all envs ray traced in one batch
    on the policy's device, where they stay; auto takes it with the simulator warp."""
    render_quality: Expert[RenderQuality] = "auto"
    """exact: with shadows, reflections and antialiasing, pixel for pixel LIBERO's; fast: close to it, ten times
    cheaper on a CPU. auto: exact on LIBERO's suites, fast on the built-in ones."""
    randomize_color: Expert[float] = 0.0
    """Renderer warp: multiply colours by factors in 1 +- this, drawn for each episode (GRPO: group); 0: the tasks'."""
    randomize_light: Expert[float] = 0.0
    """Renderer warp: likewise the brightness of lights."""
    randomize_camera: Expert[float] = 0.0
    """Renderer warp: move each camera by up to so many metres along each axis."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("color", "light", "friction", "mass"):
            share = getattr(self, f"randomize_{name}", 0.0)
            if not 0 <= share < 1:
                raise UserError(f"--env.randomize-{name} is a share in [0, 1), got {share:g}.")
        if not 0 <= self.randomize_camera <= 1:
            raise UserError(f"--env.randomize-camera is in metres, 0 to 1, got {self.randomize_camera:g}.")
        if self.randomizes_images and not self.drawn_by_warp:
            raise UserError(
                "--env.randomize-color, -light and -camera change what MuJoCo Warp draws: add --env.renderer warp."
            )

    @property
    def drawn_by_warp(self) -> bool:
        """Whether MuJoCo Warp draws."""
        return self.renderer == "warp"

    @property
    def randomizes_images(self) -> bool:
        """Whether what is drawn differs by episode."""
        return max(self.randomize_color, self.randomize_light, self.randomize_camera) > 0


@dataclass(frozen=True, kw_only=True)
class MujocoConfig(_DrawnEnvConfig, _WatchedEnvConfig):
    """MuJoCo on the CPU, exact."""

    physics_version: Literal["auto", "published", "current", "mujoco-3.3", "mujoco-2.3.7"] = "auto"
    """Whose contacts and texture colours LIBERO's scenes have: published (mujoco-3.3, on which most published scores
    were measured), mujoco-2.3.7 (LIBERO's own), or current (this MuJoCo as it is). auto: published on LIBERO's suites,
    current on the built-in ones, which have no other."""
    reward: Expert[Reward] = "sparse"
    """sparse: an episode pays 1 for success. staged: besides, the share of the goal's facts that hold; shaped: besides,
    how near the hand and what it must move are to where they must be. Both are potentials: no optimum changes where
    PPO bootstraps episodes that run out of time (bootstrap_truncated). Else these keep what they reached: partial
    success pays."""
    reward_gamma: Expert[float | None] = None
    """Discount of a decision in a staged or shaped reward, the learner's (None: that of the algorithm, 1 for grpo)."""
    num_threads: Expert[int | None] = None
    """Threads that step physics and draw (None: one a CPU core)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_gamma(self.reward_gamma)
        if self.reward_gamma is not None and self.reward == "sparse":
            raise UserError("--env.reward-gamma goes with --env.reward staged or shaped.")
        if self.processes is not None and self.drawn_by_warp:
            raise UserError("--env.processes: MuJoCo Warp holds all envs in one batch; leave the option out.")

    @property
    def threads(self) -> int | None:
        """As `num_threads`."""
        return self.num_threads


@dataclass(frozen=True, kw_only=True)
class WarpConfig(_DrawnEnvConfig):
    """MuJoCo Warp: all envs in one batch on the policy's device, float32, with contacts of its own."""

    randomize_friction: Expert[float] = 0.0
    """Multiply friction by a factor in 1 +- this, drawn for each episode (GRPO: group)."""
    randomize_mass: Expert[float] = 0.0
    """Likewise the mass of each object."""
    deterministic: Expert[bool] = False
    """On a GPU: repeat episodes bit for bit, much slower; up to rounding with randomised friction or mass. All else
    repeats anyway."""

    @property
    def drawn_by_warp(self) -> bool:
        """Whether MuJoCo Warp draws."""
        return self.renderer in (AUTO, "warp")

    @property
    def physics_version(self) -> str:
        """Of the scenes: MuJoCo Warp has no other."""
        return "current"


@dataclass(frozen=True, kw_only=True)
class EnvPoolConfig(_WatchedEnvConfig):
    """EnvPool's simulators."""

    reward_mode: Expert[RewardMode] = "auto"
    """What a step pays. progress: 1 for success, which ends the episode, and how much the simulator's own reward grew,
    as a potential; native: the simulator's own reward, and success does not end the episode; success: 1 for it. auto:
    progress where the task has a success, else native."""
    reward_gamma: Expert[float | None] = None
    """Discount of a decision in the reward mode progress, the learner's (None: that of the algorithm, 1 for grpo)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_gamma(self.reward_gamma)
        if self.reward_gamma is not None and self.reward_mode not in POTENTIALS:
            raise UserError(f"--env.reward-gamma goes with the reward 'progress', not with '{self.reward_mode}'.")


@dataclass(frozen=True, kw_only=True)
class MetaWorldConfig(EnvPoolConfig):
    """MetaWorld's own simulator, which shows images."""

    renderer: Expert[Literal["auto", "egl", "osmesa", "raster"]] = "auto"
    """What draws the images; auto takes the first that works and says which."""


@dataclass(frozen=True, kw_only=True)
class AlohaConfig(EnvPoolConfig):
    """ALOHA's two arms in MuJoCo on the CPU, exact."""

    cameras: tuple[str, ...] = ()
    """Cameras that the policy sees, in this order: top, angle, front_close, left_pillar, right_pillar, left_wrist,
    right_wrist (none given: those that its checkpoint learned from, else top)."""
    renderer: Expert[Literal["auto", "egl", "osmesa", "raster"]] = "auto"
    """What draws the images; auto takes the first that works and says which."""
    num_threads: Expert[int | None] = None
    """Threads that step physics and draw (None: one a CPU core)."""

    @property
    def threads(self) -> int | None:
        """As `num_threads`."""
        return self.num_threads


@dataclass(frozen=True, kw_only=True)
class ManiSkillConfig(EnvPoolConfig):
    """ManiSkill's simulator."""

    device: Literal["cpu", "cuda"] = "cpu"
    """Where it simulates and draws. cuda: all worlds in one simulation, one env group, states and images stay there;
    physics repeats up to rounding, and videos are made on the CPU only."""

    control_mode: Expert[str] = AUTO
    """What an action is: libero (LIBERO's scales and gripper), one of the task's own controllers, or auto: libero for
    a Panda with its gripper, else the controller that the task begins with."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device == "cuda" and self.processes is not None:
            raise UserError("--env.processes: a GPU holds all worlds in one simulation; leave the option out.")


@dataclass(frozen=True, kw_only=True)
class GymnasiumConfig(_WatchedEnvConfig):
    """gymnasium's envs."""

    cameras: tuple[str, ...] = ()
    """Images of the observation that the policy sees, in this order, by name (none given: all)."""
    proprio: tuple[str, ...] = ()
    """Parts of the observation that say what the robot feels, joined (none given: agent_pos, state or
    observation.state, beside images)."""
    instruction: str | None = None
    """What is to be done, in place of what the env says (info task or instruction, attribute task_description or
    task)."""
    control_hz: float | None = None
    """Control steps a second, in place of what the env says (metadata render_fps, else 30)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.control_hz is not None and not 0 < self.control_hz < math.inf:
            raise UserError(f"--env.control-hz must be a number above 0, got {self.control_hz}.")


@dataclass(frozen=True, kw_only=True)
class CustomEnvConfig(_WatchedEnvConfig):
    """A simulator of one's own. The options of one that is registered are fields of a subclass."""


EnvConfig = (
    MujocoConfig
    | WarpConfig
    | AlohaConfig
    | EnvPoolConfig
    | MetaWorldConfig
    | ManiSkillConfig
    | GymnasiumConfig
    | CustomEnvConfig
)
SceneConfig = MujocoConfig | WarpConfig
"""What runs the built-in suites and LIBERO's."""
ENVS: dict[str, type[EnvConfig]] = {
    "mujoco": MujocoConfig,
    "warp": WarpConfig,
    "aloha": AlohaConfig,
    "envpool": EnvPoolConfig,
    "metaworld": MetaWorldConfig,
    "maniskill": ManiSkillConfig,
    "gymnasium": GymnasiumConfig,
    "custom": CustomEnvConfig,
}
"""By name, as in `env.name`; `config.register` adds those of users."""


def as_simulator(env: EnvConfig, name: str) -> EnvConfig:
    """The options of simulator `name`, with the values of `env` that it has too."""
    cls = ENVS[name]
    if type(env) is cls:
        return env
    shared = {field.name for field in dataclasses.fields(cls)} & {field.name for field in dataclasses.fields(env)}
    return cls(**{key: getattr(env, key) for key in sorted(shared)})


def resized(
    env: EnvConfig, num_envs: int | None = None, *, threads: int | None = None, processes: int | None = None
) -> EnvConfig:
    """`env` with other numbers; those of threads and processes only where its simulator takes them."""
    given = {"num_envs": num_envs, "num_threads": threads, "processes": processes}
    known = {field.name for field in dataclasses.fields(env)}
    return dataclasses.replace(env, **{name: n for name, n in given.items() if n is not None and name in known})


def one_env(env: EnvConfig) -> EnvConfig:
    """`env` for a look: a single one, in a watched process where they are in such."""
    return resized(env, 1, processes=None if env.watched is None else 1)


def scenes(env: EnvConfig) -> SceneConfig:
    """`env`; UserError unless its simulator runs the built-in suites and LIBERO's."""
    if not isinstance(env, SceneConfig):
        raise UserError(f"{type(env).__name__} does not go with the built-in suites and LIBERO's: take MujocoConfig.")
    return env


def discount(env: EnvConfig) -> float:
    """Discount of a decision in a potential: 1 where none is named."""
    gamma = getattr(env, "reward_gamma", None)
    return 1.0 if gamma is None else gamma


def _check_gamma(gamma: float | None) -> None:
    if gamma is not None and not 0.0 <= gamma <= 1.0:
        raise UserError(f"--env.reward-gamma must lie in [0, 1], got {gamma}.")

"""The configuration of a training run: each part's frozen dataclass, composed; dumped to and loaded from YAML.

Unknown keys, keys of another algorithm or policy and values of the wrong type raise UserError.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from embodied_rl.algorithms.config import AlgorithmConfig, GRPOConfig, ImitateConfig, PPOConfig, SteerConfig
from embodied_rl.config.earlier import as_written_today, current_env
from embodied_rl.config.env import AUTO, ENVS, CustomEnvConfig, EnvConfig, MujocoConfig, as_simulator
from embodied_rl.config.imitation_checks import (
    USUAL_RULE,
    Rule,
    check_demos,
    check_fresh_states,
    check_imitate,
    check_people,
)
from embodied_rl.config.offline import APPLY, OFFLINE_SUITE, check_data
from embodied_rl.config.policies import POLICIES, FlowPolicyConfig, OpenVLAConfig, PolicyConfig, PolicyObjectConfig
from embodied_rl.config.policy_checks import check_flow_policy
from embodied_rl.config.robot import check_robot
from embodied_rl.config.suites import SUITE, check_simulator, find_suite, register_hint
from embodied_rl.config.training_episodes import LEVEL, SHARE, check_changes, check_perturb
from embodied_rl.errors import UserError, suggest
from embodied_rl.evaluation.config import EvalConfig
from embodied_rl.learner.config import CheckpointConfig, LearnerConfig
from embodied_rl.learner.guard import GuardConfig
from embodied_rl.rewards.config import RewardConfig, check_reward
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.scheduler.config import (
    PipelinedConfig,
    RayConfig,
    SchedulerConfig,
    SerialConfig,
    check_fit,
    check_ranks,
)
from embodied_rl.utils.dataclass_io import check_keys, read_dataclass, typed
from embodied_rl.utils.options import Expert
from embodied_rl.utils.plugins import load_installed
from embodied_rl.utils.strict_yaml import read_mapping
from embodied_rl.utils.words import counted

Perturbation = Literal["camera", "light", "texture", "object", "instruction"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything that decides a training run; `config.yaml` in its folder holds it with every 'auto' filled in."""

    suite: str = SUITE
    """Suite of tasks to train and evaluate on."""
    tasks: tuple[str, ...] = ()
    """Short names of the tasks to train and evaluate on (none given: all of the suite); --task NAME names one."""
    protocol: str = "native"
    """Whose way to run an episode: native (this project's), libero (the same after 10 settle steps), openvla,
    openvla_oft, openpi, rlinf, rlinf_pi, simplevla or lerobot."""
    train_states: Expert[Literal["train", "heldout", "fresh"]] = "train"
    """Initial states to train on: train, which are never evaluated; heldout, the evaluated ones themselves, as some
    published results do; the run and its checkpoints then say so. fresh, for --algorithm imitate and steer in the
    built-in suites: each episode has one of its own, drawn for the run."""
    perturb: Expert[tuple[Perturbation, ...]] = ()
    """Change training episodes as embodied-rl eval --perturb does: camera, light, texture, object, instruction. The
    held-out episodes of the run stay as they are."""
    perturb_level: Expert[float | None] = None
    """Scales what --perturb draws (None: 1)."""
    perturb_share: Expert[float | None] = None
    """Share of the training episodes (GRPO: of the groups) that --perturb changes (None: 0.75)."""
    demos: Expert[tuple[str, ...]] = ()
    """Demonstrations that every update imitates too, by --algorithm imitate and steer or by --algorithm.demo-coef: data
    sets as DATA or DATA:WEIGHT, as embodied-rl sft reads them."""
    data: Expert[tuple[str, ...]] = ()
    """Learn from data sets on disk, without a simulator, by --algorithm imitate or steer: demonstrations as --demos
    names them, and episodes of a policy that embodied-rl export wrote, failures and a person's help among them. In
    place of a suite, and of --demos."""
    people: Expert[Literal["none", "expert"]] = "none"
    """Who takes over episodes of training, with --algorithm imitate or steer: expert, the suite's scripted one. What is
    done in an episode with help is imitated where the goal was reached; for the policy it counts as failed."""
    people_rule: Expert[Rule] = USUAL_RULE[0]
    """Which episodes: late, those not solved after --people-after control steps; share, a random --people-share of
    them, each before a random one of the first --people-after; detector, those in which --people-detector raises an
    alarm, from there on."""
    people_detector: Expert[str] = ""
    """File of embodied-rl watch, made with --policy.checkpoint, whose weights go on looking while the policy learns."""
    people_after: Expert[int] = USUAL_RULE[1]
    """Control steps until the expert takes over."""
    people_share: Expert[float] = USUAL_RULE[2]
    """With --people-rule share: which share of the episodes the expert takes over."""
    robot: Expert[str] = ""
    """Run the episodes on an arm over ROS 2, with --algorithm imitate: twin, a simulated one; a shipped arm or the path
    of your arm's file, where a person sets the scene and --task says in words what is to be done."""
    robot_speed: Expert[float] = 1.0
    """The twin's seconds in a second: below 1 where the computer is too busy for real time."""
    iterations: int = 30
    """Policy updates."""
    seed: int = 0
    """Seed of every random draw of the run."""
    output: str = AUTO
    """Folder of the run; auto makes runs/SUITE-ALGORITHM-seedN-TIME."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the policy lives; auto takes a GPU if there is one."""
    num_threads: Expert[int | None] = None
    """CPU threads of the policy, side by side over parts of the rows when it learns and, OpenVLA and OFT, when it acts
    on 32 or more (None: one a CPU core). Under a pipelined scheduler acting and learning leave each other half."""
    track: Literal["none", "tensorboard", "wandb", "trackio"] = "none"
    """Also send metrics, videos and the report there; metrics.jsonl is always written."""
    autotune: bool = False
    """Try up to twelve schedules at the start, in short iterations on a copy of the policy, and take the fastest one's
    scheduler, env groups, envs and micro-batch, which config.yaml then holds. Rows of older policies only if
    --scheduler pipelined --scheduler.mode async is given."""
    trace: Expert[str | None] = None
    """File for a timeline of the first iterations that chrome://tracing and ui.perfetto.dev show; the report of a
    pipelined run has a chart of it in any case."""
    videos: int = 3
    """Tasks of which a video is recorded before and after training; 0: none."""
    imports: tuple[str, ...] = field(default=(), metadata={"flag": "--import"})
    """Modules of one's own that register what the run is made of (--import); whoever goes on with it imports them."""
    env: EnvConfig = field(default_factory=MujocoConfig)
    policy: PolicyConfig = field(default_factory=OpenVLAConfig)
    algorithm: AlgorithmConfig = field(default_factory=PPOConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    scheduler: SchedulerConfig = field(default_factory=SerialConfig)
    evaluation: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    guard: GuardConfig = field(default_factory=GuardConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)

    def __post_init__(self) -> None:
        _positive("iterations", self.iterations)
        _positive("num_threads", self.num_threads)
        for name in ("tasks", "demos", "data"):
            if isinstance(given := getattr(self, name), str):  # from Python: it would be read letter by letter
                raise UserError(f"{name} must be a list of names, got '{given}': write {name}=('{given}',).")
        for name in ("seed", "videos"):
            if getattr(self, name) < 0:
                raise UserError(f"{name} must not be negative, got {getattr(self, name)}.")
        check_perturb(self.perturb, self.perturb_level, self.perturb_share)

    @property
    def perturbation(self) -> tuple[float, float]:
        """Level and share of --perturb, given or not."""
        level, share = self.perturb_level, self.perturb_share
        return LEVEL if level is None else level, SHARE if share is None else share

    @property
    def takeover_rule(self) -> tuple[Rule, int, float]:
        """When --people takes over: rule, after, share."""
        return self.people_rule, self.people_after, self.people_share

    def check(self) -> None:
        """Raise UserError if a number is not finite, or parts that are fine by themselves do not fit together."""
        for part, values in to_dict(self).items():
            for key, value in values.items() if isinstance(values, dict) else [("", values)]:
                if isinstance(value, float) and not math.isfinite(value):
                    raise UserError(f"{part}{'.' if key else ''}{key} must be a finite number, got {value}.")
        table = find_suite(self.suite)
        if table is not None and type(self.env) is not CustomEnvConfig:  # of which a caller has one that is open
            check_simulator(table, self.env)
        check_changes(self.perturb, self.env)
        if isinstance(self.algorithm, GRPOConfig):
            self.rollout.groups(self.algorithm.group_size)  # raises unless the group size divides the episodes
            if self.rollout.sampler == "adaptive":
                raise UserError(
                    "--rollout.sampler adaptive is for --algorithm ppo: of a group that always fails GRPO learns "
                    "nothing. Leave it out."
                )
        env_reward = self.env.reward if isinstance(self.env, MujocoConfig) else "sparse"
        check_reward(
            self.reward, self.algorithm, self.rollout, self.guard, env_reward=env_reward, autotune=self.autotune
        )
        check_demos(self.demos, self.algorithm)
        check_data(self.algorithm, to_dict(self), to_dict(as_offline(self)))
        check_people(self.people, self.takeover_rule, self.people_detector, self.algorithm)
        if isinstance(self.algorithm, ImitateConfig):
            check_imitate(self.algorithm, self.learner, self.rollout, self.scheduler, self.policy, self.autotune)
        check_fresh_states(table, self.algorithm, self.train_states)
        check_robot(self)
        if self.autotune and getattr(self.policy, "compile", False):
            raise UserError(
                "--autotune would take the compiler's time for the policy's: run it without "
                "--policy.compile, and then train with what it chose."
            )
        if isinstance(self.policy, FlowPolicyConfig):
            check_flow_policy(self.policy, self.algorithm, self.scheduler, fsdp=self.learner.fsdp)
        if self.learner.num_processes > 1:
            check_ranks(self.scheduler, self.learner.num_processes)
        if isinstance(self.scheduler, PipelinedConfig):
            check_fit(self.scheduler, self.env.num_envs, self.learner.minibatch_groups)


def as_offline(config: TrainConfig) -> TrainConfig:
    """The learner of `config` without its simulator, for one round of learning from data on disk."""
    kept = {name: getattr(config, name) for name in APPLY}
    return dataclasses.replace(TrainConfig(), suite=OFFLINE_SUITE, iterations=1, videos=0, **kept)


def iterations_of(config: TrainConfig, episodes: int) -> int:
    """How many iterations have so many training episodes; UserError where the last one would be cut."""
    if config.data:
        raise UserError("--episodes: a run that learns from data on disk has none of its own; give --iterations.")
    each = config.rollout.episodes_per_iteration
    if episodes < 1 or episodes % each:
        whole = [count * each for count in (episodes // each, episodes // each + 1) if count > 0]
        raise UserError(
            f"--episodes {episodes} is no whole number of iterations of {counted(each, 'episode')} "
            f"(--rollout.episodes-per-iteration): give {' or '.join(map(str, whole))}."
        )
    return episodes // each


# A part that comes in several kinds is written with its kind as `name`.
KINDS: dict[str, Mapping[str, type]] = {
    "env": ENVS,
    "policy": POLICIES,
    "algorithm": {"grpo": GRPOConfig, "imitate": ImitateConfig, "ppo": PPOConfig, "steer": SteerConfig},
    "scheduler": {"serial": SerialConfig, "pipelined": PipelinedConfig, "ray": RayConfig},
}


def selectable(part: str) -> list[str]:
    """The kinds of `part` that a command line can choose; a custom env comes with its suite."""
    return [
        name
        for name, cls in KINDS[part].items()
        if cls is not PolicyObjectConfig and not issubclass(cls, CustomEnvConfig)
    ]


def known_kind(part: str, name: str) -> bool:
    """Whether `part` comes in that kind, of installed packages too."""
    if name not in KINDS[part]:
        load_installed()
    return name in KINDS[part]


def kind_of(part: str, value: object) -> str:
    """The name under which the class of `value` is known, e.g. 'grpo'."""
    return next(name for name, cls in KINDS[part].items() if type(value) is cls)


def to_dict(config: TrainConfig) -> dict[str, Any]:
    """Plain values that YAML and JSON can hold; `from_dict` is the inverse."""
    data: dict[str, Any] = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            name = {"name": kind_of(item.name, value)} if item.name in KINDS else {}
            data[item.name] = name | {key: _plain(inner) for key, inner in dataclasses.asdict(value).items()}
        else:
            data[item.name] = _plain(value)
    return data


def from_dict(data: Mapping[str, Any], base: TrainConfig | None = None, source: str = "config") -> TrainConfig:
    """Build a config; what `data` does not name keeps the value of `base`. Raises UserError naming the bad key."""
    base = base or TrainConfig()
    data = as_written_today(data, base.suite, source)
    hints = typing.get_type_hints(TrainConfig)
    check_keys(data, hints, "", source)
    changes: dict[str, Any] = {}
    for key, value in data.items():
        current = getattr(base, key)
        if dataclasses.is_dataclass(current) and not isinstance(current, type):
            changes[key] = read_part(key, value, current, source)
        else:
            changes[key] = typed(value, hints[key], key, source)
    return dataclasses.replace(base, **changes)


def read_env(data: Any, suite: str, source: str) -> EnvConfig:
    """The `env` of a file that is for `suite`, today's or of an earlier version."""
    table = find_suite(suite)
    usual = MujocoConfig() if table is None else ENVS[table.simulators[0]]()
    env = current_env(data, suite, source) if isinstance(data, Mapping) else data
    return read_part("env", env, usual, source)


def dump_yaml(config: TrainConfig) -> str:
    """The whole config as YAML."""
    # Other characters than ASCII are escaped: PyYAML reads a plain U+0085 back as a space.
    return yaml.safe_dump(to_dict(config), sort_keys=False)


def load_yaml(path: Path, base: TrainConfig | None = None) -> TrainConfig:
    """Read a YAML file over `base`; UserError if it is unreadable or does not fit."""
    data = read_mapping(path)
    return from_dict(data, base, str(path))


def belongs_to(part: str, key: str, kind: str) -> str | None:
    """The other kind of `part` that has `key`, if `kind` itself has not; else None."""
    if key in _names(KINDS[part][kind]):
        return None
    return next((name for name, cls in KINDS[part].items() if key in _names(cls)), None)


def read_part(part: str, value: Any, current: Any, source: str) -> Any:
    """One nested dataclass; a change of kind starts from that kind's defaults, of the simulator from the envs' own."""
    if not isinstance(value, Mapping):
        raise UserError(f"{source}: '{part}' must hold keys and values, got {value!r}.")
    values = dict(value)
    if part in KINDS:
        kind = values.pop("name", None) or kind_of(part, current)
        if not known_kind(part, kind):
            raise UserError(f"{source}: unknown {part} '{kind}'.{suggest(str(kind), KINDS[part])}{register_hint()}")
        for key in values:
            other = belongs_to(part, str(key), kind)
            if other:
                raise UserError(f"{source}: '{part}.{key}' does not apply to {kind} (it belongs to {other}).")
        if part == "env":  # what both simulators have stays as it is
            current = as_simulator(current, kind)
        elif kind_of(part, current) != kind:
            current = KINDS[part][kind]()
    return read_dataclass(type(current), values, where=part, source=source, base=current)


def _names(cls: type) -> set[str]:
    return {item.name for item in dataclasses.fields(cls)}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _positive(name: str, value: int | None) -> None:
    if value is not None and value < 1:
        raise UserError(f"{name} must be at least 1, got {value}.")

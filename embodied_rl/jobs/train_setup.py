"""What a training run is made of: simulator, policy, initial states, and what really runs."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from embodied_rl.algorithms.config import PPOConfig, SteerConfig
from embodied_rl.autotune.tune import Tuning, further_devices, tune
from embodied_rl.config.env import CustomEnvConfig, EnvConfig, one_env, scenes
from embodied_rl.config.imitation_checks import need_demos
from embodied_rl.config.policies import PolicyObjectConfig
from embodied_rl.config.robot import is_real
from embodied_rl.config.suites import find_suite
from embodied_rl.config.train import TrainConfig, kind_of
from embodied_rl.config.training_episodes import check_changes
from embodied_rl.data.lerobot import Demonstrations
from embodied_rl.errors import UserError
from embodied_rl.evaluation.overlap import Overlap, join_states, overlap
from embodied_rl.factory.backends import check_told_apart
from embodied_rl.factory.custom import TaskEnv, refuse_reward
from embodied_rl.factory.demonstrations import with_people
from embodied_rl.factory.fresh_states import with_fresh_states
from embodied_rl.factory.info import machine_info, simulator_info, versions
from embodied_rl.factory.made_for import as_learned, need_as_learned, suite_of
from embodied_rl.factory.premises import left_out_states, require_train_states
from embodied_rl.factory.run_config import envs_of_rank, new_view, resolve, with_step_discount
from embodied_rl.factory.scenes import pick_renderer
from embodied_rl.factory.suite_env import SuiteEnv
from embodied_rl.factory.suites import Tasks, asked, load, open_tasks, opened_by_user
from embodied_rl.factory.tasks import LIBERO_SUITES, bundles_digest
from embodied_rl.factory.view import View, training_episodes, view_of
from embodied_rl.jobs.run_info import check_bundles
from embodied_rl.jobs.train_demos import RunDemos, open_demos
from embodied_rl.jobs.train_people import open_watcher
from embodied_rl.jobs.train_policy import RunPolicy, check_policy, loaded, new, passed
from embodied_rl.jobs.train_robot import open_robot, real_tasks
from embodied_rl.learner.types import TrainablePolicy
from embodied_rl.reward_model import SIMULATOR_REWARD, RewardModel
from embodied_rl.rewards.open import open_reward
from embodied_rl.rollout.sampler import TaskStates, evaluation_specs
from embodied_rl.scheduler.config import PipelinedConfig, RayConfig
from embodied_rl.scheduler.pipeline.replica import acting_device
from embodied_rl.sim.libero.protocol import protocol
from embodied_rl.sim.wrappers.takeover import TakeoverRule
from embodied_rl.telemetry.info import PolicyInfo, RunInfo, SimulatorInfo
from embodied_rl.training.settings import PolicyFiles
from embodied_rl.utils.ranks import ProcessRank
from embodied_rl.utils.threads import set_torch_threads
from embodied_rl.vec_env import VecEnv

if TYPE_CHECKING:
    from embodied_rl.sim.render import Choice


@dataclass(frozen=True, slots=True)
class Overrides:
    """Objects that a caller of `embodied_rl.train` passes in place of names in the config."""

    env: TaskEnv | None = None
    policy: TrainablePolicy | None = None


@dataclass(frozen=True, slots=True)
class RunStates:
    """Initial states by task.

    train: drawn from. heldout: evaluated. known: all that the policy will have been trained on; None where its
    checkpoint does not say what came before.
    """

    train: TaskStates
    heldout: TaskStates
    known: dict[str, list[int]] | None

    def overlap(self, config: TrainConfig) -> Overlap:
        """How many of the evaluated states are trained on."""
        rows = {task: states[: config.evaluation.states_per_task] for task, states in self.heldout.items()}
        return overlap(self.known, evaluation_specs(rows, config.seed))


@dataclass(frozen=True, slots=True)
class RunSetup:
    """A run that is ready to start.

    config: every 'auto' filled in. instructions: of its tasks, as far as they are known before an episode.
    reward_model: see `with_reward`. demos: what it imitates, or None. recorded: episodes on disk, to learn from in
    place of its own, or None. people: `env`, some of whose episodes a person takes over, or None. left_out: of
    `left_out_states`. trained_physics_version: of `RunInfo`.
    """

    config: TrainConfig
    env: VecEnv
    policy: TrainablePolicy
    files: PolicyFiles
    states: RunStates
    policy_info: PolicyInfo
    simulator_info: SimulatorInfo
    overrides: Overrides
    instructions: tuple[str, ...] = ()
    reward_model: RewardModel = SIMULATOR_REWARD
    demos: RunDemos | None = None
    recorded: Demonstrations | None = None
    people: VecEnv | None = None
    left_out: tuple[int, int] | None = None
    trained_physics_version: str | None = None

    @property
    def resume_command(self) -> str:
        """How a stopped run is continued."""
        if self.overrides == Overrides():
            return shlex.join(["embodied-rl", "train", "--resume", self.config.output])
        objects = ", ".join(f"{name}=..." for name in ("env", "policy") if getattr(self.overrides, name) is not None)
        return f"embodied_rl.train(resume={self.config.output!r}, {objects})"


def with_reward(setup: RunSetup) -> RunSetup:
    """The setup with its reward model, whose digest is now in the config, which every checkpoint then holds.

    Raises:
        UserError: as of `open_reward`.
    """
    config, asked = setup.config, setup.config.reward
    if not asked.model:
        return setup
    assert isinstance(config.algorithm, PPOConfig), "the config sees to it"
    model, digest = open_reward(
        asked,
        config.algorithm,
        config.device,
        setup.env.info,
        setup.instructions,
        rephrased="instruction" in config.perturb,
    )
    return dataclasses.replace(
        setup, config=dataclasses.replace(config, reward=dataclasses.replace(asked, digest=digest)), reward_model=model
    )


def load_command(config: TrainConfig) -> str:
    """How a run's policy is used afterwards."""
    if config.data:
        use = "eval" if suite_of(config.output) else "serve"
        return shlex.join(["embodied-rl", use, "--checkpoint", config.output])
    if is_real(config.robot):
        return shlex.join(["embodied-rl", "serve", "--checkpoint", config.output])
    suite = find_suite(config.suite)
    if isinstance(config.policy, PolicyObjectConfig) or suite is None:
        return f"embodied_rl.load_policy({config.output!r}, into=...)"
    tasks = ["--tasks", *config.tasks] if config.tasks else []
    named = [config.suite, *tasks] if suite.example or suite.is_custom else []
    fast = config.suite in LIBERO_SUITES and getattr(config.env, "render_quality", "") == "fast"
    quality = ["--env.render-quality", "fast"] if fast else []
    return shlex.join(["embodied-rl", "eval", *named, "--checkpoint", config.output, *quality])


@contextmanager
def open_run(config: TrainConfig, overrides: Overrides, console: Console, *, resume: Path | None) -> Iterator[RunSetup]:
    """Open what `config` names, or take what is given.

    Raises:
        UserError: Something that the config names is not there, or does not go with what is given.
    """
    need_demos(config.demos, config.algorithm)
    config, tasks = _tasks(config, overrides, resumed=resume is not None)
    if overrides.policy is None:
        _check_reads(config, tasks)
        made = None
    else:
        config, made = passed(config, overrides.policy, resumed=resume is not None)
    if overrides != Overrides():
        _refuse_copies(config)
    check_changes(config.perturb, config.env)
    if resume is not None:
        check_bundles(Path(config.output), config.suite, bundles_digest(tasks.scenes))
    renderer = _renderer(config.env, tasks, resumed=resume is not None)
    config = resolve(config, renderer, tasks.scenes)
    _use_threads(config)
    made = made or loaded(config, resume)
    tasks, _ = tasks.judged(console)
    if config.train_states == "train":
        require_train_states(tasks.scenes)
    if config.train_states == "fresh":
        tasks = with_fresh_states(tasks, config)
    if made is not None and isinstance(config.scheduler, PipelinedConfig):
        acting_device(config.scheduler.act_device, made.policy)  # refused before anything is written
    if config.autotune:
        config = find_schedule(config, tasks, None if made is None else made.policy, console).config
    robot = open_robot(config, tasks, _view(config, made), console) if config.robot else None
    with robot.env if robot else open_tasks(tasks, envs_of_rank(config.env), _view(config, made)) as env:
        if made is None:
            made = new(config, env)
            if made.device != config.device:
                config = resolve(dataclasses.replace(config, device=made.device), renderer, tasks.scenes)
        check_policy(made, env.info, config.algorithm)
        need_as_learned(made.provenance, config.env, env.info, made.checkpoint, made.unnorm_key)
        train = env.heldout_states if config.train_states == "heldout" else env.train_states
        demos = open_demos(config, made.policy, env.info, console) if config.demos else None
        known = join_states(made.trained, {} if config.train_states == "fresh" else train)  # none of the suite's own
        states = RunStates(train, env.heldout_states, known if demos is None else demos.joined(known))
        people = robot.people if robot else _people(config, env, tasks, made.policy)
        yield RunSetup(
            config,
            env if overrides.env is None else overrides.env,
            made.policy,
            made.files(config, states.known, env.info),
            states,
            made.info,
            simulator_info(env.info, config.env, tasks.scenes, renderer),
            overrides,
            tasks.instructions,
            demos=demos,
            people=people,
            left_out=left_out_states(tasks.scenes),
            trained_physics_version=made.provenance.get("era"),
        )


def _people(config: TrainConfig, env: SuiteEnv, tasks: Tasks, policy: Any) -> VecEnv | None:
    """The simulator of training's episodes where the scripted expert takes some of them over."""
    rule, watcher = TakeoverRule(*config.takeover_rule), open_watcher(config, policy, tuple(tasks.instructions))
    return None if config.people == "none" else with_people(env, tasks.scenes, rule, watcher)


def _tasks(config: TrainConfig, overrides: Overrides, *, resumed: bool) -> tuple[TrainConfig, Tasks]:
    """The tasks that the config names or that are given, and the config with the options of their simulator.

    Those that a new run leaves open are as its checkpoint learned.
    """
    if overrides.env is not None:
        refuse_reward(config.env, "the simulator that was passed")
        config = dataclasses.replace(
            config, suite=overrides.env.info.suite, tasks=(), env=CustomEnvConfig(num_envs=overrides.env.num_envs)
        )
        return config, opened_by_user(overrides.env)
    if is_real(config.robot):
        return config, real_tasks(config)
    config = with_step_discount(config, resumed=resumed)
    if not resumed:
        begun, key = (getattr(config.policy, name, None) for name in ("checkpoint", "unnorm_key"))
        config = dataclasses.replace(config, env=as_learned(config.env, config.tasks, begun, config.suite, key))
    return config, load(config.suite, config.tasks, config.env)


def _renderer(env: EnvConfig, tasks: Tasks, *, resumed: bool) -> Choice | None:
    """What draws scenes, and why; None where the simulator draws as it likes."""
    if not tasks.scenes:
        return None
    found = pick_renderer(scenes(env), tasks.scenes)
    # config.yaml names what was chosen, asked for or not
    return dataclasses.replace(found, reason="as the run began") if resumed else found


def _view(config: TrainConfig, made: RunPolicy | None) -> View:
    scheduler = config.scheduler
    apart = isinstance(scheduler, PipelinedConfig) and (scheduler.env_groups or 1) > 1
    options: Any = {"protocol": protocol(config.protocol), "training": training_episodes(config), "apart": apart}
    if made is None:
        return new_view(config, **options)
    return View(**options) if made.is_object else view_of(made.policy, **options)


def run_info(setup: RunSetup, command: str) -> RunInfo:
    """What really runs. command: the command line."""
    config, states = setup.config, setup.states
    lost, total = setup.left_out or (None, None)
    best_of = config.algorithm.candidates if isinstance(config.algorithm, SteerConfig) else None
    return RunInfo(
        command=command,
        started=time.strftime("%Y-%m-%d %H:%M:%S %z"),
        output=config.output,
        suite=config.suite,
        task_names=tuple(states.train),
        protocol=config.protocol,
        algorithm=kind_of("algorithm", config.algorithm),
        scheduler=kind_of("scheduler", config.scheduler),
        seed=config.seed,
        num_processes=config.learner.num_processes,
        policy=dataclasses.replace(setup.policy_info, best_of=best_of),
        simulator=setup.simulator_info,
        overlap=states.overlap(config),
        machine=machine_info(config.device),
        versions=versions(),
        left_out_states=lost,
        train_states=total,
        trained_physics_version=setup.trained_physics_version,
        imports=config.imports,
    )


def _check_reads(config: TrainConfig, tasks: Tasks) -> None:
    """UserError where the config's policy reads a state and the suite shows images, or the other way round; or where it
    reads no instruction and has several tasks."""
    kind, suite, reads = kind_of("policy", config.policy), tasks.suite, config.policy.observes
    if reads == "state" and suite.observes == "images":
        raise UserError(f"policy {kind} reads a state, and suite '{suite.name}' shows images: name another policy.")
    if reads == "images" and suite.observes == "state":
        raise UserError(f"policy {kind} reads images, and suite '{suite.name}' has a state: train it with mlp.")
    if reads == "images":
        check_told_apart(kind, tasks.names)


def _refuse_copies(config: TrainConfig) -> None:
    for wanted, what in ((isinstance(config.scheduler, RayConfig), "scheduler ray"), (config.autotune, "autotune")):
        if wanted:
            raise UserError(
                f"{what} opens simulator and policy more than once: register those that you passed as objects "
                "(embodied_rl.register_env, register_policy)."
            )


def _use_threads(config: TrainConfig) -> None:
    assert config.num_threads is not None, "resolve names a number"
    set_torch_threads(ProcessRank.from_env().local_share(config.num_threads))


def find_schedule(config: TrainConfig, tasks: Tasks, policy: Any, console: Console) -> Tuning:
    """Try schedules for `config`, which is resolved, and print what came out. policy: None where it begins anew."""
    options: Any = {"apart": True}  # several env groups are tried too
    view = view_of(policy, protocol=protocol(config.protocol), **options) if policy else new_view(config, **options)
    tasks = asked(tasks, config.env)
    if policy is None:
        with open_tasks(tasks, one_env(config.env), view) as env:
            policy = new(config, env).policy
    train_states = tasks.heldout_states if config.train_states == "heldout" else tasks.train_states
    tuning = tune(config, partial(open_tasks, tasks, view=view), policy, train_states, console, further_devices(config))
    console.print(tuning.table())
    console.print(f"  autotune      {tuning.describe()}", soft_wrap=True, markup=False, highlight=False)
    return tuning

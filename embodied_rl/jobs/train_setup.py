"""What a training run is made of: simulator, policy, initial states, and the description of what really runs."""

from __future__ import annotations

import dataclasses
import platform
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mujoco
import torch
from rich.console import Console

from embodied_rl.autotune.tune import Tuning, further_devices, tune
from embodied_rl.config.policies import MLPConfig
from embodied_rl.config.train import EnvConfig, OwnPolicyConfig, TrainConfig, kind_of, to_dict
from embodied_rl.config.training_episodes import describe_perturb, refuse_changes
from embodied_rl.errors import UserError
from embodied_rl.evaluation.overlap import TRAINED_STATES, join_states, overlap, trained_states
from embodied_rl.factory.backends import SUITES as STATE_SUITES
from embodied_rl.factory.backends import (
    checked_suite,
    describe_state_env,
    describe_state_policy,
    open_state_policy,
    open_suite,
    repeats,
)
from embodied_rl.factory.envs import describe_env_processes, pick_renderer
from embodied_rl.factory.made_for import need_control_rate
from embodied_rl.factory.own import (
    ENVS,
    TaskEnv,
    describe_own,
    load_own,
    open_own_env,
    open_own_policy,
    own_class,
    refuse_reward,
    save_own,
)
from embodied_rl.factory.policies import describe_policy, load_policy, policy_folder, save_policy
from embodied_rl.factory.premises import describe_left_out, judge, require_train_states
from embodied_rl.factory.protocol_envs import open_envs, training_episodes
from embodied_rl.factory.run_config import envs_of_rank, open_policy_of, resolve, with_step_discount
from embodied_rl.factory.tasks import LIBERO_SUITES, bundles_digest, describe_era, describe_stand_ins, load_tasks
from embodied_rl.jobs.run_folder import check_bundles
from embodied_rl.learner.types import TrainablePolicy
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.rewards.base import SIMULATOR_REWARD, RewardModel
from embodied_rl.rollout.sampler import TaskStates, evaluation_specs
from embodied_rl.scheduler.config import PipelinedConfig, RayConfig
from embodied_rl.scheduler.pipeline.replica import acting_device
from embodied_rl.sim.mujoco.vec_env import CONTROL_HZ
from embodied_rl.training.on_policy import PolicyFiles
from embodied_rl.utils.machine import cpu_count, cpu_name
from embodied_rl.utils.ranks import ProcessRank
from embodied_rl.utils.threads import set_torch_threads
from embodied_rl.utils.words import counted, sentence
from embodied_rl.vec_env import VecEnv
from embodied_rl.version import __version__

if TYPE_CHECKING:
    from embodied_rl.factory.policies import AnyPolicy, KnownPolicy
    from embodied_rl.factory.tasks import SuiteTask


@dataclass(frozen=True, slots=True)
class Given:
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

    def overlap(self, config: TrainConfig) -> str:
        """How many of the evaluated states are trained on, in words."""
        rows = {task: states[: config.evaluation.states_per_task] for task, states in self.heldout.items()}
        return overlap(self.known, evaluation_specs(rows, config.seed)).describe()


@dataclass(frozen=True, slots=True)
class RunSetup:
    """A run that is ready to start.

    config: every 'auto' filled in. about: simulator and policy in words. instructions: of its tasks, as far as they are
    known before an episode. reward_model: see `jobs.reward_model`.
    """

    config: TrainConfig
    env: VecEnv
    policy: TrainablePolicy
    files: PolicyFiles
    states: RunStates
    about: dict[str, Any]
    given: Given
    instructions: tuple[str, ...] = ()
    reward_model: RewardModel = SIMULATOR_REWARD

    @property
    def resume_command(self) -> str:
        """How a stopped run is continued."""
        if self.given == Given():
            return shlex.join(["embodied-rl", "train", "--resume", self.config.output])
        objects = ", ".join(f"{name}=..." for name in ("env", "policy") if getattr(self.given, name) is not None)
        return f"embodied_rl.train(resume={self.config.output!r}, {objects})"


def load_command(config: TrainConfig) -> str:
    """How a run's policy is used afterwards."""
    if isinstance(config.policy, OwnPolicyConfig):
        return f"embodied_rl.load_policy({config.output!r}, into=...)"
    named = [config.suite, "--tasks", *config.tasks] if config.suite in STATE_SUITES else []
    fast = config.suite in LIBERO_SUITES and config.env.render_quality == "fast"
    quality = ["--env.render-quality", "fast"] if fast else []
    return shlex.join(["embodied-rl", "eval", *named, "--checkpoint", config.output, *quality])


@contextmanager
def open_run(config: TrainConfig, given: Given, console: Console, *, resume: Path | None) -> Iterator[RunSetup]:
    """Open what `config` names, or take what is given.

    Raises:
        UserError: Something that the config names is not there, or does not go with what is given.
    """
    if given.env is not None:
        refuse_reward(config.env, "the simulator that was passed")
        worlds = EnvConfig(num_envs=given.env.num_envs, num_threads=config.env.num_threads)
        config = dataclasses.replace(config, suite=given.env.info.suite, tasks=(), env=worlds)
        yield _own_run(config, given, given.env, resume)
        return
    config = with_step_discount(config, resumed=resume is not None)
    if given.policy is None and (config.suite in STATE_SUITES or isinstance(config.policy, MLPConfig)):
        with closing(open_suite(checked_suite(config), config.tasks, envs_of_rank(config.env))) as env:
            yield _state_run(config, env, resume)
        return
    if given.policy is not None or isinstance(config.policy, OwnPolicyConfig) or config.suite in ENVS:
        with closing(open_own_env(dataclasses.replace(config, env=envs_of_rank(config.env)))) as env:
            yield _own_run(config, given, env, resume)
        return
    tasks = load_tasks(config.suite, config.tasks, config.env.scene_era)
    if resume is not None:
        check_bundles(config, bundles_digest(tasks))
    renderer = pick_renderer(config.env.renderer, tasks, config.env.render_quality, config.env.simulator)
    if resume is not None:  # config.yaml names what was chosen, asked for or not
        renderer = dataclasses.replace(renderer, reason=renderer.reason.replace("asked for", "as the run began", 1))
    config = resolve(config, renderer, tasks)
    _use_threads(config)
    policy, checkpoint = open_policy_of(config, resume)
    provenance = read_provenance(policy_folder(checkpoint))
    need_control_rate(provenance, CONTROL_HZ, checkpoint)
    tasks, _ = judge(tasks, console)
    if config.train_states == "train":
        require_train_states(tasks)
    states = _states(
        config,
        {task.name: list(task.train_states) for task in tasks},
        {task.name: list(task.heldout_states) for task in tasks},
        trained_states(provenance),
    )
    if isinstance(config.scheduler, PipelinedConfig):
        acting_device(config.scheduler.act_device, policy)  # refused before anything is written
    if config.autotune:
        config = find_schedule(config, tasks, policy, states.train, console).config
    changes, worlds = training_episodes(config), envs_of_rank(config.env)
    with open_envs(tasks, worlds, config.protocol, policy, changes) as env:
        about = _about_env(env, config, f" ({renderer.reason}), {config.env.render_quality} frames")
        about["era"] = describe_era(tasks, provenance.get("era"))
        about |= describe_left_out(tasks)
        about |= {"bundles": digest} if (digest := bundles_digest(tasks)) else {}
        if stand_ins := describe_stand_ins(tasks):
            about = {"assets": stand_ins} | about
        yield RunSetup(
            config,
            env,
            policy,
            _policy_files(policy, config, states),
            states,
            about | describe_policy(policy, checkpoint),
            given,
            tuple(task.instruction for task in tasks),
        )


def run_info(setup: RunSetup, command: str) -> dict[str, Any]:
    """What really runs, in words."""
    config, states, learner = setup.config, setup.states, setup.config.learner
    names = [sentence(task) for task in states.train]
    return {
        "command": command,
        "suite": f"{config.suite}, {counted(len(names), 'task')}: {', '.join(names)}",
        "protocol": config.protocol,
        **repeats(setup.env.info, states.overlap(config)),
        **setup.about,
        **describe_perturb(config.perturb, *config.perturbation),
        "machine": f"{cpu_name()}, {counted(cpu_count(), 'core')}",
        "device": f"{config.device}, torch {torch.__version__}, {counted(config.num_threads or 0, 'thread')}",
        "algorithm": f"{kind_of('algorithm', config.algorithm)}, "
        f"{counted(config.rollout.episodes_per_iteration, 'episode')} an iteration, "
        f"{counted(config.iterations, 'iteration')}",
        "scheduler": config.scheduler.describe(),
        **(
            {"ranks": f"{learner.num_processes}, {'FSDP2' if learner.fsdp else 'replicated'}"}
            if learner.num_processes > 1
            else {}
        ),
        **(
            {"evaluates": f"a running mean of the weights (1/{learner.average_updates} an update), which is saved too"}
            if learner.average_updates
            else {}
        ),
        "seed": config.seed,
        "output": config.output,
        "versions": f"embodied-rl {__version__}, mujoco {mujoco.__version__}, python {platform.python_version()}",
        "started": time.strftime("%Y-%m-%d %H:%M:%S %z"),
    }


def _own_run(config: TrainConfig, given: Given, env: TaskEnv, resume: Path | None) -> RunSetup:
    """A run with a simulator or a policy of one's own, which is opened once, in this process."""
    _refuse_copies(config, "your own")
    refuse_changes(config.perturb, "a simulator or policy of your own")
    if given.policy is None and not isinstance(config.policy, OwnPolicyConfig):
        config = resolve(config, None, ())
        _use_threads(config)
        policy, checkpoint = open_policy_of(config, resume)
        provenance = read_provenance(policy_folder(checkpoint))
        need_control_rate(provenance, env.info.control_hz, checkpoint)
        states = _states(config, env.train_states, env.heldout_states, trained_states(provenance))
        files, about = _policy_files(policy, config, states), describe_policy(policy, checkpoint)
        return RunSetup(config, env, policy, files, states, _about_env(env, config) | about, given)
    policy = open_own_policy(config, env.info) if given.policy is None else given.policy
    named = config.policy if given.policy is None else OwnPolicyConfig(class_name=own_class(policy))
    if resume is not None and config.policy != named:
        raise UserError(f"{config.output} was not begun with a {own_class(policy)}: pass a policy of its class.")
    device = next(parameter for _, parameter in policy.named_parameters()).device.type
    config = resolve(dataclasses.replace(config, policy=named, device=device), None, ())
    _use_threads(config)
    states = _states(config, env.train_states, env.heldout_states, {})
    provenance = _provenance(config, states)
    files = PolicyFiles(lambda folder: save_own(policy, folder, provenance), lambda folder: load_own(policy, folder))
    return RunSetup(config, env, policy, files, states, _about_env(env, config) | describe_own(policy), given)


def _state_run(config: TrainConfig, env: TaskEnv, resume: Path | None) -> RunSetup:
    """A run of a suite of `factory.backends`, with the state policy."""
    _refuse_copies(config, f"suite '{config.suite}'")
    config = resolve(config, None, ())
    _use_threads(config)
    policy, checkpoint = open_state_policy(config, env.info, resume)
    earlier = trained_states(read_provenance(policy_folder(checkpoint))) if checkpoint else {}
    states = _states(config, env.train_states, env.heldout_states, earlier)
    about = describe_state_env(env.info, config.env) | describe_state_policy(policy, checkpoint, config.seed)
    return RunSetup(config, env, policy, _policy_files(policy, config, states), states, about, Given())


def _refuse_copies(config: TrainConfig, what_runs: str) -> None:
    for asked, what in ((isinstance(config.scheduler, RayConfig), "scheduler ray"), (config.autotune, "autotune")):
        if asked:
            raise UserError(f"{what} opens simulator and policy more than once: it does not go with {what_runs}.")


def _use_threads(config: TrainConfig) -> None:
    assert config.num_threads is not None, "resolve names a number"
    set_torch_threads(ProcessRank.from_env().local_share(config.num_threads))


def _states(
    config: TrainConfig, train: TaskStates, heldout: TaskStates, earlier: dict[str, list[int]] | None
) -> RunStates:
    train = heldout if config.train_states == "heldout" else train
    return RunStates(train, heldout, join_states(earlier, train))


def _about_env(env: VecEnv, config: TrainConfig, drawn: str = "") -> dict[str, Any]:
    info, (height, width) = env.info, env.info.image_shape
    return {
        "simulator": f"{info.simulator}, {counted(config.env.num_envs, 'world')}, {describe_env_processes(config.env)}",
        "renderer": f"{info.renderer}{drawn}, {counted(len(info.cameras), 'camera')} of {height}x{width}",
    }


def find_schedule(
    config: TrainConfig, tasks: Sequence[SuiteTask], policy: AnyPolicy, train_states: TaskStates, console: Console
) -> Tuning:
    """Try schedules for `config`, which is resolved, and print what came out."""

    def open_env(env: EnvConfig) -> AbstractContextManager[VecEnv]:
        return open_envs(tasks, env, config.protocol, policy)

    tuning = tune(config, open_env, policy, train_states, console, further_devices(config))
    console.print(tuning.table())
    console.print(f"  autotune      {tuning.describe()}", soft_wrap=True, markup=False, highlight=False)
    return tuning


def _policy_files(policy: KnownPolicy, config: TrainConfig, states: RunStates) -> PolicyFiles:
    provenance = _provenance(config, states)

    def load(folder: Path) -> None:
        policy.model.load_state_dict(load_policy(folder).model.state_dict())

    return PolicyFiles(lambda folder: save_policy(policy, folder, provenance), load)


def _provenance(config: TrainConfig, states: RunStates) -> dict[str, Any]:
    """What a checkpoint says about how it was trained, and of the demonstrations before."""
    begun = getattr(config.policy, "checkpoint", None)
    views = read_provenance(policy_folder(begun)).get("views") if begun else None
    return {
        "command": "embodied-rl train",
        "version": __version__,
        "seed": config.seed,
        "suite": config.suite,
        "simulator": config.env.simulator,
        "renderer": config.env.renderer,
        "era": config.env.era,
        "config": to_dict(config),
        **({} if states.known is None else {TRAINED_STATES: states.known}),
        **({} if views is None else {"views": views}),
    }

"""From a run's config to the config with every 'auto' filled in, and to its policy."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.config.env import POTENTIALS, EnvConfig, EnvPoolConfig, MujocoConfig, SceneConfig, resized
from embodied_rl.config.policies import CustomPolicyConfig
from embodied_rl.config.suites import find_suite
from embodied_rl.config.train import TrainConfig, kind_of
from embodied_rl.errors import UserError
from embodied_rl.factory.backends import new_state_policy
from embodied_rl.factory.critic import fit_critic
from embodied_rl.factory.custom import decides_own_units, load_into, new_custom_policy
from embodied_rl.factory.fresh import fresh_image_policy, fresh_view
from embodied_rl.factory.policies import UNSTEERED, load_options, open_policy, policy_folder, prepare_policy
from embodied_rl.factory.scenes import pick_render_quality
from embodied_rl.factory.view import View
from embodied_rl.learner.checkpoint import POLICY
from embodied_rl.policies.checkpoints.integrity import recorded_files
from embodied_rl.policies.checkpoints.shipped import is_shipped
from embodied_rl.policies.steering import refuse_steered
from embodied_rl.scheduler.config import PipelinedConfig
from embodied_rl.utils.machine import cpu_count, pick_device
from embodied_rl.utils.ranks import ProcessRank

if TYPE_CHECKING:
    from embodied_rl.factory.policies import AnyPolicy
    from embodied_rl.factory.suite_env import SuiteEnv
    from embodied_rl.sim.mujoco.task import MujocoTask
    from embodied_rl.sim.render import Choice


def resolve(config: TrainConfig, renderer: Choice | None, tasks: Sequence[MujocoTask]) -> TrainConfig:
    """Fill in everything that was left to the program, so that config.yaml repeats the run.

    renderer: None where the simulator was opened by somebody else.
    """
    device, scheduler, cores = pick_device(config.device), config.scheduler, cpu_count()
    if isinstance(scheduler, PipelinedConfig):
        on_cpu = (scheduler.act_device or device).startswith("cpu")
        stages = scheduler.num_env_groups(config.env.num_envs, cpu=on_cpu)
        size = make_algorithm(config.algorithm).group_size
        ahead = scheduler.lookahead(
            config.env.num_envs, config.rollout.groups(size), size, streams=config.learner.minibatch_groups is not None
        )
        scheduler = dataclasses.replace(scheduler, env_groups=stages, max_lookahead=ahead.groups)
    env = config.env
    if isinstance(env, MujocoConfig):
        env = dataclasses.replace(env, num_threads=env.num_threads or cores)
        if env.reward != "sparse":
            env = dataclasses.replace(env, reward_gamma=_discount(env, config))
    if renderer is not None and isinstance(env, SceneConfig):
        quality = pick_render_quality(env.render_quality, tasks)
        env = dataclasses.replace(env, renderer=renderer.name, render_quality=quality)
        if isinstance(env, MujocoConfig):
            env = dataclasses.replace(env, physics_version=tasks[0].era)
    threads = config.num_threads or cores
    return with_absolute_checkpoint(
        dataclasses.replace(config, env=env, num_threads=threads, device=device, scheduler=scheduler)
    )


def with_step_discount(config: TrainConfig, *, resumed: bool) -> TrainConfig:
    """The config with the learner's discount in its env, where a suite of states may pay a potential.

    Raises:
        UserError: a run that is `resumed` began without a discount, when its reward was another one.
    """
    env = config.env
    if not isinstance(env, EnvPoolConfig) or env.reward_mode not in POTENTIALS:
        return config
    if resumed and env.reward_gamma is None:
        raise UserError(
            f"{config.output} began with an older version, whose reward 'progress' was no potential: begin a new run."
        )
    return dataclasses.replace(config, env=dataclasses.replace(env, reward_gamma=_discount(env, config)))


def _discount(env: MujocoConfig | EnvPoolConfig, config: TrainConfig) -> float:
    if env.reward_gamma is not None:
        return env.reward_gamma
    return config.algorithm.gamma if isinstance(config.algorithm, PPOConfig) else 1.0


def open_policy_of(config: TrainConfig, resume: Path | None = None) -> tuple[AnyPolicy, str]:
    """The policy to begin with, or to go on with from the run's checkpoint `resume`; and the folder it comes from."""
    assert not isinstance(config.policy, CustomPolicyConfig), "see factory.custom"
    checkpoint, options = config.policy.checkpoint, load_options(config.policy)
    if resume is not None:
        checkpoint, options = str(resume / POLICY), None  # our own checkpoints say everything themselves
    policy = open_policy(checkpoint, config.device, options)
    if resume is None:
        refuse_steered(policy, f"--policy.checkpoint {checkpoint} begins a run", UNSTEERED)
    fit_critic(policy, config)
    prepare_policy(policy, config.policy, policy_folder(checkpoint))
    policy.with_value = isinstance(config.algorithm, PPOConfig)
    return policy, checkpoint


def begins_anew(config: TrainConfig) -> bool:
    """Whether the policy is made for what the simulator shows: a custom one, or one without a checkpoint.

    Of images that holds in suites of which only the open simulator says what it shows.
    """
    policy, suite = config.policy, find_suite(config.suite)
    if isinstance(policy, CustomPolicyConfig):
        return True
    return not policy.checkpoint and (policy.observes == "state" or suite is None or suite.observes == "any")


def new_view(config: TrainConfig, **options: Any) -> View:
    """What that policy will look at; options: further ones of `View`."""
    if config.policy.observes == "images":
        return fresh_view(config, **options)
    return View(own_units=_own_units(config), **options)


def _own_units(config: TrainConfig) -> bool:
    """Whether it goes on from a policy of the user's that decides actions in an env's own units."""
    policy = config.policy
    known = isinstance(policy, CustomPolicyConfig) and policy.checkpoint
    return bool(known) and decides_own_units(policy_folder(policy.checkpoint))


def new_policy(config: TrainConfig, env: SuiteEnv) -> Any:
    """That policy, with weights that follow from the config's seed; a custom one has those of its checkpoint.

    env: is reset to look at the first states of each task, where that is needed.
    """
    if config.policy.observes == "images":
        policy = fresh_image_policy(config, env)
        fit_critic(policy, config)
        prepare_policy(policy, config.policy, Path())
        policy.with_value = isinstance(config.algorithm, PPOConfig)
        return policy
    if not isinstance(config.policy, CustomPolicyConfig):
        return new_state_policy(config, env.info)
    kind, own_units = kind_of("policy", config.policy), _own_units(config)
    policy: Any = new_custom_policy(config, kind, env.info, own_units=own_units)
    if config.policy.checkpoint:
        with recorded_files() as files:
            load_into(policy, policy_folder(config.policy.checkpoint))
        policy.source_files = tuple(files)
    return policy


def with_absolute_checkpoint(config: TrainConfig) -> TrainConfig:
    """The config with its checkpoint named so that a resume and Ray's workers find it from other working folders."""
    if not config.policy.checkpoint:
        return config
    checkpoint = Path(config.policy.checkpoint)
    if is_shipped(config.policy.checkpoint) or not checkpoint.exists():
        return config
    policy = dataclasses.replace(config.policy, checkpoint=str(checkpoint.absolute()))
    return dataclasses.replace(config, policy=policy)


def envs_of_rank(env: EnvConfig) -> EnvConfig:
    """This rank's share of the envs, and of its machine's threads and processes for them.

    Raises:
        UserError: there are fewer envs than ranks.
    """
    place = ProcessRank.from_env()
    if place.size == 1:
        return env
    if env.num_envs < place.size:
        raise UserError(f"--env.num-envs {env.num_envs} is too few for {place.size} ranks: give each one or more.")
    return resized(
        env,
        place.share(env.num_envs),
        threads=place.local_share(env.threads or cpu_count()),
        processes=None if env.watched is None else place.local_share(env.watched),
    )

"""Suites of tasks with a state in place of images: which simulator opens them, and the policy that learns in them.

A suite is a line in `SUITES`. Its function imports the simulator only when it is called, and returns what opens it with
a number of envs; it can be pickled, so that `--env.processes` may hold the envs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied_rl.config.policies import MLPConfig
from embodied_rl.config.train import EnvConfig, TrainConfig, kind_of
from embodied_rl.errors import UserError, refuse_twice
from embodied_rl.factory.suite_env import SuiteEnv
from embodied_rl.rollout.sampler import TaskStates
from embodied_rl.sim.task import SEEDED_HELDOUT as HELDOUT_STATES
from embodied_rl.sim.task import SEEDED_TRAIN as TRAIN_STATES
from embodied_rl.utils.suites import as_names
from embodied_rl.utils.words import counted
from embodied_rl.vec_env import EnvInfo, VecEnv

if TYPE_CHECKING:
    from embodied_rl.policies.mlp.policy import MLPPolicy

EnvFactory = Callable[[int], VecEnv]
_DEFAULTS = EnvConfig()
_OF_OUR_SUITES = (
    "simulator",
    "randomize_color",
    "randomize_light",
    "randomize_camera",
    "randomize_friction",
    "randomize_mass",
    "renderer",
    "render_quality",
    "era",
    "reward",
)


def _gymnasium(tasks: Sequence[str], config: EnvConfig) -> EnvFactory:
    from embodied_rl.sim.gymnasium.factory import GymnasiumFactory

    for task in tasks:
        if task.startswith("embodied_rl/"):
            raise UserError(f"{task} is a suite of this project and shows images: embodied-rl train tabletop.")
    return GymnasiumFactory(tuple(tasks))


def _envpool(suite: str) -> Callable[[Sequence[str], EnvConfig], EnvFactory]:
    def factory(tasks: Sequence[str], config: EnvConfig) -> EnvFactory:
        from embodied_rl.sim.envpool.tasks import load_tasks
        from embodied_rl.sim.envpool.vec_env import EnvPoolFactory

        return EnvPoolFactory(tuple(load_tasks(suite, tasks)), reward=config.step_reward, gamma=config.discount)

    return factory


def _maniskill(tasks: Sequence[str], config: EnvConfig) -> EnvFactory:
    from embodied_rl.sim.maniskill.tasks import load_tasks
    from embodied_rl.sim.maniskill.vec_env import ManiSkillFactory

    return ManiSkillFactory(
        tuple(load_tasks(tasks)), control=config.control, reward=config.step_reward, gamma=config.discount
    )


SUITES: dict[str, Callable[[Sequence[str], EnvConfig], EnvFactory]] = {
    "gymnasium": _gymnasium,
    "metaworld": _envpool("metaworld"),
    "fetch": _envpool("fetch"),
    "playground": _envpool("playground"),
    "dm_control": _envpool("dm_control"),
    "maniskill": _maniskill,
}
"""By name; called with the short names of the tasks. A task is called 'SUITE/SHORT' where it runs."""
EXAMPLES = {
    "gymnasium": "Pendulum-v1",
    "metaworld": "reach-v3",
    "fetch": "FetchReachDense-v4",
    "playground": "PandaPickCube-v1",
    "dm_control": "cartpole-swingup",
    "maniskill": "PushCube-v1",
}
"""A task of each suite, for messages."""
POTENTIALS = ("auto", "progress")
"""Step rewards that may be a potential, which needs the learner's discount."""


def open_suite(suite: str, tasks: str | Sequence[str], config: EnvConfig) -> SuiteEnv:
    """The simulator of a suite of `SUITES`, in this process or in watched ones, with its train and held-out states.

    Args:
        tasks: short names, at least one: these suites are too large, and their tasks too different, to run whole.

    Raises:
        UserError: No task is named, or one twice; one does not exist, the simulator is not installed, or an option does
            not apply.
    """
    tasks = as_names(tasks)
    if not tasks:
        raise UserError(f"suite '{suite}' needs the name of a task: --task {EXAMPLES[suite]}")
    refuse_twice(tasks, "task")
    own_reward = suite == "gymnasium"
    only_elsewhere = {"control": suite != "maniskill", "step_reward": own_reward, "reward_gamma": own_reward}
    for name in (*_OF_OUR_SUITES, *(name for name, refused in only_elsewhere.items() if refused)):
        if getattr(config, name) != getattr(_DEFAULTS, name):
            raise UserError(f"--env.{name.replace('_', '-')} does not apply to suite '{suite}': leave it out.")
    if config.reward_gamma is not None and config.step_reward not in POTENTIALS:
        raise UserError(f"--env.reward-gamma goes with the reward 'progress', not with '{config.step_reward}'.")
    factory = SUITES[suite](tasks, config)
    with ExitStack() as stack:
        env = stack.enter_context(closing(_opened(factory, config)))
        names = [f"{suite}/{name}" for name in tasks]
        states: list[TaskStates] = [{name: list(rows) for name in names} for rows in (TRAIN_STATES, HELDOUT_STATES)]
        return SuiteEnv(env, states[0], states[1], stack.pop_all())


def _opened(factory: EnvFactory, config: EnvConfig) -> VecEnv:
    if config.processes is None:
        return factory(config.num_envs)
    from embodied_rl.sim.wrappers.subprocess_env import ProcessVecEnv

    return ProcessVecEnv(
        factory,
        config.num_envs,
        processes=config.processes,
        say=lambda line: print(line, file=sys.stderr),  # looked up when called: a progress bar may hold it
    )


def checked_suite(config: TrainConfig) -> str:
    """The config's suite; UserError unless it and the config's policy go together and run natively."""
    if config.suite not in SUITES:
        raise UserError(f"policy mlp reads a state, and suite '{config.suite}' shows images: name another policy.")
    if not isinstance(config.policy, MLPConfig):
        kind = kind_of("policy", config.policy)
        raise UserError(f"policy {kind} reads images, and suite '{config.suite}' has a state: train it with mlp.")
    if config.protocol != "native":
        raise UserError(
            f"--protocol {config.protocol} is one of LIBERO's: it does not apply to suite '{config.suite}'."
        )
    return config.suite


def describe_state_env(info: EnvInfo, config: EnvConfig) -> dict[str, str]:
    """What a run stamps about its simulator."""
    where = f"{counted(config.processes, 'watched process')}" if config.processes else "in this process"
    images = f"{len(info.cameras)} images and " if info.cameras else ""
    return {
        "simulator": f"{info.simulator}, {counted(config.num_envs, 'world')}, {where}",
        "renderer": f"{info.renderer}, for videos; policies see {images}{info.state_dim + info.proprio_dim} numbers",
        "horizon": f"{counted(info.max_episode_steps, 'step')} at {info.control_hz:g} Hz",
        "scored by": "success" if info.has_success else "mean return (its tasks have no success flag)",
    }


def repeats(info: EnvInfo, overlap: str) -> dict[str, Any]:
    """What a stamp says of initial states: their `overlap` with training, as far as there are such.

    'repeatable' is there, as False, only where a task does not repeat its episodes.
    """
    if info.repeatable:
        return {"overlap": overlap}
    return {"overlap": "unknown: episodes do not begin from the initial state that is asked for", "repeatable": False}


def need_state(info: EnvInfo) -> None:
    """UserError unless a state policy can learn from what `info` shows."""
    if info.proprio_dim + info.state_dim == 0:
        raise UserError(
            f"the tasks of suite '{info.suite}' that were named show images and no state: mlp reads a state."
        )


def open_state_policy(config: TrainConfig, info: EnvInfo, resume: Path | None) -> tuple[MLPPolicy, str]:
    """The policy to begin with, or to go on with from `resume`; and the folder it comes from, '' for a new one.

    Raises:
        UserError: The checkpoint is of another kind, damaged, or for other sizes than the tasks have.
    """
    from embodied_rl.factory.policies import load_options, load_policy, policy_folder
    from embodied_rl.learner.checkpoint import POLICY
    from embodied_rl.policies.mlp.checkpoint import fresh

    need_state(info)
    given = config.policy
    assert isinstance(given, MLPConfig)
    sizes = (info.proprio_dim + info.state_dim, info.action_dim)
    checkpoint = given.checkpoint if resume is None else str(resume / POLICY)
    if not checkpoint:
        policy = fresh(given, *sizes, config.seed)
    else:
        request = load_options(given) if resume is None else None
        policy: Any = load_policy(policy_folder(checkpoint), request)
        check_fits(policy, info, checkpoint)
    policy.to(config.device)
    policy.with_value = True
    return policy, checkpoint


def need_images(policy: Any, checkpoint: str) -> None:
    """UserError for a state policy where images are shown."""
    if policy.architecture == "mlp":
        raise UserError(
            f"{checkpoint} holds a state policy (mlp), which sees no images: name its suite and task, as in "
            f"embodied-rl eval gymnasium --task ID --checkpoint {checkpoint}."
        )


def check_fits(policy: Any, info: EnvInfo, checkpoint: str) -> None:
    """UserError unless `policy` is a state policy of the sizes of `info`."""
    sizes = (info.proprio_dim + info.state_dim, info.action_dim)
    if policy.architecture != "mlp":
        raise UserError(
            f"{checkpoint} holds a policy for images ({policy.architecture}): suite '{info.suite}' has none."
        )
    has = (policy.config.observation_dim, policy.config.action_dim)
    if has != sizes:
        raise UserError(
            f"{checkpoint} reads {has[0]} numbers and decides {has[1]}, the task has {sizes[0]} and {sizes[1]}: "
            "it was trained on another task."
        )


def describe_state_policy(policy: MLPPolicy, checkpoint: str, seed: int) -> dict[str, Any]:
    """What a run stamps about its policy."""
    from embodied_rl.factory.policies import policy_folder
    from embodied_rl.policies.checkpoints.integrity import files_digest

    count, config = sum(parameter.numel() for parameter in policy.parameters()), policy.config
    layers = " ".join(map(str, config.hidden))
    kind = "squashed Gaussian" if config.squash else "Gaussian"
    weights = f"random, of seed {seed}"
    if checkpoint:
        weights = f"{checkpoint}, sha256 {files_digest(policy.source_files, policy_folder(checkpoint))[:16]}"
    return {
        "policy": f"mlp, {kind}, layers of {layers} units, {count / 1e3:.1f} k parameters, chunks of "
        f"{config.chunk_len} steps",
        "weights": weights,
    }

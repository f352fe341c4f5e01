"""The functions behind `import embodied_rl`: open a simulator and a policy, evaluate, train."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from embodied_rl import configs as recipes
from embodied_rl.config.env import EnvConfig, EnvPoolConfig, MetaWorldConfig, SceneConfig, WarpConfig, as_simulator
from embodied_rl.config.policies import SHIPPED
from embodied_rl.config.suites import find_suite, suite_named
from embodied_rl.config.train import TrainConfig, as_offline, from_dict, read_env
from embodied_rl.errors import UserError
from embodied_rl.evaluation.benchmark import interleaved
from embodied_rl.evaluation.evaluate import EvalReport
from embodied_rl.evaluation.evaluate import evaluate as run_episodes
from embodied_rl.factory.backends import check_fits
from embodied_rl.factory.custom import TaskEnv, load_into, refuse_reward
from embodied_rl.factory.policies import FAMILIES, PublishedOptions, open_policy, policy_folder
from embodied_rl.factory.sampled_episodes import SampledEpisodes
from embodied_rl.factory.suite_env import SuiteEnv
from embodied_rl.factory.suites import load, open_tasks
from embodied_rl.factory.view import View
from embodied_rl.jobs.ranks import train_as_worker_rank
from embodied_rl.jobs.run_folder import existing_run, new_run
from embodied_rl.jobs.train import run
from embodied_rl.jobs.train_setup import Overrides
from embodied_rl.learner.types import TrainablePolicy
from embodied_rl.policy import ActMode, Policy
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.sim.libero.protocol import protocol as named_protocol
from embodied_rl.sim.views.isaacgym import IsaacGymEnv, Part
from embodied_rl.training.settings import TrainOutcome
from embodied_rl.utils.console import LastingConsole
from embodied_rl.utils.machine import pick_device
from embodied_rl.utils.ranks import ProcessRank
from embodied_rl.utils.suites import as_names

if TYPE_CHECKING:
    from embodied_rl.factory.policies import AnyPolicy

__all__ = ["evaluate", "load_policy", "make_isaacgym_env", "make_vec_env", "recipes", "train"]


def make_vec_env(
    suite: str = "tabletop_spatial",
    num_envs: int = 8,
    *,
    tasks: str | Sequence[str] = (),
    image_size: int = 64,
    cameras: int = 2,
    protocol: str = "native",
    state: bool = False,
    simulator: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    gamma: float | None = None,
    **options: Any,
) -> SuiteEnv:
    """Open `num_envs` simulators of a suite; each runs any of its tasks.

    Args:
        suite: A built-in suite (tabletop_spatial, tabletop_object, tabletop_goal, tabletop_long), one of LIBERO's, one
            whose tasks have a state (gymnasium, metaworld, fetch, playground, dm_control, maniskill,
            aloha_transfer_cube, aloha_insertion), or a registered one.
        num_envs: Episodes that run at the same time. Results do not depend on it.
        tasks: Short names of the tasks, or one; none given: all of the suite.
        image_size: Height and width in pixels of what the policy sees.
        cameras: How many of the simulator's cameras the policy sees, from the first; 0 opens no renderer. ManiSkill's
            and gymnasium's images are fitted to `image_size` where it or this is given; else ManiSkill shows none.
        protocol: How an episode is run: native, or as the authors of a published policy run it, such as openvla_oft.
        state: Observations have `state`, float32 [N, S]: robot, objects, joints and goal facts, laid out as
            `embodied_rl.sim.state.vector.StateLayout` says.
        simulator: mujoco, or warp (MuJoCo Warp on `device`), on the built-in suites and LIBERO's; None: the suite's.
        device: Where MuJoCo Warp simulates and draws; auto takes a GPU if there is one. Without it all is on the CPU.
        gamma: The learner's discount of a decision, which a staged or shaped reward and the reward mode progress need;
            None: 1.
        options: Those of the simulator, as `embodied-rl train --help-all` lists them. The built-in suites and
            LIBERO's: num_threads, processes, era, reward (sparse, staged or shaped), renderer, render_quality, ...;
            EnvPool's and ManiSkill's: processes, reward_mode; ManiSkill's: control_mode.

    Returns:
        A `VecEnv` with `train_states` and `heldout_states`, the initial states by task. Close it, or use `with`.

    Raises:
        UserError: There is no such suite or task, or nothing that can render it.

    Example:
        >>> import embodied_rl as erl
        >>> with erl.make_vec_env("tabletop_spatial", num_envs=8) as env:
        ...     print(env.info.cameras)
        ('agentview', 'robot0_eye_in_hand')
        >>> with erl.make_vec_env("tabletop_goal", num_envs=64, cameras=0, state=True, reward="shaped") as env:
        ...     print(env.info.state_dim)
        74
    """
    config = _env_config(suite, simulator, {"num_envs": num_envs, "reward_gamma": gamma, **options})
    by_warp = isinstance(config, SceneConfig) and (isinstance(config, WarpConfig) or config.drawn_by_warp)
    if pick_device(device) == "cuda" and device == "cuda" and not by_warp:
        raise UserError("device 'cuda' goes with simulator or renderer 'warp'; the rest of a simulator is on the CPU.")
    # suites with a state and images draw none unless they are asked for: a picture may cost as much as ten steps
    usual = View()
    drawn = isinstance(config, MetaWorldConfig) or (image_size, cameras) != (usual.image_size, usual.cameras)
    can_draw = type(config) is not EnvPoolConfig  # which is refused with images
    is_both = suite_named(suite).observes == "any" and can_draw and drawn and cameras != 0
    view = View(
        image_size=image_size,
        cameras=None if is_both and cameras == usual.cameras else cameras,
        fit="pad" if is_both else None,
        state=state,
        protocol=named_protocol(protocol),
        device=pick_device(device) if by_warp else "cpu",
    )
    found, _ = load(suite, tasks, config).judged(LastingConsole(stderr=True))
    env = open_tasks(found, config, view)
    if view.fit is not None and not env.info.cameras:
        env.close()
        raise UserError(f"image_size and cameras do not apply to '{suite}': its tasks show no images.")
    return env


def _env_config(suite: str, simulator: str | None, options: dict[str, Any]) -> EnvConfig:
    """The options of the suite's simulator; UserError for one that it has not."""
    table = suite_named(suite)
    name = simulator or table.simulators[0]
    if name not in table.simulators:
        raise UserError(f"simulator '{name}': suite '{suite}' runs in {' or '.join(table.simulators)}.")
    given = {key: value for key, value in options.items() if (key, value) != ("reward_gamma", None)}
    return read_env({"name": name, **given}, suite, "make_vec_env()")


def make_isaacgym_env(
    env: str | TaskEnv = "tabletop_goal",
    num_envs: int | None = None,
    *,
    seed: int = 0,
    obs: Part | Sequence[Part] | None = None,
    states: Part | Sequence[Part] = (),
    reset_mode: Literal["same_step", "next_step"] = "same_step",
    rl_device: str | None = None,
    max_episode_length: int | None = None,
    **options: Any,
) -> IsaacGymEnv:
    """A simulator with the interface of Isaac Gym's VecTask, for rl_games, rsl_rl and other trainers of state policies.

    Args:
        env: Name of a suite, or a simulator with `train_states`, which the view then closes.
        num_envs: Envs that step together; None: 64, or as many as a simulator has that is open already.
        seed: Fixes the order of episodes.
        obs: What the policy sees, joined; None: the state, or the proprio where there is no state.
        states: What only a critic sees.
        reset_mode: same_step: a row that ended shows its next episode. next_step: as Isaac Gym's own tasks.
        rl_device: Where the trainer's tensors are; None: where the simulator's are.
        max_episode_length: Control steps after which an episode times out, at most the simulator's own horizon (None).
        options: As of `make_vec_env`, such as tasks, reward and gamma. Cameras are left out and the state is in.

    Raises:
        UserError: As `make_vec_env`, or there is nothing of that name to observe, or an open simulator has another
            number of envs.

    Example:
        >>> env = erl.make_isaacgym_env("tabletop_goal", 64, tasks=("turn_on_the_stove",), reward="shaped", gamma=0.99)
        >>> env.reset()["obs"].shape
        torch.Size([64, 74])
    """
    if isinstance(env, str):
        options = {"cameras": 0, "state": True} | options
        opened: TaskEnv = make_vec_env(env, 64 if num_envs is None else num_envs, **options)
    elif options:
        raise UserError(f"{next(iter(options))} is for a suite by name: this simulator is open already.")
    elif num_envs not in (None, env.num_envs):
        raise UserError(f"num_envs {num_envs}: this simulator is open already, with {env.num_envs}; leave it out.")
    else:
        opened = env
    return IsaacGymEnv(
        opened,
        SampledEpisodes(opened, seed),
        obs=obs,
        states=states,
        reset_mode=reset_mode,
        rl_device=rl_device,
        max_episode_length=max_episode_length,
    )


def load_policy(
    checkpoint: str | Path = SHIPPED,
    *,
    device: str = "auto",
    critic: bool = False,
    into: TrainablePolicy | None = None,
    **options: Any,
) -> Any:
    """Load a policy, ready to act.

    Args:
        checkpoint: Folder of a run or of a checkpoint, or OWNER/NAME[@REVISION] on the Hugging Face hub; 'shipped' is
            the small OpenVLA in the package.
        device: auto, cpu or cuda; not for `into`, which stays where it is.
        critic: Let the policy also return values, as PPO needs them.
        into: A policy of your own class that is not registered: gets the weights that a run has saved, and is returned.
        options: What the files of a published checkpoint do not say, such as unnorm_key; see `PublishedOptions`.

    Raises:
        UserError: There is no such checkpoint, it is damaged, or an option does not apply to it.

    Example:
        >>> policy = erl.load_policy()
        >>> policy = erl.load_policy("openvla/openvla-7b", unnorm_key="libero_spatial_no_noops")
        >>> policy = erl.load_policy("runs/mine", into=MyPolicy())
    """
    folder = policy_folder(str(checkpoint))
    if into is not None:
        if options:
            raise UserError(f"{next(iter(options))} describes a published checkpoint: it does not go with into=.")
        load_into(into, folder)
        return into
    policy = _load_known(str(checkpoint), device, options)
    policy.with_value = critic
    return policy


def evaluate(
    env: TaskEnv, policy: Policy, episodes: int = 50, *, mode: ActMode = "greedy", seed: int = 0
) -> EvalReport:
    """Measure success from held-out initial states, spread evenly over the tasks, each state once.

    Args:
        env: Of `make_vec_env`, or your own with `heldout_states`. Its episodes are replaced.
        policy: Of `load_policy`, or your own.
        episodes: How many to run.
        mode: greedy takes the most likely action; sample draws, as training does.
        seed: Of what is sampled.

    Returns:
        Success overall and by task, each with its Wilson 95 % interval, and every episode.

    Raises:
        UserError: There are fewer held-out states, or an episode fails again and again.

    Example:
        >>> report = erl.evaluate(env, policy, episodes=50)
        >>> print(f"{report.overall.rate:.0%}, {report.overall.low:.0%} to {report.overall.high:.0%}")
    """
    if hasattr(policy, "made_for") or getattr(policy, "architecture", "") in FAMILIES:  # made by its name
        check_fits(policy, env.info, "the policy")
    specs = interleaved(evaluation_specs(env.heldout_states, seed))
    if not 1 <= episodes <= len(specs):
        raise UserError(f"episodes must lie in 1..{len(specs)}, the number of held-out states; got {episodes}.")
    return run_episodes(env, policy, specs[:episodes], mode)


def train(
    recipe: str | TrainConfig | None = None,
    *,
    iterations: int | None = None,
    output: str | Path | None = None,
    resume: str | Path | None = None,
    env: TaskEnv | Mapping[str, Any] | None = None,
    policy: TrainablePolicy | Mapping[str, Any] | None = None,
    **overrides: Any,
) -> TrainOutcome:
    """Train a policy with reinforcement learning; everything lands in one folder, with a report.

    Args:
        recipe: Name of a recipe, see `recipes.names()`, or a config.
        iterations: Policy updates; None: as many as the recipe says.
        output: The run's folder; None: runs/SUITE-ALGORITHM-seedN-TIME.
        resume: Folder of a stopped run: goes on exactly where it stopped, in place of `recipe`.
        env: Your own simulator, or one of `make_vec_env`, which stays open; or options as in the config's YAML. None:
            what the config names.
        policy: Your own `torch.nn.Module`, trained in place; or options as in the config's YAML, such as
            {"name": "gaussian"} of a registered one. None: what the config names.
        overrides: Further values of the config, as in its YAML: seed=1, learner={"lr": 1e-4}.

    Returns:
        The evaluations before and after, and the folder of the last checkpoint.

    Raises:
        UserError: Something does not exist or does not fit together.
        Interrupted: Ctrl-C or SIGTERM; a checkpoint was saved.

    Example:
        >>> erl.train("tabletop_openvla_ppo", iterations=30, output="runs/mine")
        >>> erl.train(resume="runs/mine", iterations=60)
        >>> erl.train("tabletop_openvla_ppo", env=MyEnv(), policy=MyPolicy(), videos=0)
    """
    if isinstance(env, Mapping):
        overrides["env"], env = env, None
    if isinstance(policy, Mapping):
        overrides["policy"], policy = policy, None
    passed = Overrides(env, policy)
    if not ProcessRank.from_env().is_main:
        return train_as_worker_rank(passed)
    if resume is not None:
        if recipe is not None or output is not None or overrides:
            raise UserError("resume= continues a run with its own config: only iterations, env and policy go with it.")
        with existing_run(Path(resume), iterations) as config:
            return run(config, "embodied_rl.train", resume=True, overrides=passed)
    if recipe is None:
        raise UserError(f"train needs a recipe ({', '.join(recipes.names())}), a config, or resume=.")
    config = recipes.get(recipe) if isinstance(recipe, str) else recipe
    if isinstance(overrides.get("tasks"), str):
        overrides["tasks"] = as_names(overrides["tasks"])
    named = {"iterations": iterations, "output": None if output is None else str(output)}
    if overrides.get("data"):
        config = as_offline(config)
    table = find_suite(str(overrides.get("suite", "")))
    if table is not None and table.is_custom:  # its simulator is no recipe's
        overrides["env"] = {"name": table.simulators[0], **overrides.get("env", {})}
    config = from_dict({**overrides, **{k: v for k, v in named.items() if v is not None}}, config, "train()")
    if env is not None:
        refuse_reward(config.env, "the simulator that was passed")
        config = dataclasses.replace(config, suite=env.info.suite, tasks=(), env=as_simulator(config.env, "custom"))
    config.check()
    with new_run(config) as config:
        return run(config, "embodied_rl.train", overrides=passed)


def _load_known(checkpoint: str, device: str, options: dict[str, Any]) -> AnyPolicy:
    known = {field.name for field in dataclasses.fields(PublishedOptions)}
    for name in options:
        if name not in known:
            raise UserError(f"load_policy has no option '{name}'. Known: {', '.join(sorted(known))}.")
    described = PublishedOptions(**options).options_for(policy_folder(checkpoint), None)
    return open_policy(checkpoint, pick_device(device), described)

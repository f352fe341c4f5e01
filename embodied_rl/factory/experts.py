"""Who acts in demonstrations outside the scenes: the scripted experts of MetaWorld and ALOHA, or a policy of ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from embodied_rl.config.env import (
    AlohaConfig,
    CustomEnvConfig,
    EnvConfig,
    EnvPoolConfig,
    GymnasiumConfig,
    ManiSkillConfig,
    MetaWorldConfig,
)
from embodied_rl.config.suites import Suite, usual_env
from embodied_rl.data.collect import Bench
from embodied_rl.errors import UserError
from embodied_rl.factory.backends import check_fits
from embodied_rl.factory.demonstrations import hold_bench
from embodied_rl.factory.made_for import as_learned, learned_in, need_as_learned, trained_env
from embodied_rl.factory.policies import open_policy, policy_folder
from embodied_rl.factory.suites import asked, load, open_tasks
from embodied_rl.factory.view import View, view_of
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.policies.preprocessing.fit import fit_image
from embodied_rl.rng import DecisionRng
from embodied_rl.rollout.sampler import TaskStates
from embodied_rl.sim.wrappers.forwarding import VecEnvWrapper
from embodied_rl.types import Array, Observation
from embodied_rl.utils.plugins import import_modules, imported
from embodied_rl.utils.suites import ALOHA_SUITES
from embodied_rl.vec_env import EnvInfo, VecEnv

SCRIPTED = "scripted"
DRAWN_SIZE = 64
"""Height and width in pixels of images that are drawn at any size, unless told."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where demonstrations of a simulator are recorded, and who acts: 'scripted', or a checkpoint.

    image_size: None where the simulator shows its own images, which stay as they are. imports: modules of the user's,
    which a worker process needs too.
    """

    suite: str
    tasks: tuple[str, ...]
    env: EnvConfig
    image_size: int | None
    expert: str
    imports: tuple[str, ...] = ()


@contextmanager
def open_stage(stage: Stage) -> Iterator[Bench]:
    """One env with images and a state, and who acts in it.

    Raises:
        UserError: The suite does not show what demonstrations hold, or the policy does not fit it.
    """
    import_modules(stage.imports)
    view = View(own_units=True)
    if stage.image_size is not None:
        view = dataclasses.replace(view, image_size=stage.image_size, cameras=None, fit="pad")
    with open_tasks(load(stage.suite, stage.tasks, stage.env), stage.env, view) as env:
        _check_shown(env.info, stage)
        seen = LastSeen(env)
        yield Bench(seen, _scripted(seen) if stage.expert == SCRIPTED else _Teacher(stage, seen))


def _check_shown(info: EnvInfo, stage: Stage) -> None:
    """UserError where something is missing that a policy of images learns from."""
    is_gymnasium = isinstance(stage.env, GymnasiumConfig)
    for there, what, advice in (
        (info.cameras, "shows no images", ""),
        (info.proprio_dim, "shows no proprio beside its images", "train the expert with --env.proprio KEY"),
        (info.instructed, "says no instruction", "give one by --instruction TEXT"),
    ):
        if not there:
            hint = f": {advice}" if advice and is_gymnasium else ""
            raise UserError(f"suite '{info.suite}' {what}, which collect records{hint}.")


class LastSeen(VecEnvWrapper):
    """`embodied_rl.vec_env.VecEnv` that keeps what was observed last, so that who acts needs no picture of its own."""

    def __init__(self, env: VecEnv) -> None:
        super().__init__(env)
        self.last: Observation | None = None

    def observe(self, env_ids: Sequence[int], out: Observation) -> Sequence[int] | None:
        """As `VecEnv.observe`."""
        lost = super().observe(env_ids, out)
        self.last = out
        return lost

    def seen(self) -> Observation:
        """What was observed last."""
        assert self.last is not None, "an expert acts on what was observed"
        return self.last


class _Chunks:
    """Decides chunks of one episode, and gives their actions one by one, as the env takes them."""

    def __init__(self, policy: Any, env: LastSeen, seed: int, stretched: bool) -> None:
        self._policy, self._env, self._seed, self._stretched = policy, env, seed, stretched
        self._decisions = 0
        self._left: list[Array] = []

    def act(self) -> Array:
        """float32 [A]."""
        if not self._left:
            rng = DecisionRng(np.array([self._seed]), np.array([self._decisions]))
            seen = read_by(self._policy, self._env.seen())
            self._left = list(self._policy.act(seen, rng, "greedy").actions[0].cpu().numpy())
            self._decisions += 1
        action = self._left.pop(0)
        if not self._stretched:
            return action
        info = self._env.info
        low, high = (
            np.where(np.isfinite(bound), bound, end).astype(np.float32)  # as sim.gymnasium.actions
            for bound, end in ((info.action_low, -1.0), (info.action_high, 1.0))
        )
        return (high + low) / 2 + (high - low) / 2 * action


class _Teacher:
    """A policy of a checkpoint, in the episode that is in env 0 now."""

    def __init__(self, stage: Stage, env: LastSeen) -> None:
        policy: Any = open_policy(stage.expert, "cpu")
        self._policy, self._env = policy, env
        info = shown_to(policy, env.info)
        if stage.image_size is None and view_of(policy).fit is not None:  # `read_by` resizes
            info = dataclasses.replace(info, image_shape=(policy.config.image_size,) * 2)
        check_fits(policy, info, stage.expert)
        provenance = read_provenance(policy_folder(stage.expert))
        need_as_learned(provenance, stage.env, info, stage.expert, getattr(policy, "unnorm_key", None))
        # The env is open for actions in its own units; others are stretched to its bounds, as in their training.
        self._stretched = isinstance(stage.env, GymnasiumConfig) and not view_of(policy).own_units

    def __call__(self, task: str, seed: int) -> _Chunks:
        return _Chunks(self._policy, self._env, seed, self._stretched)


def shown_to(policy: Any, info: EnvInfo) -> EnvInfo:
    """What `policy` reads of it: a state policy may have been trained where there is no proprio beside the state."""
    if policy.architecture == "mlp" and policy.config.observation_dim == info.state_dim:
        return dataclasses.replace(info, proprio_dim=0)
    return info


def read_by(policy: Any, seen: Observation) -> Observation:
    """`seen` as `policy` reads it, see `shown_to`; images of another size than its own are resized."""
    view = view_of(policy)
    if view.fit is not None and tuple(seen.images.shape[2:4]) != (view.image_size, view.image_size):
        fitted = [fit_image(image, view.image_size, view.fit) for image in seen.images[0].numpy()]
        return dataclasses.replace(seen, images=torch.from_numpy(np.stack(fitted)[None]))
    if policy.architecture != "mlp" or seen.state is None or policy.config.observation_dim != seen.state.shape[1]:
        return seen
    return dataclasses.replace(seen, proprio=seen.proprio[:, :0])


class _Scripted:
    """MetaWorld's scripted policy of an episode's task."""

    def __init__(self, policy: Any, env: LastSeen) -> None:
        self._policy, self._env = policy, env

    def act(self) -> Array:
        """float32 [4]; the simulator clips it to [-1, 1]."""
        state = self._env.seen().state
        assert state is not None
        return np.asarray(self._policy.get_action(state[0].numpy().astype(np.float64)), np.float32)


class _Aloha:
    """ALOHA's scripted expert in an episode."""

    def __init__(self, suite: str, env: LastSeen) -> None:
        from embodied_rl.sim.aloha.expert import Expert
        from embodied_rl.sim.aloha.tasks import load_tasks

        self._expert, self._env = Expert(suite, load_tasks(suite)[0].build_physics()), env

    def act(self) -> Array:
        """float32 [14], joint positions in the units of an action."""
        state = self._env.seen().state
        assert state is not None
        return np.asarray(self._expert.act(state[0].numpy()), np.float32)


def _scripted(env: LastSeen) -> Any:
    if env.info.suite in ALOHA_SUITES:
        return lambda task, seed: _Aloha(env.info.suite, env)

    from embodied_rl.sim.metaworld.load import scripted_expert

    def begin(task: str, seed: int) -> _Scripted:
        return _Scripted(scripted_expert(task.partition("/")[2]), env)

    return begin


def stage_of(suite: Suite, tasks: tuple[str, ...], image_size: int | None, expert: str) -> Stage:
    """Where `expert` acts: with the env options that a policy was trained with; success ends an episode.

    tasks: () means those that the policy was trained on, where the suite is too large to be run whole. image_size: of
    simulators that draw at any size; None: 64.

    Raises:
        UserError: The suite has no scripted expert, or shows images of a size of its own.
    """
    env = usual_env(suite.name, 1, "images")
    if expert == SCRIPTED and not isinstance(env, MetaWorldConfig | AlohaConfig):
        raise UserError(
            f"suite '{suite.name}' has no scripted expert, which collect records: name a policy that acts with "
            "--expert CHECKPOINT."
        )
    trained = None if expert == SCRIPTED else trained_env(expert, suite.name)
    learned: tuple[str, ...] = ()
    if suite.example and expert != SCRIPTED:
        learned = tuple(learned_in(read_provenance(policy_folder(expert)), suite.name).get("tasks", ()))
    tasks = tasks or learned
    if isinstance(env, GymnasiumConfig | CustomEnvConfig):
        if image_size is not None:
            raise UserError(
                f"suite '{suite.name}' shows images of its own size, which stay so: leave --image-size out."
            )
        if isinstance(trained, GymnasiumConfig) and set(tasks) != set(learned):
            trained = dataclasses.replace(trained, instruction=None)  # these have other words
        if isinstance(trained, GymnasiumConfig | CustomEnvConfig):
            env = trained
        else:
            env = as_learned(env, tasks, expert, suite.name)
        return Stage(suite.name, tasks, dataclasses.replace(env, num_envs=1, processes=None), None, expert, imported())
    if isinstance(env, ManiSkillConfig) and isinstance(trained, ManiSkillConfig):
        env = dataclasses.replace(env, control_mode=trained.control_mode)
    if isinstance(env, EnvPoolConfig):
        env = dataclasses.replace(env, reward_mode="success")
    return Stage(suite.name, tasks, env, image_size or DRAWN_SIZE, expert, imported())


def describe_stage(stage: Stage) -> tuple[EnvInfo, TaskStates, TaskStates]:
    """Its simulator, and by task the initial states to train on and those held out; refuses what `open_stage` does."""
    tasks = asked(load(stage.suite, stage.tasks, stage.env), stage.env)
    with open_stage(stage) as bench:
        return bench.env.info, tasks.train_states, tasks.heldout_states


def hold_stage(stage: Stage) -> Bench:
    """What `open_stage` opens, for a worker process."""
    return hold_bench(open_stage(stage))

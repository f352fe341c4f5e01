"""Who acts in demonstrations besides the built-in experts: MetaWorld's scripted policies, or a policy of ours."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_rl.config.env import EnvConfig, EnvPoolConfig, GymnasiumConfig, ManiSkillConfig, MetaWorldConfig, one_env
from embodied_rl.config.suites import Suite, usual_env
from embodied_rl.data.collect import Bench
from embodied_rl.errors import UserError
from embodied_rl.factory.backends import check_fits
from embodied_rl.factory.demonstrations import hold_bench
from embodied_rl.factory.made_for import trained_env
from embodied_rl.factory.policies import open_policy
from embodied_rl.factory.suites import asked, load, open_tasks
from embodied_rl.factory.view import View
from embodied_rl.rng import DecisionRng
from embodied_rl.rollout.sampler import TaskStates
from embodied_rl.sim.wrappers.forwarding import VecEnvWrapper
from embodied_rl.types import Array, Observation
from embodied_rl.vec_env import EnvInfo, VecEnv

SCRIPTED = "scripted"


@dataclass(frozen=True, slots=True)
class Stage:
    """Where demonstrations of a simulator are recorded, and who acts: 'scripted', or a checkpoint."""

    suite: str
    tasks: tuple[str, ...]
    env: EnvConfig
    image_size: int
    expert: str


@contextmanager
def open_stage(stage: Stage) -> Iterator[Bench]:
    """One env with images and a state, and who acts in it.

    Raises:
        UserError: The suite shows no images, or the policy does not fit it.
    """
    view = View(image_size=stage.image_size, cameras=None, fit="pad")
    with open_tasks(load(stage.suite, stage.tasks, stage.env), stage.env, view) as env:
        if not (env.info.cameras and env.info.proprio_dim):
            raise UserError(f"collect records images and proprio, and suite '{stage.suite}' does not show both.")
        seen = LastSeen(env)
        yield Bench(seen, _scripted(seen) if stage.expert == SCRIPTED else _Teacher(stage.expert, seen))


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
    """Decides chunks of one episode, and gives their actions one by one."""

    def __init__(self, policy: Any, env: LastSeen, seed: int) -> None:
        self._policy, self._env, self._seed = policy, env, seed
        self._decisions = 0
        self._left: list[Array] = []

    def act(self) -> Array:
        """float32 [A]."""
        if not self._left:
            rng = DecisionRng(np.array([self._seed]), np.array([self._decisions]))
            seen = read_by(self._policy, self._env.seen())
            self._left = list(self._policy.act(seen, rng, "greedy").actions[0].cpu().numpy())
            self._decisions += 1
        return self._left.pop(0)


class _Teacher:
    """A policy of a checkpoint, in the episode that is in env 0 now."""

    def __init__(self, checkpoint: str, env: LastSeen) -> None:
        self._policy: Any = open_policy(checkpoint, "cpu")
        self._env = env
        check_fits(self._policy, shown_to(self._policy, env.info), checkpoint)

    def __call__(self, task: str, seed: int) -> _Chunks:
        return _Chunks(self._policy, self._env, seed)


def shown_to(policy: Any, info: EnvInfo) -> EnvInfo:
    """What `policy` reads of it: a state policy may have been trained where there is no proprio beside the state."""
    if policy.architecture == "mlp" and policy.config.observation_dim == info.state_dim:
        return dataclasses.replace(info, proprio_dim=0)
    return info


def read_by(policy: Any, seen: Observation) -> Observation:
    """`seen` as `policy` reads it, see `shown_to`."""
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


def _scripted(env: LastSeen) -> Any:
    from embodied_rl.sim.metaworld.load import scripted_expert

    def begin(task: str, seed: int) -> _Scripted:
        return _Scripted(scripted_expert(task.partition("/")[2]), env)

    return begin


def stage_of(suite: Suite, tasks: tuple[str, ...], image_size: int, expert: str) -> Stage:
    """Where `expert` acts: with the controller that a policy was trained with; success ends an episode.

    Raises:
        UserError: The suite has no scripted expert, or its actions have units of their own.
    """
    env = usual_env(suite.name, 1, "images")
    if isinstance(env, GymnasiumConfig):
        raise UserError("collect records no gymnasium envs: record them with LeRobot, and imitate its data set by sft.")
    if expert == SCRIPTED and not isinstance(env, MetaWorldConfig):
        raise UserError(
            f"suite '{suite.name}' has no scripted expert, which collect records: name a policy that acts with "
            "--expert CHECKPOINT."
        )
    trained = None if expert == SCRIPTED else trained_env(expert, suite.name)
    if isinstance(env, ManiSkillConfig) and isinstance(trained, ManiSkillConfig):
        env = dataclasses.replace(env, control_mode=trained.control_mode)
    if isinstance(env, EnvPoolConfig):
        env = dataclasses.replace(env, reward_mode="success")
    return Stage(suite.name, tasks, one_env(trained) if suite.is_custom and trained else env, image_size, expert)


def describe_stage(stage: Stage) -> tuple[EnvInfo, TaskStates, TaskStates]:
    """Its simulator, and by task the initial states to train on and those held out; refuses what `open_stage` does."""
    tasks = asked(load(stage.suite, stage.tasks, stage.env), stage.env)
    with open_stage(stage) as bench:
        return bench.env.info, tasks.train_states, tasks.heldout_states


def hold_stage(stage: Stage) -> Bench:
    """What `open_stage` opens, for a worker process."""
    return hold_bench(open_stage(stage))

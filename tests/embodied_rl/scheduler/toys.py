"""The toy, made slow and unpredictable, under either scheduler."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from embodied_rl.algorithms.config import AlgorithmConfig, GRPOConfig, PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.learner.batches import join_batches
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.distributed.collectives import SINGLE_PROCESS, Collectives
from embodied_rl.learner.learner import Learner
from embodied_rl.learner.off_policy import importance_correction
from embodied_rl.policy import ActMode, action_chunks
from embodied_rl.rng import DecisionRng, philox
from embodied_rl.rollout.group_queue import GroupQueue
from embodied_rl.rollout.lookahead import ON_POLICY, Lookahead
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.base import Callbacks
from embodied_rl.scheduler.exchange import GroupExchange
from embodied_rl.scheduler.pipeline.engine import RolloutEngine
from embodied_rl.scheduler.pipeline.options import EngineOptions
from embodied_rl.scheduler.pipeline.replica import copy_weights, replicate
from embodied_rl.scheduler.pipeline.scheduler import PipelinedScheduler
from embodied_rl.scheduler.serial import Collector, SerialScheduler
from embodied_rl.types import ActOutput, ChunkResult, EpisodeSpec, Observation, RolloutBatch
from embodied_rl.utils.profiler import Profiler
from embodied_rl.vec_env import VecEnv
from tests.toy import TASKS, ToyEnv, ToyPolicy

Pause = Callable[[], None]


def no_pause() -> None:
    """Wait for nothing."""


def jitter(seed: int, scale: float = 0.002) -> Pause:
    """Waits of irregular length; some threads are held up for long, others not at all."""
    source = random.Random(seed)
    return lambda: time.sleep(scale * source.random() ** 4)


class SlowEnv(ToyEnv):
    """The toy world with pauses; an episode that the pipeline gave up may be replaced."""

    def __init__(
        self, num_envs: int, pause: Pause = no_pause, breaks: dict[int, int] | None = None, **broken: Any
    ) -> None:
        super().__init__(num_envs, breaks=breaks, **broken)
        self._pause = pause

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        self._pause()
        for env_id in env_ids:
            self._spec[env_id] = None
        super().reset(env_ids, episodes)

    def step(self, env_ids: Sequence[int], actions: torch.Tensor) -> ChunkResult:
        self._pause()
        return super().step(env_ids, actions)

    def observe(self, env_ids: Sequence[int], out: Observation) -> Sequence[int] | None:
        self._pause()
        return super().observe(env_ids, out)


class NanPolicy(ToyPolicy):
    """The first decision of episodes 1 and 6 has a NaN; those of their second run have not. always: every decision."""

    def __init__(self, *, always: bool = False) -> None:
        super().__init__()
        self._always = always
        self.sick = {philox(5, 3, episode, 0).integers(2**63 - 1): 1 for episode in (1, 6)}

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        out = super().act(obs, rng, mode)
        for row, (seed, decision) in enumerate(zip(rng.seed, rng.decision, strict=True)):
            if self._always or (decision == 0 and self.sick.get(seed, 0) > 0):
                self.sick[seed] = self.sick.get(seed, 0) - 1
                out.actions[row, 1, 0] = np.nan
        return replace(out, actions=action_chunks(out.actions))  # checked as the shipped policies do


class RoundingPolicy(ToyPolicy):
    """Its rollout rounds log-probs as bfloat16 does; its updates do not."""

    mixed_precision = True

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        out = super().act(obs, rng, mode)
        return replace(out, log_prob=out.log_prob.bfloat16().float())


@dataclass
class Setup:
    """What fixes a small training run."""

    algorithm: AlgorithmConfig
    groups: int = 5
    iterations: int = 2
    learner: LearnerConfig = field(
        default_factory=lambda: LearnerConfig(lr=1e-2, minibatch_size=None, minibatch_groups=2, microbatch_size=24)
    )
    breaks: dict[int, int] = field(default_factory=dict)
    broken: dict[str, Any] = field(default_factory=dict)
    """`broken` and `unseen` of the toy world."""
    threads: int = 1
    """Of the learner, and of the pipelined rollout's policy."""

    def parts(
        self, policy: ToyPolicy, folder: Path, ranks: Collectives = SINGLE_PROCESS
    ) -> tuple[EpisodeSampler, Learner]:
        """A sampler and a learner of this run."""
        algorithm = make_algorithm(self.algorithm)
        learner = Learner(
            policy, algorithm, self.learner, seed=0, dump_dir=folder, threads=self.threads, collectives=ranks
        )
        return EpisodeSampler(5, TASKS, algorithm.group_size), learner


class Streaming:
    """A learner as schedulers see it; ess: in place of its own."""

    def __init__(self, learner: Learner, ess: Callable[[], float] | None = None) -> None:
        self.policy, self.algorithm, self.config = learner.policy, learner.algorithm, learner.config
        self.collectives, self.cores, self._learner, self._ess = learner.collectives, learner.cores, learner, ess
        self.needs_all_frames, self.needs_final_images = learner.needs_all_frames, learner.needs_final_images

    @property
    def ess(self) -> float:
        return self._learner.ess if self._ess is None else self._ess()

    def accumulate(self, group: RolloutBatch) -> None:
        self._learner.accumulate(group)


@dataclass
class Outcome:
    """What a run did."""

    batches: list[RolloutBatch]
    weights: dict[str, Tensor]
    metrics: list[dict[str, float]]
    sampler: EpisodeSampler
    episodes: list[int]
    states: list[dict[str, Any]] = field(default_factory=list)
    """The sampler's state after each update."""


def serial(
    setup: Setup, folder: Path, env_ids: int = 6, *, policy: ToyPolicy | None = None, env: VecEnv | None = None
) -> Outcome:
    """Train under the oracle."""
    policy = policy or ToyPolicy()
    sampler, learner = setup.parts(policy, folder)
    algorithm = learner.algorithm
    env = env or SlowEnv(env_ids, breaks=setup.breaks, **setup.broken)
    heard: list[int] = []
    collector = Collector(
        env,
        policy,
        GroupExchange(
            GroupQueue(
                sampler,
                groups=setup.groups,
                success_rate_range=algorithm.success_rate_range,
                max_oversampling=algorithm.max_oversampling,
            ),
            on_episode=lambda result: heard.append(result.spec.episode_id),
        ),
        Profiler(),
        final_value=algorithm.needs_final_value,
    )
    scheduler = SerialScheduler(collector)
    batches, metrics = [], []
    for batch in scheduler.batches(0, setup.iterations):
        batches.append(batch)
        metrics.append(learner.update(batch))
        scheduler.publish(learner.version)
    learner.close()
    return Outcome(batches, policy.state_dict(), metrics, sampler, heard)


def pipelined(
    setup: Setup,
    folder: Path,
    *,
    env_ids: int = 6,
    stages: int = 3,
    workers: int = 2,
    pause: Pause = no_pause,
    in_turn: bool | None = None,
    policy: ToyPolicy | None = None,
    env: VecEnv | None = None,
    share: bool = False,
    ahead: Lookahead = ON_POLICY,
    during: Callable[[int], None] = lambda version: None,
    paused: Callable[[int], None] | None = None,
    ess: Callable[[], float] | None = None,
    correcting: Callable[[RolloutBatch], None] = lambda group: None,
) -> Outcome:
    """Train on policy, or async if the rollout may run ahead.

    in_turn: as of the engine, by default on policy. share: one copy of the weights. during: called in every update;
    paused: after it, while the rollout is paused. ess: in place of the learner's. correcting: called when a group is
    about to be corrected.
    """
    policy = policy or ToyPolicy()
    sampler, learner = setup.parts(policy, folder)
    algorithm = learner.algorithm
    stream = GroupQueue(
        sampler,
        groups=setup.groups,
        success_rate_range=algorithm.success_rate_range,
        max_oversampling=algorithm.max_oversampling,
        lookahead=ahead,
    )
    actor = policy if share else replicate(policy)
    engine = RolloutEngine(
        env or SlowEnv(env_ids, pause, setup.breaks, **setup.broken),
        actor,
        stream,
        Profiler(concurrent=True),
        EngineOptions(
            env_groups=stages,
            workers=workers,
            in_turn=not ahead.max_staleness if in_turn is None else in_turn,
            final_value=algorithm.needs_final_value,
            threads=setup.threads,
        ),
        learner.cores,
    )
    heard: list[int] = []
    states: list[dict[str, Any]] = []

    class Watched(Streaming):
        def accumulate(self, group: RolloutBatch) -> None:
            pause()
            learned.append(group)
            learner.accumulate(group)

    def correct_group(group: RolloutBatch) -> float:
        pause()
        correcting(group)
        return importance_correction(group, actor, setup.learner.microbatch_size, all_rows=again)

    again = setup.learner.recompute_old_log_probs
    streams = not ahead.max_staleness or setup.learner.minibatch_groups is not None
    batches, metrics = [], []
    learned: list[RolloutBatch] = []
    with closing(
        PipelinedScheduler(
            engine,
            GroupExchange(stream),
            Watched(learner, ess),
            Callbacks(on_episode=lambda result: heard.append(result.spec.episode_id)),
            load_weights=lambda: copy_weights(policy, actor),
            on_policy=not ahead.max_staleness,
            correct=correct_group if streams and (ahead.max_staleness or again) else None,
        )
    ) as scheduler:
        for batch in scheduler.batches(0, setup.iterations):
            batches.append(with_frames(batch, learned))
            learned.clear()
            during(batch.version)
            pause()
            metrics.append(learner.update(batch))
            scheduler.publish(learner.version)
            states.append(scheduler.sampler_state())
            if paused is not None:
                with scheduler.paused():
                    paused(batch.version)
    learner.close()
    return Outcome(batches, policy.state_dict(), metrics, sampler, heard, states)


def with_frames(batch: RolloutBatch, groups: Sequence[RolloutBatch]) -> RolloutBatch:
    """A batch that was learned from group by group, with what these had."""
    if not groups:
        return batch
    whole = join_batches(groups)
    return replace(batch, images=whole.images, replay=whole.replay)


def assert_same_rows(one: RolloutBatch, two: RolloutBatch) -> None:
    """Bit for bit the same episodes and rows."""
    assert one.episodes == two.episodes
    assert one.instruction == two.instruction
    assert one.version == two.version
    for name in ("images", "proprio", "log_prob", "value", "reward", "mask", "episode"):
        torch.testing.assert_close(getattr(one, name), getattr(two, name), rtol=0, atol=0, msg=name)
    assert one.replay.keys() == two.replay.keys()
    assert all(torch.equal(one.replay[key], two.replay[key]) for key in one.replay)


GRPO = GRPOConfig(group_size=4, success_rate_range=None, entropy_coef=0.01)
KEEPING = GRPOConfig(group_size=4, success_rate_range=(0.5, 0.5), max_oversampling=4.0, loss_norm="token", epochs=2)
PPO = PPOConfig(gamma=0.9, entropy_coef=0.01)

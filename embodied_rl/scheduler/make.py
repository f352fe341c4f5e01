"""From a scheduler's options to the scheduler."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn

from embodied_rl.algorithms.rows import Algorithm
from embodied_rl.learner.learner import Learner
from embodied_rl.learner.off_policy import importance_correction
from embodied_rl.policy import Policy
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.groups import GroupQueue
from embodied_rl.rollout.lookahead import Lookahead
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.config import PipelinedConfig, RayConfig, SchedulerConfig, check_fit
from embodied_rl.scheduler.pipeline.engine import RolloutEngine
from embodied_rl.scheduler.pipeline.replica import acting_device, copy_weights, replicate
from embodied_rl.scheduler.pipeline.scheduler import PipelinedScheduler
from embodied_rl.scheduler.ray.scheduler import RayScheduler
from embodied_rl.scheduler.ray.worker import WorkerFactory
from embodied_rl.scheduler.serial import SerialScheduler
from embodied_rl.types import EpisodeResult, RolloutBatch
from embodied_rl.utils.profiler import Profiler
from embodied_rl.utils.threads import shared_cores
from embodied_rl.vec_env import VecEnv


class Scheduler(Protocol):
    """Who runs when: batches come out, weights go in."""

    def batches(self, start: int, stop: int) -> Iterator[RolloutBatch]:
        """Yield the batches of iterations start, ..., stop - 1; `publish` must follow each."""
        ...

    def publish(self, version: int) -> None:
        """The learner's weights are now those after `version` updates."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """A `with` block in which simulator and policy are free for something else."""
        ...

    def sampler_state(self) -> dict[str, Any]:
        """The position in the stream after the batches yielded so far."""
        ...

    def close(self) -> None:
        """Stop what runs in the background."""
        ...


@dataclass(frozen=True, slots=True)
class LearnerHandle:
    """What a scheduler needs of the learner."""

    minibatch_groups: int | None
    recompute_old_log_probs: bool
    accumulate: Callable[[RolloutBatch], None]
    ess: Callable[[], float]
    yield_to: Callable[[Callable[[], bool]], None]
    working: Callable[[], bool]
    worked_until: Callable[[], float]
    microbatch_size: int

    @classmethod
    def of(cls, learner: Learner) -> LearnerHandle:
        """Those of `learner`."""
        config = learner.config
        return cls(
            config.minibatch_groups,
            config.recompute_old_log_probs,
            learner.accumulate,
            lambda: learner.ess,
            learner.share_cores_with,
            lambda: learner.working,
            lambda: learner.worked_until,
            config.microbatch_size,
        )


def make_profiler(config: SchedulerConfig, max_spans: int = 0) -> Profiler:
    """The profiler for a run under this scheduler."""
    return Profiler(max_spans, concurrent=isinstance(config, PipelinedConfig))


def make_scheduler(
    config: SchedulerConfig,
    env: VecEnv,
    policy: Policy,
    sampler: EpisodeSampler,
    algorithm: Algorithm,
    learning: LearnerHandle,
    clock: Profiler,
    *,
    groups: int,
    workers: int | None,
    on_episode: Callable[[EpisodeResult], None],
    check_interrupt: Callable[[], None],
    remote: WorkerFactory | None = None,
    log: Callable[[str], None] = print,
) -> Scheduler:
    """The scheduler that `config` asks for. workers: threads that step and render (None: one a CPU core). far: opens
    the worlds of a worker on another machine, for `RayConfig`. say: gets one line when there is something to tell.

    UserError if the options do not fit the environment or the learner.
    """
    if isinstance(config, RayConfig):
        assert remote is not None, "the caller knows how to open worlds elsewhere"
        assert isinstance(policy, nn.Module)
        stream = GroupQueue(
            sampler,
            groups=groups,
            success_rate_range=algorithm.success_rate_range,
            max_oversampling=algorithm.max_oversampling,
            lookahead=Lookahead(config.max_staleness),
        )
        return RayScheduler(
            config,
            remote,
            policy,
            stream,
            env_ids=env.num_envs,
            final_value=algorithm.needs_final_value,
            on_episode=on_episode,
            check_interrupt=check_interrupt,
            ess=learning.ess,
            log=log,
        )
    if not isinstance(config, PipelinedConfig):
        collector = Collector(
            env,
            policy,
            GroupQueue(
                sampler,
                groups=groups,
                success_rate_range=algorithm.success_rate_range,
                max_oversampling=algorithm.max_oversampling,
            ),
            clock,
            final_value=algorithm.needs_final_value,
            on_step=check_interrupt,
        )
        return SerialScheduler(collector, on_episode)
    check_fit(config, env.num_envs, learning.minibatch_groups)
    on_policy = config.mode == "on_policy"
    streams, again = learning.minibatch_groups is not None, learning.recompute_old_log_probs
    # One minibatch leaves the weights alone until every row is there: then policy and learner can share them.
    assert isinstance(policy, nn.Module)
    device = acting_device(config.act_device, policy)
    size = learning.minibatch_groups
    shared = device is None and on_policy and size is not None and size >= groups
    actor = policy if shared else replicate(policy, device)
    stream = GroupQueue(
        sampler,
        groups=groups,
        success_rate_range=algorithm.success_rate_range,
        max_oversampling=algorithm.max_oversampling,
        lookahead=config.lookahead(env.num_envs, groups, algorithm.group_size, streams=streams),
    )

    def correct_group(group: RolloutBatch) -> float | None:
        drift = importance_correction(group, actor, learning.microbatch_size, all_rows=again)
        return drift if again else None

    acts_on = next(actor.parameters()).device
    workers = workers or len(os.sched_getaffinity(0))
    stages = config.num_env_groups(env.num_envs, cpu=acts_on.type == "cpu")
    engine = RolloutEngine(
        env,
        actor,
        stream,
        clock,
        env_groups=stages,
        workers=workers,
        act_wait=None if config.max_batch_delay_ms is None else config.max_batch_delay_ms / 1e3,
        final_value=algorithm.needs_final_value,
        threads=torch.get_num_threads(),
    )
    learning.yield_to(engine.busy)
    scheduler = PipelinedScheduler(
        engine,
        load_weights=(lambda: None) if shared else (lambda: copy_weights(policy, actor)),
        check_interrupt=check_interrupt,
        learn=learning.accumulate if streams else None,
        worked_until=learning.worked_until,
        ess=None if on_policy else learning.ess,
        correct=correct_group if streams and (again or not on_policy) else None,
        num_correctors=shared_cores(torch.get_num_threads()) if acts_on.type == "cpu" else 1,
        on_episode=on_episode,
    )
    engine.share_cores_with(lambda: scheduler.learning or learning.working())
    return scheduler

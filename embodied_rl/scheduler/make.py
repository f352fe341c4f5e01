"""From a scheduler's options to the scheduler."""

from __future__ import annotations

import sys
from dataclasses import replace

import torch
from torch import nn

from embodied_rl.learner.off_policy import importance_correction
from embodied_rl.rollout.group_queue import GroupQueue
from embodied_rl.rollout.lookahead import ON_POLICY, Lookahead
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.base import Callbacks, Scheduler, StreamingLearner
from embodied_rl.scheduler.config import (
    PipelinedConfig,
    RayConfig,
    SchedulerConfig,
    check_fit,
    check_ranks,
    check_together,
)
from embodied_rl.scheduler.exchange import GroupExchange
from embodied_rl.scheduler.pipeline.engine import RolloutEngine
from embodied_rl.scheduler.pipeline.options import EngineOptions
from embodied_rl.scheduler.pipeline.replica import acting_device, copy_weights, replicate
from embodied_rl.scheduler.pipeline.scheduler import PipelinedScheduler
from embodied_rl.scheduler.ray.scheduler import RayScheduler
from embodied_rl.scheduler.serial import Collector, SerialScheduler
from embodied_rl.types import RolloutBatch
from embodied_rl.utils.machine import cpu_count
from embodied_rl.utils.profiler import Profiler
from embodied_rl.utils.ranks import ProcessRank
from embodied_rl.utils.threads import shared_cores
from embodied_rl.vec_env import VecEnv


def make_profiler(config: SchedulerConfig, max_spans: int = 0) -> Profiler:
    """The profiler for a run under this scheduler."""
    return Profiler(max_spans, concurrent=isinstance(config, PipelinedConfig))


def make_scheduler(
    config: SchedulerConfig,
    env: VecEnv,
    learner: StreamingLearner,
    sampler: EpisodeSampler,
    profiler: Profiler,
    callbacks: Callbacks,
    *,
    groups: int,
    workers: int | None = None,
) -> Scheduler:
    """The scheduler that `config` asks for.

    Args:
        profiler: of `make_profiler`.
        groups: groups of a batch.
        workers: threads that step and render under `PipelinedConfig` (None: one a CPU core).

    Raises:
        UserError: the options do not fit the environment, the learner or the ranks.
    """
    algorithm, collectives = learner.algorithm, learner.collectives
    check_ranks(config, collectives.size)
    queue = GroupQueue(
        sampler,
        groups=groups,
        success_rate_range=algorithm.success_rate_range,
        max_oversampling=algorithm.max_oversampling,
        lookahead=_lookahead(config, env.num_envs, groups, learner),
        rank=collectives.rank,
        size=collectives.size,
    )
    exchange = GroupExchange(queue, collectives, callbacks.on_episode, frames_too=learner.needs_all_frames)
    if isinstance(config, RayConfig):
        return _make_ray(config, learner, exchange, callbacks)
    if isinstance(config, PipelinedConfig):
        workers = workers or cpu_count()
        return _make_pipelined(config, env, learner, exchange, profiler, callbacks, workers)
    collector = Collector(
        env,
        learner.policy,
        exchange,
        profiler,
        final_value=algorithm.needs_final_value,
        final_images=learner.needs_final_images,
        on_step=callbacks.check_interrupt,
    )
    return SerialScheduler(collector)


def _make_ray(
    config: RayConfig, learner: StreamingLearner, exchange: GroupExchange, callbacks: Callbacks
) -> RayScheduler:
    rank, size = learner.collectives.rank, learner.collectives.size
    share = replace(config, workers=ProcessRank(rank, size).share(config.workers))  # they are of all ranks together
    if rank > 0:  # only it knows of its workers, and its observer is silent
        callbacks = replace(callbacks, log=lambda text: print(f"rank {rank}: {text}", file=sys.stderr))
    return RayScheduler(share, learner, exchange, callbacks)


def _lookahead(config: SchedulerConfig, num_envs: int, groups: int, learner: StreamingLearner) -> Lookahead:
    if isinstance(config, RayConfig):
        return Lookahead(config.max_staleness)
    if isinstance(config, PipelinedConfig):
        streams = learner.config.minibatch_groups is not None
        return config.lookahead(num_envs, groups, learner.algorithm.group_size, streams=streams)
    return ON_POLICY


def _make_pipelined(
    config: PipelinedConfig,
    env: VecEnv,
    learner: StreamingLearner,
    exchange: GroupExchange,
    profiler: Profiler,
    callbacks: Callbacks,
    workers: int,
) -> PipelinedScheduler:
    policy, options, size = learner.policy, learner.config, learner.config.minibatch_groups
    check_fit(config, env.num_envs, size)
    check_together(config, env.info)
    assert isinstance(policy, nn.Module)
    on_policy, again = config.mode == "on_policy", options.recompute_old_log_probs
    device = acting_device(config.act_device, policy)
    # One minibatch leaves the weights alone until every row is there: then policy and learner can share them.
    shared = device is None and on_policy and size is not None and size >= exchange.queue.num_wanted
    actor = policy if shared else replicate(policy, device)

    def correct_group(group: RolloutBatch) -> float | None:
        drift = importance_correction(group, actor, options.microbatch_size, all_rows=again)
        return drift if again else None

    def load_weights() -> None:
        if not shared:
            copy_weights(policy, actor)

    threads, on_cpu = torch.get_num_threads(), next(actor.parameters()).device.type == "cpu"
    engine = RolloutEngine(
        env,
        actor,
        exchange.queue,
        profiler,
        EngineOptions(
            env_groups=config.num_env_groups(env.num_envs, cpu=on_cpu, together=env.info.steps_together),
            workers=workers,
            in_turn=on_policy,
            final_value=learner.algorithm.needs_final_value,
            final_images=learner.needs_final_images,
            threads=threads,
        ),
        learner.cores,
    )
    return PipelinedScheduler(
        engine,
        exchange,
        learner,
        callbacks,
        load_weights=load_weights,
        on_policy=on_policy,
        correct=correct_group if size is not None and (again or not on_policy) else None,
        num_correctors=shared_cores(threads) if on_cpu else 1,
    )

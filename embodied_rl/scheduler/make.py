"""From a scheduler's options to the scheduler."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from embodied_rl.learner.off_policy import importance_correction
from embodied_rl.rollout.collector import Collector
from embodied_rl.rollout.dealt_groups import DealtGroups
from embodied_rl.rollout.groups import GroupQueue
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
from embodied_rl.scheduler.pipeline.ranked import RankedPipelinedScheduler
from embodied_rl.scheduler.pipeline.ranked_engine import RankedEngine
from embodied_rl.scheduler.pipeline.replica import acting_device, copy_weights, replicate
from embodied_rl.scheduler.pipeline.scheduler import PipelinedScheduler
from embodied_rl.scheduler.ranked_collector import RankedCollector
from embodied_rl.scheduler.ray.ranked import RankedRayScheduler
from embodied_rl.scheduler.ray.scheduler import RayScheduler
from embodied_rl.scheduler.serial import SerialScheduler
from embodied_rl.types import RolloutBatch
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
    limits: dict[str, Any] = {
        "groups": groups,
        "success_rate_range": algorithm.success_rate_range,
        "max_oversampling": algorithm.max_oversampling,
        "lookahead": _lookahead(config, env.num_envs, groups, learner),
    }
    exchange = None
    if collectives.size > 1:
        check_ranks(config, collectives.size)
        dealt = DealtGroups(collectives.rank, collectives.size, sampler, **limits)
        frames_too = learner.needs_all_frames
        exchange = GroupExchange(collectives, dealt, callbacks.on_episode, frames_too=frames_too)
    queue = exchange.queue if exchange else GroupQueue(sampler, **limits)
    if isinstance(config, RayConfig):
        return _make_ray(config, learner, queue, callbacks, exchange)
    if isinstance(config, PipelinedConfig):
        workers = workers or len(os.sched_getaffinity(0))
        return _make_pipelined(config, env, learner, queue, profiler, callbacks, workers, exchange)
    options: dict[str, Any] = {
        "final_value": algorithm.needs_final_value,
        "final_images": learner.needs_final_images,
        "on_step": callbacks.check_interrupt,
    }
    if exchange is None:
        collector = Collector(env, learner.policy, queue, profiler, **options)
    else:
        collector = RankedCollector(env, learner.policy, exchange, profiler, **options)
    return SerialScheduler(collector, callbacks.on_episode)


def _make_ray(
    config: RayConfig,
    learner: StreamingLearner,
    queue: GroupQueue,
    callbacks: Callbacks,
    exchange: GroupExchange | None,
) -> RayScheduler:
    if exchange is None:
        return RayScheduler(config, learner, queue, callbacks)
    rank, size = learner.collectives.rank, learner.collectives.size
    share = replace(config, workers=ProcessRank(rank, size).share(config.workers))
    if rank > 0:  # only it knows of its workers, and its observer is silent
        callbacks = replace(callbacks, log=lambda text: print(f"rank {rank}: {text}", file=sys.stderr))
    return RankedRayScheduler(exchange, share, learner, queue, callbacks)


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
    queue: GroupQueue,
    profiler: Profiler,
    callbacks: Callbacks,
    workers: int,
    exchange: GroupExchange | None,
) -> PipelinedScheduler:
    policy, options, size = learner.policy, learner.config, learner.config.minibatch_groups
    check_fit(config, env.num_envs, size)
    check_together(config, env.info)
    assert isinstance(policy, nn.Module)
    on_policy, again = config.mode == "on_policy", options.recompute_old_log_probs
    device = acting_device(config.act_device, policy)
    # One minibatch leaves the weights alone until every row is there: then policy and learner can share them.
    shared = device is None and on_policy and size is not None and size >= queue.num_wanted
    actor = policy if shared else replicate(policy, device)

    def correct_group(group: RolloutBatch) -> float | None:
        drift = importance_correction(group, actor, options.microbatch_size, all_rows=again)
        return drift if again else None

    threads, on_cpu = torch.get_num_threads(), next(actor.parameters()).device.type == "cpu"
    engine = (RolloutEngine if exchange is None else RankedEngine)(
        env,
        actor,
        queue,
        profiler,
        EngineOptions(
            env_groups=config.num_env_groups(env.num_envs, cpu=on_cpu, together=env.info.steps_together),
            workers=workers,
            in_turn=on_policy,
            batch_delay_s=config.max_batch_delay_ms / 1e3,
            final_value=learner.algorithm.needs_final_value,
            final_images=learner.needs_final_images,
            threads=threads,
        ),
        learner.cores,
    )
    make: Any = partial(RankedPipelinedScheduler, exchange) if exchange else PipelinedScheduler
    return make(
        engine,
        learner,
        callbacks,
        load_weights=(lambda: None) if shared else (lambda: copy_weights(policy, actor)),
        on_policy=on_policy,
        correct=correct_group if size is not None and (again or not on_policy) else None,
        num_correctors=shared_cores(threads) if on_cpu else 1,
    )

"""The best scheduler for a run on this machine: probed, fitted, searched. Shared by `plan` and `train --autotune`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from embodied_rl.algorithms.base import OnPolicyAlgorithm
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.autotune.costs import Costs
from embodied_rl.autotune.measure_memory import measure_sizes, room
from embodied_rl.autotune.memory import fits, held_by_update
from embodied_rl.autotune.outcomes import Outlook
from embodied_rl.autotune.probe import APART, IN_TURN, Now, Probes, probe
from embodied_rl.autotune.search import Choice, Found, Space, ladder, predict, schedulers, search
from embodied_rl.autotune.work import Work
from embodied_rl.config.train import TrainConfig
from embodied_rl.errors import UserError
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.types import TrainablePolicy
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.config import PipelinedConfig, RayConfig
from embodied_rl.vec_env import VecEnv


@dataclass(frozen=True, slots=True)
class Tuning:
    """What was found. config: with the choice filled in; serial: seconds a decision under the serial scheduler;
    streamed: share of a batch whose rows an update under way keeps, if it begins before the batch is whole.
    """

    config: TrainConfig
    found: Found
    probes: Probes
    costs: Mapping[str, Costs]
    serial: float
    streamed: float


def tune(
    config: TrainConfig,
    env: VecEnv,
    policy: TrainablePolicy,
    train_states: Mapping[str, Sequence[int]],
    cores: int,
    others: Sequence[str] = (),
    now: Now = time.perf_counter,
) -> Tuning:
    """Probe for some seconds and choose stages, overlap, worlds and micro-batch; the run stays as on-policy as it is.

    Rows of older policies are only allowed if config.scheduler allows them. env has the most worlds to consider.
    others: further devices of the policy's kind; acting on the first of them is considered too. What does not fit into
    a device's memory is not. now: the time, for the probes.
    UserError for workers on other machines, which cannot be probed from here, for several ranks, for a given device to
    act on, which is chosen here, and if nothing fits.
    """
    if isinstance(config.scheduler, RayConfig):
        raise UserError("plan and --autotune know this machine only: choose --scheduler serial or pipelined for them.")
    if config.learner.num_processes > 1:
        raise UserError(
            "plan and --autotune measure a learner of one process: leave out --learner.num-processes for them."
        )
    if isinstance(config.scheduler, PipelinedConfig) and config.scheduler.act_device is not None:
        raise UserError("plan and --autotune choose where the policy acts: leave out --scheduler.act-device for them.")
    algorithm = make_algorithm(config.algorithm)
    sampler = EpisodeSampler(config.seed, train_states, algorithm.group_size)
    episodes = [spec for index in range(-(-env.num_envs // algorithm.group_size)) for spec in sampler.group(index)]
    probes = probe(env, policy, episodes, config.num_threads or cores, now)
    costs = probes.placements(cores, "cpu" if config.device == "cpu" else "gpu", another=bool(others))
    sizes = measure_sizes(policy, env, episodes[0])
    groups = config.rollout.groups(algorithm.group_size)
    rows_per_group = probes.mean_length * algorithm.group_size
    work = work_of(config, algorithm, env.num_envs, probes)
    assert work.minibatch_groups is not None
    acts_on = others[0] if others else config.device
    have = {device: room(device, sizes.weights) for device in ("cpu", config.device, acts_on)}
    batch_rows = round(groups * rows_per_group)
    streamed = held_by_update(batch_rows, work.epochs, work.minibatch_groups / groups)

    def possible(choice: Choice) -> bool:
        if (choice.placement == IN_TURN) == isinstance(choice.scheduler, PipelinedConfig):
            return False
        return fits(sizes.needs(choice, batch_rows, streamed), have, config.device, acts_on)

    space = space_of(config, costs, env.num_envs, algorithm.group_size, possible)
    if next(space.all(), None) is None:
        raise UserError(
            "no schedule fits into memory: lower --learner.microbatch-size, --env.num-envs or "
            "--rollout.episodes-per-iteration."
        )
    found = search(space, work)
    serial = Choice(IN_TURN, space.schedulers[0], env.num_envs, space.microbatches[0])
    chosen = apply(config, found.choice, groups, rows_per_group, acts_on)
    return Tuning(chosen, found, probes, costs, predict(space, work, serial).seconds_per_row, streamed / batch_rows)


def work_of(config: TrainConfig, algorithm: OnPolicyAlgorithm, worlds: int, probes: Probes) -> Work:
    """An iteration of a run whose episodes go on as the probed ones did."""
    groups = config.rollout.groups(algorithm.group_size)
    outlook = Outlook(probes.outcomes, config.seed)
    return Work(
        worlds,
        groups,
        algorithm.group_size,
        outlook.length,
        keep=algorithm.success_rate_range,
        max_factor=algorithm.max_oversampling,
        won=outlook.won,
        epochs=algorithm.epochs,
        minibatch_size=config.learner.minibatch_size,
        minibatch_groups=whole_groups(config.learner, groups, probes.mean_length * algorithm.group_size),
        parts=algorithm.part_weight is not None,
        recompute=config.learner.recompute_old_log_probs,
    )


def space_of(
    config: TrainConfig, costs: Mapping[str, Costs], most: int, group_size: int, fits: Callable[[Choice], bool]
) -> Space:
    """What may be chosen for a run with up to `most` worlds; how old rows may be, and the policy's wait, are given."""
    given = config.scheduler if isinstance(config.scheduler, PipelinedConfig) else PipelinedConfig()
    serial, *pipelined = schedulers((given.mode,), ladder(most), -(-2 * most // group_size))
    kept = {"max_staleness": given.max_staleness, "max_batch_delay_ms": given.max_batch_delay_ms}
    return Space(
        placements=costs,
        schedulers=(serial, *(dataclasses.replace(one, **kept) for one in pipelined)),
        worlds=tuple(count for count in (most, most // 2, most // 4) if count),
        microbatches=tuple(rows for rows in (64, 32, 16, 128) if rows <= 2 * config.learner.microbatch_size),
        fits=fits,
    )


def whole_groups(learner: LearnerConfig, groups: int, rows_per_group: float) -> int:
    """Groups of a minibatch: as given, or about as many rows as were given."""
    if learner.minibatch_groups is not None:
        return learner.minibatch_groups
    assert learner.minibatch_size is not None, "LearnerConfig sees to it"
    parts = max(1, round(groups * rows_per_group / learner.minibatch_size))
    return -(-groups // parts)


def further_devices(config: TrainConfig) -> list[str]:
    """Devices beside the one that the policy learns on, of its kind."""
    import torch

    return [f"cuda:{number}" for number in range(1, torch.cuda.device_count())] if config.device == "cuda" else []


def apply(
    config: TrainConfig, choice: Choice, groups: int, rows_per_group: float, acts_on: str | None = None
) -> TrainConfig:
    """`config` with a choice filled in, and `autotune` off: it is done. acts_on: the device of placement APART.

    Minibatches of rows become minibatches of about as many rows in whole groups where groups are learned one by one.
    """
    learner = dataclasses.replace(config.learner, microbatch_size=choice.microbatch)
    if isinstance(choice.scheduler, PipelinedConfig) and learner.minibatch_size is not None:
        size = whole_groups(learner, groups, rows_per_group)
        learner = dataclasses.replace(learner, minibatch_size=None, minibatch_groups=size)
    scheduler = choice.scheduler
    if choice.placement == APART and isinstance(scheduler, PipelinedConfig):
        scheduler = dataclasses.replace(scheduler, act_device=acts_on)
    processes = config.env.processes and min(config.env.processes, choice.worlds)
    return dataclasses.replace(
        config,
        autotune=False,
        scheduler=scheduler,
        learner=learner,
        env=dataclasses.replace(config.env, num_envs=choice.worlds, processes=processes),
    )


def describe(tuning: Tuning) -> list[str]:
    """What was measured and what was chosen, for people."""
    choice, played = tuning.found.choice, tuning.found.played
    model = tuning.costs[choice.placement]
    stages = ", ".join(
        f"{name} {1e3 * cost.row:.2f} ms a row + {1e3 * cost.fixed:.1f} ms a call on {cost.device}"
        for name, cost in (("simulate", model.simulate), ("act", model.act))
    )
    learn, probes = model.learn, tuning.probes
    return [
        f"measured: {stages}, learn {1e3 * learn.row:.2f} ms a row + {1e3 * model.learn_call:.1f} ms a micro-batch + "
        f"{1e3 * learn.fixed:.1f} ms a step on {learn.device}; {probes.mean_length:.1f} decisions an episode, "
        f"{probes.success:.0%} successes",
        f"chosen of {tuning.found.tried} schedules: {tuning.config.scheduler.describe()}; {choice.worlds} worlds, "
        f"micro-batches of {choice.microbatch} rows",
        f"predicted: {1 / played.seconds_per_row:.0f} decisions/s, serial {1 / tuning.serial:.0f}",
    ]

"""What a run's loop drives: which episodes run, what runs them, and what learns from them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from embodied_rl.algorithms.config import ImitateConfig, SteerConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.data.episodes import EpisodeStore
from embodied_rl.data.lerobot import Demonstrations
from embodied_rl.learner.distributed.collectives import Collectives
from embodied_rl.learner.learner import Learner
from embodied_rl.learner.types import TrainablePolicy
from embodied_rl.rollout.sampler import EpisodeSampler, TaskStates
from embodied_rl.scheduler.base import Callbacks, Scheduler
from embodied_rl.scheduler.make import make_scheduler
from embodied_rl.training.candidates import ProposingPolicy
from embodied_rl.training.filtered_bc import FilteredBC, RoundScheduler, open_run_store
from embodied_rl.training.offline import CANDIDATES, OfflineScheduler
from embodied_rl.training.settings import TrainSettings
from embodied_rl.training.steer import SteeredBC
from embodied_rl.types import RolloutBatch
from embodied_rl.utils.profiler import Profiler
from embodied_rl.vec_env import VecEnv


class RunLearner(Protocol):
    """What improves the policy: `learner.learner.Learner`, or `filtered_bc.FilteredBC`."""

    version: int
    """Number of finished updates."""

    @property
    def update_in_progress(self) -> bool:
        """Whether an update has begun before its batch is whole."""
        ...

    def update(self, batch: RolloutBatch) -> dict[str, float]:
        """Improve the policy with a batch; return metrics."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """All that a resume needs beside the weights."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from `state`, with the weights that the policy has now."""
        ...

    def close(self) -> None:
        """End what runs in the background."""
        ...


@dataclass(frozen=True, slots=True)
class RunParts:
    """The parts of a run."""

    sampler: EpisodeSampler
    learner: RunLearner
    scheduler: Scheduler


def make_parts(
    run_dir: Path,
    env: VecEnv,
    policy: TrainablePolicy,
    settings: TrainSettings,
    states: TaskStates,
    profiler: Profiler,
    callbacks: Callbacks,
    collectives: Collectives,
) -> RunParts:
    """The parts of a run that trains on the initial states `states`."""
    if settings.recorded is not None:
        return _offline(run_dir, policy, settings, settings.recorded)
    if isinstance(settings.algorithm, ImitateConfig):
        return _imitation(run_dir, env, policy, settings, states, profiler, callbacks)
    algorithm = make_algorithm(settings.algorithm)
    draws = settings.rollout.draws(settings.seed, states, has_success=env.info.has_success)
    sampler = EpisodeSampler(settings.seed, states, algorithm.group_size, draws, perturb_share=settings.perturb_share)
    learner = Learner(
        policy,
        algorithm,
        settings.learner,
        seed=settings.seed,
        dump_dir=run_dir / "dumps",
        threads=1 if settings.learner.fsdp else settings.threads,  # parts take one pass at a time
        collectives=collectives,
        reward_model=settings.reward_model,
    )
    learner.imitate(settings.imitation)
    scheduler = make_scheduler(
        settings.scheduler,
        env,
        learner,
        sampler,
        profiler,
        callbacks,
        groups=settings.rollout.groups(algorithm.group_size),
        workers=settings.workers,
    )
    return RunParts(sampler, learner, scheduler)


def _offline(run_dir: Path, policy: TrainablePolicy, settings: TrainSettings, recorded: Demonstrations) -> RunParts:
    sampler = EpisodeSampler(settings.seed, {"none": [0]})
    return RunParts(sampler, _imitator(policy, settings, recorded, run_dir / CANDIDATES), OfflineScheduler(sampler))


def _imitator(
    policy: TrainablePolicy, settings: TrainSettings, episodes: EpisodeStore | Demonstrations, kept: Path
) -> FilteredBC:
    """What learns from episodes and demonstrations. kept: folder of what is drawn once."""
    config, learner, seed = settings.algorithm, settings.learner, settings.seed
    assert isinstance(config, ImitateConfig), "`check_data` sees to it"
    assert settings.imitation is not None, "`need_demos` and `check_data` see to it"
    demos = settings.imitation.demos
    if isinstance(config, SteerConfig):
        return SteeredBC(policy, config, learner, demos, episodes, seed, settings.evaluation.mode, kept)
    return FilteredBC(policy, config, learner, demos, episodes, seed)


def _imitation(
    run_dir: Path,
    env: VecEnv,
    policy: TrainablePolicy,
    settings: TrainSettings,
    states: TaskStates,
    profiler: Profiler,
    callbacks: Callbacks,
) -> RunParts:
    assert isinstance(settings.algorithm, ImitateConfig)
    assert settings.imitation is not None, "`need_demos` sees to it"
    demos, config, mode = settings.imitation.demos, settings.algorithm, settings.evaluation.mode
    candidates = config.candidates if isinstance(config, SteerConfig) else 0
    store = open_run_store(run_dir, env.info, demos, candidates)
    sampler = EpisodeSampler(
        settings.seed, states, perturb_share=settings.perturb_share, in_order=settings.fresh_states
    )
    scheduler = RoundScheduler(
        env,
        ProposingPolicy(policy, candidates) if candidates else policy,
        sampler,
        store,
        profiler,
        callbacks,
        episodes=settings.rollout.episodes_per_iteration,
        mode=mode,
    )
    return RunParts(sampler, _imitator(policy, settings, store, store.root), scheduler)

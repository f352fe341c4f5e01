"""A training run over ranks: rank 0 has the folder and tells the others what to train; all open and train alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from embodied_rl.config.train import TrainConfig, from_dict, to_dict
from embodied_rl.errors import UserError
from embodied_rl.factory.remote import remote_worker_factory
from embodied_rl.jobs.train_offline import open_offline
from embodied_rl.jobs.train_setup import Overrides, RunSetup, open_run, with_reward
from embodied_rl.learner.distributed.collectives import Collectives, ValueT
from embodied_rl.learner.distributed.join import for_learner, joined
from embodied_rl.scheduler.config import RayConfig
from embodied_rl.scheduler.ray.cluster import Shared, shared_cluster
from embodied_rl.training.observer import SilentObserver
from embodied_rl.training.on_policy import train
from embodied_rl.training.settings import RunOptions, TaskSplit, TrainOutcome, TrainSettings
from embodied_rl.utils.machine import cpu_count
from embodied_rl.utils.ranks import ProcessRank

_Broadcast = tuple[dict[str, Any] | None, Path | None, TrainOutcome | None]
"""What rank 0 says at first: config and checkpoint, or the outcome of a run that is finished."""
_NOTHING: _Broadcast = (None, None, None)


class WorkerRankError(UserError):
    """Another rank has told the user what is wrong; this one only ends."""


@dataclass(frozen=True, slots=True)
class RunRanks:
    """What all ranks of a run know: its config, the checkpoint to go on from, and each other."""

    config: TrainConfig
    checkpoint: Path | None
    collectives: Collectives


def broadcast_run(config: TrainConfig, checkpoint: Path | None, collectives: Collectives) -> RunRanks:
    """Tell the worker ranks what to train, as the main rank or the only process.

    Raises:
        UserError: the config asks for ranks, and nothing started them, or for something that does not go with them.
        RankError: another rank was lost.
    """
    if config.learner.num_processes > 1 and not ProcessRank.from_env().launched:
        raise UserError(
            f"learner.num_processes is {config.learner.num_processes}: start your program with "
            f"torchrun --nproc-per-node {config.learner.num_processes}, or train with embodied-rl train."
        )
    size = collectives.size
    config = dataclasses.replace(config, learner=dataclasses.replace(config.learner, num_processes=size))
    if size > 1:
        config.check()
    if config.autotune and size > 1:
        raise UserError("--autotune measures a learner of one process: leave it out, or train with one rank.")
    here = ProcessRank.from_env()
    if isinstance(config.scheduler, RayConfig) and config.scheduler.address is None and here.local_size < here.size:
        raise UserError(
            "ranks on several machines need a Ray cluster: run `ray start --head` on one and `ray start "
            "--address=HEAD:6379` on the others, and give --scheduler.address auto."
        )
    ranked = for_learner(collectives, fsdp=config.learner.fsdp)
    collectives.gather((to_dict(config), checkpoint, None))
    return RunRanks(config, checkpoint, ranked)


def broadcast_outcome(outcome: TrainOutcome, collectives: Collectives) -> TrainOutcome:
    """Tell the worker ranks that there is nothing to train."""
    collectives.gather((None, None, outcome))
    return outcome


def train_as_worker_rank(overrides: Overrides | None = None) -> TrainOutcome:
    """Train as one of the worker ranks, what the main rank broadcasts; nothing is written or said.

    Raises:
        RankError: another rank was lost, or rank 0 did not begin.
        WorkerRankError, Interrupted, NonFiniteError, RatioError: rank 0 says what it is.
        UserError: this rank alone cannot go on.
    """
    with ExitStack() as stack:
        collectives = stack.enter_context(joined(ProcessRank.from_env()))
        data, checkpoint, outcome = collectives.gather(_NOTHING)[0]
        if data is None:
            assert outcome is not None
            return outcome
        config = from_dict(data)
        ranks = RunRanks(config, checkpoint, for_learner(collectives, fsdp=config.learner.fsdp))
        setup = stack.enter_context(open_together(ranks, overrides or Overrides(), Console(quiet=True)))
        return train(
            Path(setup.config.output),
            setup.env,
            setup.policy,
            setup.files,
            settings_of(setup),
            TaskSplit(setup.states.train, setup.states.heldout),
            SilentObserver(),
            RunOptions(resume=checkpoint, remote=remote_worker_factory(setup.config), collectives=ranks.collectives),
        )


@contextmanager
def open_together(ranks: RunRanks, overrides: Overrides, console: Console) -> Iterator[RunSetup]:
    """`open_run` on every rank; what is wrong on any of them is said once, before anything is written.

    Raises:
        UserError: this rank, or the first that could not open, says why; or the ranks found other files.
        WorkerRankError: rank 0 says why.
    """
    collectives = ranks.collectives
    with ExitStack() as stack:
        setup, wrong = None, None
        opens = open_offline if ranks.config.data else open_run
        try:
            setup = with_reward(stack.enter_context(opens(ranks.config, overrides, console, resume=ranks.checkpoint)))
        except UserError as error:
            wrong = error
        pinned = _agree(collectives, wrong, {} if setup is None else _pinned(setup))
        assert setup is not None
        if differs := _difference(pinned):
            raise UserError(differs) if collectives.rank == 0 else WorkerRankError("rank 0 says what is wrong.")
        if isinstance(setup.config.scheduler, RayConfig):
            _connect(setup.config.scheduler, collectives, stack)
        yield setup


def _connect(config: RayConfig, collectives: Collectives, stack: ExitStack) -> None:
    """Connect every rank to one Ray cluster until `stack` ends: rank 0 first, which starts it if there is none."""
    shared: Shared | None = None
    for turn in (collectives.rank == 0, collectives.rank > 0):
        wrong = None
        try:
            if turn:
                shared = stack.enter_context(shared_cluster(config, shared))
        except UserError as error:
            wrong = error
        shared = _agree(collectives, wrong, shared)[0]


def _agree(collectives: Collectives, wrong: UserError | None, value: ValueT) -> list[ValueT]:
    """The values of all ranks, by rank.

    Raises:
        UserError: `wrong` on rank 0, or what is wrong with the first rank that has something.
        WorkerRankError: rank 0 says so.
    """
    said = collectives.gather((None if wrong is None else str(wrong), value))
    if wrong is not None and collectives.rank == 0:
        raise wrong
    for rank, (text, _) in enumerate(said):
        if text is not None and collectives.rank == 0:
            raise UserError(f"rank {rank} could not begin: {text}")
        if text is not None:
            raise WorkerRankError("rank 0 says what is wrong.") from wrong
    return [found for _, found in said]


def _pinned(setup: RunSetup) -> dict[str, str]:
    """Digests of what each rank has read from its own disk, by name and where it lies."""
    config, demos = setup.config, setup.demos
    return {
        f"reward model in {config.reward.model}": config.reward.digest,
        f"set of demonstrations in {' '.join(config.demos)}": "" if demos is None else demos.imitation.digest,
    }


def _difference(pinned: list[dict[str, str]]) -> str:
    """The first rank that found other files than rank 0, in a line; '' if there is none."""
    for rank, files in enumerate(pinned):
        for (what, first), digest in zip(pinned[0].items(), files.values(), strict=True):
            if digest != first:
                return (
                    f"rank {rank} has another {what} ({digest[:12]}) than rank 0 ({first[:12]}): copy rank 0's there."
                )
    return ""


def settings_of(setup: RunSetup) -> TrainSettings:
    """What `train` takes of a run, with this rank's share of the machine's threads."""
    config, place = setup.config, ProcessRank.from_env()
    assert config.num_threads is not None
    return TrainSettings(
        algorithm=config.algorithm,
        learner=config.learner,
        rollout=config.rollout,
        evaluation=config.evaluation,
        checkpoint=config.checkpoint,
        iterations=config.iterations,
        seed=config.seed,
        scheduler=config.scheduler,
        guard=config.guard,
        reward_model=setup.reward_model,
        imitation=None if setup.demos is None else setup.demos.imitation,
        recorded=setup.recorded,
        people=setup.people,
        workers=place.local_share(config.env.threads or cpu_count()),
        threads=place.local_share(config.num_threads) if config.device == "cpu" else 1,
        perturb_share=config.perturbation[1] if config.perturb else 0.0,
        fresh_states=config.train_states == "fresh",
        train_on_heldout=config.train_states == "heldout",
    )

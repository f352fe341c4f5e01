"""Short real trials of a training config, and successive halving over several of them."""

from __future__ import annotations

import dataclasses
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from torch import nn

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.config.train import TrainConfig
from embodied_rl.learner.learner import Learner
from embodied_rl.learner.types import TrainablePolicy
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.base import Callbacks
from embodied_rl.scheduler.config import PipelinedConfig
from embodied_rl.scheduler.make import make_profiler, make_scheduler
from embodied_rl.scheduler.pipeline.replica import replicate
from embodied_rl.utils.machine import cpu_count
from embodied_rl.utils.profiler import Span
from embodied_rl.utils.threads import set_torch_threads
from embodied_rl.vec_env import VecEnv

CandidateT = TypeVar("CandidateT")
CLEARLY = 1.02
"""Times as fast as an earlier candidate a later one must be to be chosen instead: the simpler ones come first."""
_SPANS = 1 << 20


@dataclass(frozen=True, slots=True)
class Trial:
    """One measured iteration: its seconds, the decisions of its episodes, and which thread did what when."""

    seconds: float
    decisions: int
    spans: list[Span]

    @property
    def rate(self) -> float:
        """Decisions per second."""
        return self.decisions / self.seconds


def run_trial(config: TrainConfig, env: VecEnv, policy: TrainablePolicy, states: Mapping[str, Sequence[int]]) -> Trial:
    """Train a copy of `policy` for one iteration as `config` says; `policy` itself stays as it is.

    It is an iteration as most of a run has them: PPO's policy learns at once, though a run may begin with the critic
    alone, and `async` runs one iteration before, so that the measured one finds episodes that began ahead of it.
    """
    assert isinstance(policy, nn.Module)
    assert config.num_threads is not None
    options, on_cpu = config.algorithm, config.device == "cpu"
    if isinstance(options, PPOConfig):
        options = dataclasses.replace(options, critic_warmup_iterations=0)
    algorithm, trained = make_algorithm(options), replicate(policy)
    clock = make_profiler(config.scheduler, _SPANS)
    warm_up = int(isinstance(config.scheduler, PipelinedConfig) and config.scheduler.mode == "async")
    set_torch_threads(config.num_threads)
    with tempfile.TemporaryDirectory() as dumps:
        learner = Learner(
            trained,
            algorithm,
            config.learner,
            seed=config.seed,
            dump_dir=Path(dumps),
            threads=config.num_threads if on_cpu else 1,
        )
        scheduler = make_scheduler(
            config.scheduler,
            env,
            learner,
            EpisodeSampler(config.seed, states, algorithm.group_size),
            clock,
            Callbacks(),
            groups=config.rollout.groups(algorithm.group_size),
            workers=config.env.threads or cpu_count(),
        )
        with closing(learner), closing(scheduler):
            began, cut = time.perf_counter(), 0
            # as in the middle of a run: further iterations are to come
            for batch in scheduler.batches(0, warm_up + 3):
                with clock.span("update"):
                    learner.update(batch)
                scheduler.publish(learner.version)
                ended = time.perf_counter()
                if batch.version == warm_up:
                    return Trial(ended - began, int(batch.info["rollout/decisions"]), clock.spans[cut:])
                began, cut = ended, len(clock.spans)
    raise AssertionError("a scheduler yields every batch that it is asked for")


@dataclass(slots=True)
class TrialOutcome(Generic[CandidateT]):
    """What trying a candidate gave: the trials of its last round (1, 2, ...), or the error that ruled it out."""

    candidate: CandidateT
    last_round: int = 0
    trials: list[Trial] = field(default_factory=list)
    error: str | None = None

    @property
    def rate(self) -> float:
        """Decisions per second, the median over the trials of its last round."""
        return statistics.median(trial.rate for trial in self.trials)


@dataclass(frozen=True, slots=True)
class Round:
    """One round of the halving: how many trials each candidate gets, and how long each is.

    waves: episodes of a trial for each world of the given config.
    """

    trials: int
    waves: int


ROUNDS = (Round(1, 1), Round(1, 2), Round(2, 4))
FINALISTS = 2


def halve(
    candidates: Sequence[CandidateT], trial: Callable[[CandidateT, Round], Trial]
) -> tuple[TrialOutcome[CandidateT], list[TrialOutcome[CandidateT]]]:
    """Try `candidates`, the simplest first, keep the faster half after each of ROUNDS, and return the best and all.

    The last round is for FINALISTS. Trials of a round are paired: all candidates take turns, there and back, so that a
    machine that gets slower or faster meanwhile does so for all alike. A candidate whose trial raises an exception is
    out, with the error.

    Raises:
        RuntimeError: every candidate failed; the message has the first one's error.
    """
    outcomes = [TrialOutcome(candidate) for candidate in candidates]
    alive = list(outcomes)
    for number in _rounds(len(candidates)):
        for outcome in alive:
            outcome.trials, outcome.last_round = [], number + 1
        for turn in range(ROUNDS[number].trials):
            for outcome in alive if turn % 2 == 0 else reversed(alive):
                if outcome.error is None:
                    _try(outcome, ROUNDS[number], trial)
        alive = [outcome for outcome in alive if outcome.error is None]
        if not alive:
            raise RuntimeError(next(outcome.error for outcome in outcomes if outcome.error is not None))
        fastest = sorted(range(len(alive)), key=lambda at: -alive[at].rate)[: _kept(len(alive), number)]
        alive = [alive[at] for at in sorted(fastest)]
    top = max(outcome.rate for outcome in alive)
    return next(outcome for outcome in alive if outcome.rate * CLEARLY >= top), outcomes


def _rounds(candidates: int) -> range:
    """Numbers of the rounds: few candidates go to the last one at once."""
    return range(len(ROUNDS) - 1 if candidates <= FINALISTS else 0, len(ROUNDS))


def _kept(count: int, number: int) -> int:
    """How many of `count` candidates stay after round `number`."""
    return FINALISTS if number >= len(ROUNDS) - 2 else max(FINALISTS, math.ceil(count / 2))


def _try(outcome: TrialOutcome[CandidateT], round_: Round, trial: Callable[[CandidateT, Round], Trial]) -> None:
    try:
        outcome.trials.append(trial(outcome.candidate, round_))
    except Exception as error:  # noqa: BLE001  # the table says it, and the run would meet it too
        outcome.trials = []
        outcome.error = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}".rstrip(": ")


def num_trials(candidates: int) -> int:
    """Trials that `halve` makes of so many candidates, if none fails."""
    count, alive = 0, candidates
    for number in _rounds(candidates):
        count += ROUNDS[number].trials * alive
        alive = min(alive, _kept(alive, number))
    return count

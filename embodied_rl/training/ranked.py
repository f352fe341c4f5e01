"""What ranks do together between updates: they evaluate, each its share of the episodes, and stop alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from embodied_rl.evaluation.evaluate import EvalReport, report, run_once
from embodied_rl.learner.distributed.collectives import Collectives
from embodied_rl.policy import ActMode, Policy
from embodied_rl.types import EpisodeResult, EpisodeSpec
from embodied_rl.utils.signals import Interrupted, StopRequest
from embodied_rl.vec_env import VecEnv


def evaluate_together(
    collectives: Collectives,
    env: VecEnv,
    policy: Policy,
    specs: Sequence[EpisodeSpec],
    mode: ActMode,
    *,
    on_episode: Callable[[EpisodeResult], None],
    on_round: Callable[[], None],
) -> EvalReport:
    """As `evaluation.evaluate.evaluate`, with the episodes dealt over ranks; every rank returns the whole report.

    Raises:
        Interrupted: some rank was asked to stop.
    """
    own, measured = specs[collectives.rank :: collectives.size], {}
    stopped = False
    try:
        if own:
            measured = run_once(env, policy, own, mode, on_episode=on_episode, on_round=on_round)
    except Interrupted:
        stopped = True
    found = collectives.gather((stopped, list(measured.values())))
    if any(stop for stop, _ in found):
        raise Interrupted("interrupted")
    by_id = {result.spec.episode_id: result for _, part in found for result in part}
    for rank, (_, part) in enumerate(found):
        for result in part if rank != collectives.rank else ():  # its own were told as they ended
            on_episode(result)
    return report(specs, by_id, mode, env.info)


def stop_together(collectives: Collectives, stop: StopRequest) -> None:
    """Raise Interrupted on every rank if any was asked to stop."""
    if any(collectives.gather(stop.asked)):
        raise Interrupted("interrupted")

"""A whole benchmark: every task from every evaluated initial state exactly once, resumable, scored two ways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.evaluation.evaluate import Score, nothing_measured, run_once, score
from embodied_rl.evaluation.results_log import EpisodeOutcome, EpisodeResultsLog, Finished
from embodied_rl.policy import ActMode, Policy
from embodied_rl.types import EpisodeResult, EpisodeSpec
from embodied_rl.vec_env import VecEnv


@dataclass(frozen=True, slots=True)
class Tally:
    """once: the goal held after some control step; at_end: after the last one, None where that was not measured."""

    once: Score
    at_end: Score | None


@dataclass(frozen=True, slots=True)
class BenchmarkReport:
    """What an evaluation found.

    tasks: in the order of their first episode; unseen: the episodes from states that the policy was not trained on,
    where it was trained on some and not on others (else None); outcomes: in the order of their ids; not_measured:
    episodes that broke the simulator, which no score counts.
    """

    overall: Tally
    tasks: dict[str, Tally]
    unseen: Tally | None
    outcomes: list[EpisodeOutcome]
    not_measured: list[EpisodeSpec]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        data = asdict(self)
        data["episodes"] = data.pop("outcomes")
        return data


def interleaved(specs: Sequence[EpisodeSpec]) -> list[EpisodeSpec]:
    """The order to run `specs` in: the first state of every task, then the second of every task, and so on.

    Slots then hold different tasks at any time, and an evaluation that is stopped half-way has seen them all.
    """
    by_task: dict[str, list[EpisodeSpec]] = {}
    for spec in specs:
        by_task.setdefault(spec.task, []).append(spec)
    longest = max((len(rows) for rows in by_task.values()), default=0)
    return [rows[i] for i in range(longest) for rows in by_task.values() if i < len(rows)]


def run_missing(
    env: VecEnv,
    policy: Policy,
    specs: Sequence[EpisodeSpec],
    mode: ActMode,
    ledger: EpisodeResultsLog,
    *,
    outcome_of: Callable[[EpisodeResult], EpisodeOutcome] = EpisodeOutcome,
    on_episode: Callable[[EpisodeResult], None] | None = None,
    on_round: Callable[[], None] | None = None,
) -> None:
    """Run those of `specs` that `ledger` lacks, in the order given; each is on disk as soon as it ends.

    outcome_of: what is recorded of a finished episode, asked once for each. UserError if the ledger holds another
    episode under the id of one of `specs`.
    """
    missing = []
    for spec in specs:
        known = ledger.finished.spec(spec.episode_id)
        if known is None:
            missing.append(spec)
        elif known != spec:
            raise UserError(
                f"{ledger.folder} has another episode {spec.episode_id} ({known.task}, initial state "
                f"{known.init_state}): choose another --output."
            )

    def record(result: EpisodeResult) -> None:
        ledger.add(outcome_of(result))
        if on_episode is not None:
            on_episode(result)

    if missing:
        run_once(env, policy, missing, mode, on_episode=record, on_broken=ledger.add_broken, on_round=on_round)


def summarise(
    finished: Finished, seen: Mapping[str, Sequence[int]] | None = None, *, has_success: bool = True
) -> BenchmarkReport:
    """Score finished episodes, overall and by task.

    Args:
        finished: the episodes.
        seen: by task, the evaluated states that were trained on.
        has_success: as of `Score`.

    Raises:
        ValueError: There is no episode.
        UserError: None of them was measured.
    """
    ordered = [outcome for _, outcome in sorted(finished.outcomes.items())]
    lost = [spec for _, spec in sorted(finished.not_measured.items())]
    if lost and not ordered:
        raise UserError(nothing_measured(lost))
    specs = sorted([*(o.result.spec for o in ordered), *lost], key=lambda spec: spec.episode_id)
    known = seen or {}

    def tally(wanted: Callable[[EpisodeSpec], bool]) -> Tally:
        return _tally([o for o in ordered if wanted(o.result.spec)], sum(map(wanted, lost)), has_success)

    def fresh(spec: EpisodeSpec) -> bool:
        return spec.init_state not in known.get(spec.task, ())

    tasks = {name: tally(lambda spec, name=name: spec.task == name) for name in dict.fromkeys(s.task for s in specs)}
    unseen = tally(fresh) if 0 < sum(map(fresh, specs)) < len(specs) else None
    return BenchmarkReport(tally(lambda spec: True), tasks, unseen, ordered, lost)


def _tally(outcomes: Sequence[EpisodeOutcome], not_measured: int, has_success: bool) -> Tally:
    results = [outcome.result for outcome in outcomes]
    ends = [outcome.at_end for outcome in outcomes if outcome.at_end is not None]
    whole = len(ends) == len(outcomes)
    return Tally(
        score(results, has_success=has_success, not_measured=not_measured),
        score(results, ends, not_measured=not_measured) if whole else None,
    )

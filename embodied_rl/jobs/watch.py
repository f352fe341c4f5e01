"""Calibrates a failure detector on the kept episodes of an evaluation, and says how well it does. Imports torch."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Column, Table

from embodied_rl.algorithms.config import ImitateConfig
from embodied_rl.config.env import one_env
from embodied_rl.config.train import TrainConfig
from embodied_rl.data.columns import chunk_transitions
from embodied_rl.data.episodes import EpisodeStore, open_store
from embodied_rl.data.progress import ProgressBar
from embodied_rl.errors import UserError
from embodied_rl.evaluation.detector import (
    FEW,
    KINDS,
    AlarmFigures,
    DemonstratedStates,
    Detector,
    Kind,
    Sight,
    WatchedEpisode,
    calibrate,
    figures,
    save_detector,
)
from embodied_rl.evaluation.features import NOTHING, frame_features
from embodied_rl.evaluation.overlap import Overlap
from embodied_rl.evaluation.results_log import EpisodeResultsLog
from embodied_rl.jobs.eval_request import BenchmarkCommand
from embodied_rl.jobs.evaluation_setup import EvaluationPlan, evaluation_env, make_plan, prepare
from embodied_rl.jobs.train_demos import open_demos
from embodied_rl.learner.imitation import Demos
from embodied_rl.training.filtered_bc import STORE, weights_digest
from embodied_rl.utils.output import replace_text
from embodied_rl.utils.words import counted

OnRows = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """kind: of the detector that is saved. demos: data sets, as `sft` reads them. out: its file. json: for figures."""

    kind: Kind
    demos: tuple[str, ...]
    out: Path
    json: Path | None = None


def run(benchmark: str, command: BenchmarkCommand, wanted: WatchRequest, console: Console) -> None:
    """Calibrate on one half of the kept episodes, try it on the other, save it, and print figures beside the clock's.

    Args:
        benchmark: of the evaluation.
        command: of the evaluation; its `output` is the folder that has the episodes.
        wanted: what is made.
        console: where to.

    Raises:
        UserError: the folder has no episodes, not of this policy or not such as end at success; or the demonstrations
            do not fit, or lack a task.
    """
    store = _store(command)
    plan = make_plan(benchmark, dataclasses.replace(command, env=one_env(command.env)), console)
    _require_whole(plan)
    ready = prepare(plan, command)
    _require_unseen(ready.seen, command)
    with evaluation_env(plan, ready.policy, ready.renderer) as env:
        config = TrainConfig(suite=plan.suite, demos=wanted.demos, algorithm=ImitateConfig())
        demos = open_demos(config, ready.policy, env.info, console).imitation.demos
    digest = weights_digest(ready.policy)
    _require_policy(store, digest, command)
    states = None if wanted.kind == "clock" else demonstrated_states(ready.policy, demos, console)
    episodes = watched(ready.policy, states, store, console)
    kinds: Sequence[Kind] = ("clock",) if states is None else KINDS
    teaching, judging = halves(episodes)
    limits: dict[Kind, dict[str, float]] = {kind: calibrate(kind, teaching) for kind in kinds}
    found = figures(limits, judging)
    facts = _facts(command, wanted, demos) | {"calibration": len(teaching), "test": len(judging)}
    facts["figures"] = next(asdict(row) for row in found if row.kind == wanted.kind)
    detector = Detector(wanted.kind, digest, ready.policy.chunk_len, limits[wanted.kind], states, facts)
    save_detector(detector, wanted.out)
    _say(console, wanted, found, teaching, judging)
    if wanted.json is not None:
        said = {"detector": wanted.kind, "policy": digest, "limits": limits, "figures": [asdict(row) for row in found]}
        replace_text(wanted.json, json.dumps(facts | said, indent=1) + "\n")


def _store(command: BenchmarkCommand) -> EpisodeStore:
    folder = Path(command.output)
    if not command.keep:
        raise UserError(f"{folder} kept no episodes: evaluate with --keep.")
    if command.at_end:
        raise UserError(
            f"{folder} ran its episodes on after success, and a detector must see where they end: evaluate with "
            "--keep --no-at-end."
        )
    return open_store(folder / STORE)


def _require_whole(plan: EvaluationPlan) -> None:
    folder = Path(plan.command.output)
    done = len(EpisodeResultsLog.read(folder))
    if done < len(plan.specs):
        again = shlex.join(["embodied-rl", "eval", "--resume", str(folder)])
        raise UserError(f"{folder} has {done} of its {counted(len(plan.specs), 'episode')}: finish it with {again}")


def _require_unseen(seen: Overlap, command: BenchmarkCommand) -> None:
    """From the states that it was trained on a policy strays less, and a limit from there is too low elsewhere."""
    if seen.shared:
        raise UserError(
            f"{seen.shared} of the episodes in {command.output} start from states that the policy was trained on, and "
            "a detector is calibrated on others: evaluate with --states heldout."
        )


def _require_policy(store: EpisodeStore, digest: str, command: BenchmarkCommand) -> None:
    acted = {store.info(key).policy for key in store.keys()}  # noqa: SIM118
    if acted != {digest}:
        raise UserError(
            f"{command.checkpoint} is not the policy whose episodes {command.output} has, "
            f"{', '.join(name[:12] for name in sorted(acted)) or 'of which there are none'} (here {digest[:12]}): "
            "evaluate again with --keep."
        )


def demonstrated_states(policy: Any, demos: Demos, console: Console) -> DemonstratedStates:
    """What the policy makes of the demonstrations, where it would decide."""
    sets = [part.samples.data for part in demos.mixture.parts]
    spans = [(data, *span) for data in sets for span in zip(data.starts[:-1], data.starts[1:], strict=True)]
    rows = [np.arange(first, end, policy.chunk_len) for _, first, end in spans]
    with _bar(console, "demonstrations", sum(map(len, rows))) as on_rows:
        parts = [frame_features(policy, data, mine, on_rows) for (data, *_), mine in zip(spans, rows, strict=True)]
    to_go = np.concatenate([np.arange(len(mine), 0, -1) for mine in rows])
    words = [data.instruction[row] for (data, *_), mine in zip(spans, rows, strict=True) for row in mine]
    return DemonstratedStates.of(np.concatenate(parts), to_go, words)


def watched(
    policy: Any, states: DemonstratedStates | None, store: EpisodeStore, console: Console
) -> list[WatchedEpisode]:
    """The stored episodes as a detector sees them; states: None where nobody looks."""
    keys = store.keys()
    data = store.at(len(keys))
    decisions = chunk_transitions(data.columns, data.starts, 1.0).row
    sights = [NOTHING] * len(decisions)
    if states is not None:
        with _bar(console, "episodes", len(decisions)) as on_rows:
            found = frame_features(policy, data, decisions, on_rows)
        sights = _sights(states, found, [data.instruction[row] for row in decisions])
    episodes = []
    for key, first, end in zip(keys, data.starts[:-1], data.starts[1:], strict=True):
        mine = np.flatnonzero((decisions >= first) & (decisions < end))
        seen, steps = [sights[row] for row in mine], (decisions[mine] - first).tolist()
        won = store.info(key).success == 1
        episodes.append(WatchedEpisode(data.instruction[first], won, seen, steps, int(end - first)))
    return episodes


def _sights(states: DemonstratedStates, found: np.ndarray, words: Sequence[str]) -> list[Sight]:
    sights = [NOTHING] * len(words)
    for name in dict.fromkeys(words):
        rows = [row for row, word in enumerate(words) if word == name]
        for row, distance, to_go in zip(rows, *states.nearest(found[rows], name), strict=True):
            sights[row] = Sight(float(distance), float(to_go))
    return sights


def halves(episodes: Sequence[WatchedEpisode]) -> tuple[list[WatchedEpisode], list[WatchedEpisode]]:
    """(for calibration, for the test): of each task's episodes every other one."""
    count: dict[str, int] = {}
    parts: tuple[list[WatchedEpisode], list[WatchedEpisode]] = ([], [])
    for episode in episodes:
        number = count.setdefault(episode.instruction, 0)
        parts[number % 2].append(episode)
        count[episode.instruction] = number + 1
    return parts


@contextmanager
def _bar(console: Console, what: str, total: int) -> Iterator[OnRows]:
    with ProgressBar(console, what) as bar:
        task, done = bar.add_task("", total=total, note="what the policy makes of them"), 0

        def on_rows(rows: int) -> None:
            nonlocal done
            done += rows
            bar.update(task, completed=done)

        yield on_rows


def _facts(command: BenchmarkCommand, wanted: WatchRequest, demos: Demos) -> dict[str, Any]:
    return {
        "checkpoint": command.checkpoint,
        "suite": command.suite,
        "mode": command.mode,
        "episodes_in": command.output,
        "demonstrations": list(wanted.demos),
        "demonstrations_sha256": demos.digest,
    }


def _say(
    console: Console,
    wanted: WatchRequest,
    found: Sequence[AlarmFigures],
    teaching: Sequence[WatchedEpisode],
    judging: Sequence[WatchedEpisode],
) -> None:
    """Print the table and what it stands on."""
    won = sum(episode.success for episode in judging)
    title = f"{counted(len(judging), 'episode')} that did not calibrate, {won} of them successes"
    heads = ("balanced accuracy", "failures found", "false alarms", "alarm at decision", "steps saved")
    name = Column("detector", no_wrap=True)
    table = Table(name, *heads, "at the clock's false alarms", title=title)
    for row in found:
        shares = (_share(value) for value in (row.balanced_accuracy, row.found, row.false_alarms))
        same = f"{_number(row.same_decision)}, {_share(row.same_saved)}"
        table.add_row(row.kind, *shares, _number(row.decision), _share(row.saved), same)
    console.print(table)
    for task in dict.fromkeys(episode.instruction for episode in teaching):
        count = sum(episode.success for episode in teaching if episode.instruction == task)
        if count < FEW:
            console.print(
                f"'{task}' has {counted(count, 'success')} to calibrate with: its limit is that of all "
                "tasks' successes",
                soft_wrap=True,
            )
    console.print(f"wrote {wanted.out}: {wanted.kind}", soft_wrap=True)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"

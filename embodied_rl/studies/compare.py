"""`runs compare`: a run against its recipe's reference runs, or two runs with each other, by what they measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from embodied_rl import configs
from embodied_rl.config.train import TrainConfig, to_dict
from embodied_rl.evaluation.change import Change, paired_change
from embodied_rl.evaluation.evaluate import EvalReport
from embodied_rl.jobs.describe import run_words
from embodied_rl.jobs.reference_runs import ReferenceRuns, reference_line
from embodied_rl.jobs.run_folder import MAY_DIFFER, flat
from embodied_rl.jobs.run_records import RunRecord
from embodied_rl.jobs.run_tables import extrapolation_lines
from embodied_rl.telemetry.info import EarlierRunInfo, RunInfo
from embodied_rl.telemetry.observer import evaluation_path, read_evaluation
from embodied_rl.telemetry.tables import change_words
from embodied_rl.utils.words import counted


def reference_lines(record: RunRecord, reference: ReferenceRuns) -> tuple[list[str], bool | None]:
    """Each evaluation and the prediction interval of its recipe; and whether the newest is inside, None without one."""
    changed = config_changes(configs.get(reference.recipe), record.config)
    lines = [f"  {record.folder} against the reference runs of {reference_line(reference)}"]
    lines += [
        f"  {name}: {now!r}, the recipe has {then!r}"
        for name, (then, now) in changed.items()
        if then != "auto" or not _machines_choice(name, record.config.suite)
    ]
    inside: bool | None = None
    for point in reference.curve:
        row = record.evaluations().get(point.update)
        if row is None or "eval/success" not in row:
            continue
        rate = row["eval/success"]
        inside = rate in point.interval
        place = "inside" if inside else "OUTSIDE"
        interval = f"{point.interval.low:.1%} to {point.interval.high:.1%}"
        lines.append(f"  after {point.update:>3} updates: {rate:.1%}, {place} the prediction interval {interval}")
    if inside is None:
        at = ", ".join(str(point.update) for point in reference.curve)
        lines.append(f"  not judged: the reference runs have evaluations after {at} updates, {progress_of(record)}")
    return lines + extrapolation_lines(record), inside


def progress_of(record: RunRecord) -> str:
    """How far a run is, and what was evaluated last."""
    done = f"{record.folder} made {record.updates} of {counted(record.config.iterations, 'update')}"
    evaluations = record.evaluations()
    if not evaluations:
        return f"{done} and was not evaluated yet"
    step = list(evaluations)[-1]
    return f"{done} and was last evaluated after {step}: {_newest(record)}"


def _newest(record: RunRecord) -> str:
    before, after = record.ends()
    return after or before


def _machines_choice(name: str, suite: str) -> bool:
    """Whether a run's config says only what 'auto' became on its machine, which is no departure from the recipe."""
    return name in ("env.renderer", "env.render_quality", "device") or (
        name == "env.physics_version" and not suite.startswith("libero")
    )


def pair_lines(first: RunRecord, second: RunRecord) -> list[str]:
    """What differs between two runs, and their newest evaluations on the same states."""
    changes: Mapping[str, tuple[Any, Any]] = config_changes(first.config, second.config)
    lines = [f"  {name}: {one!r} and {two!r}" for name, (one, two) in changes.items()]
    lines += _session_lines(first, second)
    lines += [f"  seed: {first.config.seed} and {second.config.seed}"]
    lines += [f"  {progress_of(record)}" for record in (first, second) if not record.finished]
    paired = paired_ends(first, second)
    if paired is None:
        why = "they have no evaluated initial state in common"
        if not (first.repeatable and second.repeatable):
            ends = f"newest evaluations: {first.ends()[-1]} and {second.ends()[-1]}"
            why = f"{ends}; no difference state by state, as the task does not repeat an episode from its seed"
        return [*lines, f"  {why}"]
    return [
        *lines,
        f"  newest evaluations: {_newest(first)} and {_newest(second)}; difference {change_words(paired)}, of these "
        "two runs alone",
    ]


def config_changes(first: TrainConfig, second: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """Keys whose values differ, of those that decide what is learned; the seed and the folder aside."""
    one, two = flat(to_dict(first)), flat(to_dict(second))
    names = [name for name in dict.fromkeys((*one, *two)) if name not in MAY_DIFFER and name != "seed"]
    return {name: (one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name)}


def _session_lines(first: RunRecord, second: RunRecord) -> list[str]:
    """What else differs: versions, machine, weights, ..."""
    one, two = first.sessions[-1], second.sessions[-1]
    if isinstance(one, EarlierRunInfo) or isinstance(two, EarlierRunInfo):
        old = first if isinstance(one, EarlierRunInfo) else second
        return [f"  versions, machine and weights: not compared, as an earlier version wrote {old.folder}"]
    words = [run_words(info, record.config) for info, record in ((one, first), (two, second))]
    return [f"  {name}: {words[0].get(name)} and {words[1].get(name)}" for name in session_changes(one, two)]


def session_changes(first: RunInfo, second: RunInfo) -> list[str]:
    """What else differs between two runs, of `_COMPARED`: the names that `jobs.describe.run_words` gives them."""
    return [name for name, facts in _COMPARED.items() if facts(first) != facts(second)]


_COMPARED: dict[str, Callable[[RunInfo], object]] = {
    "versions": lambda info: info.versions,
    "machine": lambda info: (info.machine.cpu, info.machine.cores),
    "device": lambda info: (info.machine.device, info.machine.gpu, info.machine.threads, info.versions.torch),
    "weights": lambda info: (info.policy.digest, info.policy.seed),
    "simulator": lambda info: (
        info.simulator.name,
        info.simulator.num_envs,
        info.simulator.processes,
        info.simulator.threads,
    ),
    "renderer": lambda info: (
        info.simulator.renderer,
        info.simulator.render_quality,
        info.simulator.cameras,
        info.simulator.image_height,
        info.simulator.image_width,
    ),
    "physics version": lambda info: (info.simulator.physics_version, info.trained_physics_version),
}


def paired_ends(first: RunRecord, second: RunRecord) -> Change | None:
    """The first run's newest evaluation minus the second's, on the states that both measured.

    None where they share none, as where a task does not repeat itself.
    """
    one, two = (_newest_evaluation(record) for record in (first, second))
    return None if one is None or two is None else paired_change(two, one)


def _newest_evaluation(record: RunRecord) -> EvalReport | None:
    """The newest evaluation, episode by episode."""
    steps = list(record.evaluations())
    if not steps or not evaluation_path(record.folder, steps[-1]).is_file():
        return None
    return read_evaluation(record.folder, steps[-1])

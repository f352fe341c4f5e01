"""`runs compare`: a run against its recipe's reference runs, or two runs with each other, by what they measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from embodied_rl import configs
from embodied_rl.config.train import TrainConfig, to_dict
from embodied_rl.evaluation.change import Change, paired_change
from embodied_rl.evaluation.evaluate import EvalReport
from embodied_rl.jobs.recipe_cards import RecipeCard, card_line
from embodied_rl.jobs.run_folder import MAY_DIFFER, flat
from embodied_rl.jobs.run_records import RunRecord
from embodied_rl.jobs.run_tables import forecast_lines
from embodied_rl.telemetry.observer import evaluation_path, read_evaluation
from embodied_rl.telemetry.tables import change_words
from embodied_rl.utils.words import counted


def band_lines(record: RunRecord, card: RecipeCard) -> tuple[list[str], bool | None]:
    """Each evaluation in the band of its recipe; and whether the newest of them is inside, None where there is none."""
    changed = config_changes(configs.get(card.recipe), record.config)
    lines = [f"  {record.folder} against the recipe card {card_line(card)}"]
    lines += [
        f"  {name}: {now!r}, the recipe has {then!r}"
        for name, (then, now) in changed.items()
        if then != "auto" or not _machines_choice(name, record.config.suite)
    ]
    inside: bool | None = None
    for point in card.curve:
        row = record.evaluations().get(point.update)
        if row is None or "eval/success" not in row:
            continue
        rate = row["eval/success"]
        inside = rate in point.band
        place = "inside" if inside else "OUTSIDE"
        band = f"{point.band.low:.1%} to {point.band.high:.1%}"
        lines.append(f"  after {point.update:>3} updates: {rate:.1%}, {place} the band {band}")
    if inside is None:
        at = ", ".join(str(point.update) for point in card.curve)
        lines.append(f"  not judged: the card has evaluations after {at} updates, {progress_of(record)}")
    return lines + forecast_lines(record), inside


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
        name == "env.era" and not suite.startswith("libero")
    )


def pair_lines(first: RunRecord, second: RunRecord) -> list[str]:
    """What differs between two runs, and their newest evaluations on the same states."""
    changes: Mapping[str, tuple[Any, Any]] = config_changes(first.config, second.config)
    lines = [f"  {name}: {one!r} and {two!r}" for name, (one, two) in changes.items()]
    others = session_changes(first.sessions[-1], second.sessions[-1])
    lines += [f"  {name}: {one} and {two}" for name, (one, two) in others.items()]
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


def session_changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What else differs between two runs: versions, machine, device, weights."""
    names = ("versions", "machine", "device", "weights", "simulator", "renderer", "era")
    return {name: (first.get(name), second.get(name)) for name in names if first.get(name) != second.get(name)}


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

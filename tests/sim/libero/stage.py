"""An installation with a stand-in for the official code: assets without content, and a fake exporter."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from embodied_rl.sim.libero.install.benchmarks import LIBERO
from embodied_rl.sim.libero.install.environment import Environment, packages
from embodied_rl.sim.libero.install.install import install
from embodied_rl.sim.libero.install.official.cuts import cuts
from embodied_rl.sim.libero.install.sources import ASSET_FOLDERS
from embodied_rl.sim.libero.tasks import suites
from tests.sim.libero.exported_tasks import NAME, OTHER, binary, model_task, start_of

# Answers as the real exporter does, from the files in its folder `ready`; what it is to do with a task is in plan.json.
WORKER = """
import json, os, shutil, sys
from pathlib import Path
here, (assets, out, *flags) = Path(__file__).parent, sys.argv[1:]
for line in sys.stdin:
    request = json.loads(line)
    with open(here / "asked", "a") as asked:
        asked.write(request["name"] + "\\n")
    plan = json.loads((here / "plan.json").read_text()).get(request["name"], {})
    if "die" in plan:
        os._exit(9)
    altered = Path(out) / "altered.json"
    if altered.is_file() and "--fill-missing" not in flags:
        print(json.dumps({"missing": json.loads(altered.read_text())}), flush=True)
        continue
    if "answer" in plan and "--fill-missing" not in flags:
        print(json.dumps(plan["answer"]), flush=True)
        continue
    folder = Path(out) / request["suite"] / request["name"]
    shutil.copytree(here / "ready" / request["name"], folder)
    task = json.loads((folder / "task.json").read_text())
    task.update(suite=request["suite"], name=request["name"], index=request["index"])
    task["approximate"] = plan.get("answer", {}).get("missing", [])
    (folder / "task.json").write_text(json.dumps(task))
    print(json.dumps({"ok": True}), flush=True)
"""
SHORT = [NAME.partition("/")[2], OTHER.partition("/")[2]]
BDDL = "(define (problem P) (:language Do it) (:objects a - b) (:goal (And (Open a))))"


class Silent:
    """A reporter that only remembers."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.steps: list[str] = []
        self.seen: list[tuple[int, int]] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def step(self, text: str) -> None:
        self.steps.append(text)

    def progress(self, done: int, total: int) -> None:
        self.seen.append((done, total))


class Stage:
    """A folder for the installation, assets, and the fake exporter."""

    def __init__(self, base: Path) -> None:
        self.fetched: list[tuple[Path, ...]] = []  # what the old library was asked for with
        self.root, self.assets, self.exporter = base / "root", base / "assets", base / "exporter"
        for name in ASSET_FOLDERS:
            (self.assets / name).mkdir(parents=True)
        for short in SHORT:
            _fake_export(self.exporter / "ready" / short, short)
        (self.exporter / "worker.py").write_text(WORKER)
        self.plan({})

    def plan(self, plan: dict[str, Any]) -> None:
        (self.exporter / "plan.json").write_text(json.dumps(plan))

    def asked(self) -> list[str]:
        """The tasks that the exporter was asked for since the last call, sorted."""
        path = self.exporter / "asked"
        names = path.read_text().split() if path.exists() else []
        path.unlink(missing_ok=True)
        return sorted(names)

    def install(self, **options: Any) -> int:
        settings: dict[str, Any] = {"fill_missing": False, "jobs": 1, "wanted": (), "report": Silent(), **options}
        return install(self.root, LIBERO, settings.pop("source", self.assets), **settings)


def _fake_export(folder: Path, short: str) -> None:
    folder.mkdir(parents=True)
    task = model_task(short)
    where = {}
    for kind in ("visual", "physics"):
        data = binary(short, kind == "visual")
        (folder / f"{kind}.mjb").write_bytes(data)
        where[kind] = cuts(mujoco.MjModel.from_binary_path("x.mjb", {"x.mjb": data}), data)
    arrays: dict[str, Any] = {"init_states": task.init_states, **start_of(task)}
    np.savez(folder / "arrays.npz", **arrays)
    fields = {
        "mujoco": packages()["mujoco"],
        "bddl": BDDL,
        "goal": [],
        "indicators": [],
        "fixtures": {},
        "cameras": {},
        "gripper": {},
        "cuts": where,
        "state_size": task.init_states.shape[1],
    }
    (folder / "task.json").write_text(json.dumps(fields))


class FakeEnvironment(Environment):
    """This interpreter, with an empty official package."""

    def build(self) -> None:
        self.python = Path(sys.executable)
        package = self.site_packages() / "libero" / "libero" / "benchmark"
        package.mkdir(parents=True, exist_ok=True)
        table = {suite: SHORT if suite == "libero_goal" else [] for suite in suites()}
        (package / "libero_suite_task_map.py").write_text(f"libero_task_map = {table!r}\n")
        licence = self.site_packages() / "robosuite-1.4.0.dist-info"
        licence.mkdir(exist_ok=True)
        (licence / "LICENSE").write_text("MIT")

    def site_packages(self) -> Path:
        return self.folder / "site-packages"

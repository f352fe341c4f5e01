"""`embodied-rl bench draw`: what it counts, and one quick run."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from embodied_rl.benchmarks.draw import Row, Scenes, measure, ratios_of
from embodied_rl.sim.render.raycast import RaycastRenderer


class Counting(RaycastRenderer):
    """Draws nothing; notes who asked for which scene."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[int, int]] = []

    def render(self, scene, xpos, xmat, cameras, out, site_groups=()) -> None:
        self.asked.append((threading.get_ident(), scene))
        threading.Event().wait(0.002)


def test_every_drawing_of_every_thread_counts() -> None:
    scenes, renderer = Scenes(), Counting()
    row = measure(scenes, renderer, 8, 3, 0.2)
    counted = row.per_s * row.cpu_ms
    assert counted > 0
    assert len({thread for thread, _ in renderer.asked}) == 3
    assert {scene for _, scene in renderer.asked} == set(range(len(scenes.models)))
    measured = len(renderer.asked) - 3 * len(scenes.models)
    assert measured / row.per_s >= 0.2


class Broken(Counting):
    """Fails in drawing number `at`."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def render(self, scene, xpos, xmat, cameras, out, site_groups=()) -> None:
        super().render(scene, xpos, xmat, cameras, out)
        if len(self.asked) >= self.at:  # two threads may count at once
            raise RuntimeError("no picture")


@pytest.mark.parametrize("at", [3, 40])
def test_what_goes_wrong_in_a_thread_ends_the_bench(at: int) -> None:
    """Before or while it measures."""
    with pytest.raises(RuntimeError, match="no picture"):
        measure(Scenes(), Broken(at), 8, 2, 20.0)


def test_ratios() -> None:
    rows = [Row("egl", 64, 1, 5.0, 1.0), Row("egl", 64, 4, 7.0, 1.0)]
    assert ratios_of(rows) == {"egl_64_alone": 5.0, "egl_64": 7.0}


@pytest.mark.process
def test_a_quick_run(tmp_path: Path) -> None:
    """In a process of its own, since it draws with OpenGL."""
    command = [sys.executable, "-m", "embodied_rl", "bench", "draw", "--quick", "--json", str(tmp_path / "draw.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "draw.json").read_text())
    assert found["bench"] == "draw"
    assert all(row["per_s"] > 0 for row in found["rows"])
    assert found["ratios"]["raycast_64"] > 0
    assert "raycast" in done.stdout

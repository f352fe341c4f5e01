"""What `bench view-learning` makes of runs; the trainers themselves run in tests/sim/views."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from embodied_rl.benchmarks import view_learning
from embodied_rl.benchmarks.view_learning import Meter, Point, measure, put_table, read, summary, write
from embodied_rl.errors import UserError
from embodied_rl.sim.views.isaacgym import IsaacGymEnv

RUN = [
    Point("rsl_rl", 0, 3200, 100, 0.05, 6.0, 9.0),
    Point("rsl_rl", 0, 6400, 200, 0.3, 12.0, 18.0),
    Point("rsl_rl", 0, 9600, 300, 0.92, 18.0, 30.0),
]


def test_a_row_says_when_a_third_was_gained() -> None:
    (row,) = summary(RUN)
    assert (row["first 100 episodes"], row["last 100 episodes"]) == ("0.05", "0.92")
    assert (row["+0.3 after"], row["whole run"], row["control steps"]) == ("0.3 CPU min", "0.3 CPU min", "9,600")
    assert summary(RUN[:2])[0]["+0.3 after"] == "not reached"


def test_a_csv_keeps_finished_runs_and_they_are_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    def learn_apart(trainer: str, seed: int, cpu_seconds: float, problem: str) -> list[Point]:
        ran.append((trainer, seed))
        if len(ran) == 2:
            raise KeyboardInterrupt
        return [Point(trainer, seed, 3200, 100, 0.5, 1.0, 1.0)]

    monkeypatch.setattr(view_learning, "learn_apart", learn_apart)
    path = tmp_path / "points.csv"
    write(path, RUN)
    with pytest.raises(KeyboardInterrupt):
        measure(["rl_games", "rsl_rl"], [0, 1], 1.0, path)
    points = measure(["rl_games", "rsl_rl"], [0, 1], 1.0, path)
    assert ran == [("rl_games", 0), ("rl_games", 1), ("rl_games", 1), ("rsl_rl", 1)]
    assert read(path) == points
    assert points[:3] == RUN


def test_the_table_goes_between_the_marks_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- view-learning -->\nold\n<!-- end of view-learning -->\nafter\n", encoding="utf-8")
    put_table(page, RUN)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| rsl_rl | 0 | 0.05 | 0.92 |" in text
    page.write_text("nothing", encoding="utf-8")
    with pytest.raises(UserError, match="to put the table between"):
        put_table(page, RUN)


class Endings:
    """A view whose envs all end in every step; one of them failed."""

    num_envs = 50

    def __init__(self) -> None:
        self.success = 0.0

    def step(self, actions: torch.Tensor) -> tuple[Any, torch.Tensor, torch.Tensor, dict[str, Any]]:
        failed = torch.arange(self.num_envs) == 7
        won = torch.full((self.num_envs,), bool(self.success)) & ~failed
        return None, torch.zeros(self.num_envs), torch.ones(self.num_envs, dtype=torch.long), _extras(won, failed)


def _extras(success: torch.Tensor, failed: torch.Tensor) -> dict[str, Any]:
    return {"success": success, "failed": failed}


def run(meter: Meter, steps: int) -> None:
    for _ in range(steps):
        meter.step(torch.zeros(0))


def test_the_meter_counts_what_ended_and_stops_when_the_task_is_solved() -> None:
    env = Endings()
    meter = Meter(cast(IsaacGymEnv, env), "rsl_rl", 3, cpu_seconds=1e9)
    run(meter, 3)
    assert meter.points[-1].success == 0.0
    assert meter.points[-1].episodes == 147  # 49 a step: the failed one is not counted
    env.success = 1.0
    run(meter, 1)
    assert meter.points[-1].success < 0.9
    with pytest.raises(view_learning._Over):
        run(meter, 5)
    assert meter.points[-1].success >= 0.9
    late = Meter(cast(IsaacGymEnv, SimpleNamespace(step=env.step, num_envs=50)), "rsl_rl", 3, cpu_seconds=-1.0)
    with pytest.raises(view_learning._Over):
        run(late, 1)

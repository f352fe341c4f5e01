"""`bench gpu` and `bench backends`: one quick run each, their arithmetic, and their tables; no test looks at a time."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from embodied_rl.benchmarks import backends, gpu
from embodied_rl.benchmarks.backends_measure import RandomEpisodes, measure
from embodied_rl.benchmarks.gpu_maniskill import steps_per_second
from embodied_rl.benchmarks.gpu_schedule import ratios_of, row_of
from embodied_rl.benchmarks.lab.page import parts_of, section
from embodied_rl.cli import main
from embodied_rl.errors import UserError
from tests.benchmarks.test_page import DOCS
from tests.toy import TASKS, ToyEnv


def test_all_envs_steps_are_counted() -> None:
    """As ManiSkill's are on a GPU, which no test has."""
    env = ToyEnv(3)
    assert steps_per_second(env, next(iter(TASKS)), 4) > 0


@pytest.mark.process
def test_quick_gpu_bench_measures_every_part(tmp_path: Path) -> None:
    file = tmp_path / "gpu.json"
    assert main(["bench", "gpu", "--quick", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["failures"] == {}
    rows = found["rows"]
    assert {row["part"] for row in rows} == {"act", "update", "render", "nano", "loaded"}
    assert [(row["part"], row["network"]) for row in rows if "network" in row] == [
        (part, network) for part in ("act", "update") for network in ("nano", "loaded")
    ]
    schedules = [row for row in rows if row["part"] in ("nano", "loaded")]
    assert [row["scheduler"] for row in schedules] == 2 * ["serial", "stream, 2 groups"]
    assert all(0 < row["low"] <= row["decisions_per_s"] <= row["high"] for row in schedules)
    assert [row["act_busy"] is None for row in schedules] == 2 * [True, False]
    assert all(row["act_rows"] <= 4 for row in schedules), "there are four worlds"
    if not torch.cuda.is_available():
        assert all(row["gpu_busy"] is None for row in rows if "gpu_busy" in row)
    assert found["ratios"]["nano.stream_2_groups.vs_serial"] > 0
    page = section(found)
    assert "not to be quoted" in page
    assert page.count("nano |") == 4, "two schedulers, act and update"


@pytest.mark.process
def test_quick_backends_bench_names_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "missing", lambda part: None if part == "native" else "some_package not installed")
    file = tmp_path / "backends.json"
    assert main(["bench", "backends", "--quick", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert [(row["part"], row["mode"]) for row in found["rows"]] == [
        ("native", mode) for mode in ("physics", "frames", "both")
    ]
    physics, frames, both = found["rows"]
    assert physics["env_steps_per_s"] > 0 == physics["frames_per_s"]
    assert frames["frames_per_s"] > 0 == frames["env_steps_per_s"]
    assert both["frames_per_s"] == pytest.approx(2 * both["env_steps_per_s"]), "two cameras after every step"
    assert set(found["missing"]) == {part.name for part in backends.PARTS} - {"native"}
    assert all(f"- {name}: not measured, some_package" in section(found) for name in found["missing"])
    on_gpu, on_cpu = (
        {**found, "machine": {"cpu": "c", "cores": 2, "load_before": 0, **gpu}} for gpu in ({"gpu": "g"}, {})
    )
    assert [part["bench"] for part in (*parts_of(on_gpu), *parts_of(on_cpu))] == ["backends", "backends cpu"]
    assert all(mark in DOCS.read_text() for mark in ("figures of backends -->", "figures of backends cpu -->"))


def test_a_failed_part_fails_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        return [], {"act": "exit code 1: out of memory"}

    monkeypatch.setattr(gpu, "run_parts", fail)
    assert gpu.run(None, quick=True) == 1
    monkeypatch.setattr(backends, "run_parts", fail)
    assert backends.run(None, quick=True) == 1
    assert main(["bench", "gpu", "--only", "act,updaet"]) == 2


def test_row_of_a_schedule_by_hand() -> None:
    def iteration(seconds: float, learner: float) -> dict[str, Any]:
        times = {"time/act": 0.4, "cpu/act": 0.1, "time/learn": 0.2, "time/update": 0.1, "time/simulate": 0.3}
        times |= {"time/render": 0.05, "busy/act": 0.4, "busy/sim": 0.25, "busy/learner": learner}
        calls = Counter({"act": 10, "simulate": 10})
        return {"decisions": 100, "decisions_per_s": 100 / seconds, "times": times, "calls": calls}

    row = row_of("stream, 1 group", [iteration(1.0, 0.3), iteration(2.0, 0.5)])
    assert (row["low"], row["decisions_per_s"], row["high"]) == (50, 75, 100)
    assert (row["act_rows"], row["act_ms"], row["act_cpu_ms"]) == pytest.approx((10, 40, 10))
    assert (row["act"], row["learn"], row["simulate"], row["render"]) == pytest.approx((4, 3, 3, 0.5))
    assert (row["sim_busy"], row["act_busy"], row["learner_busy"]) == pytest.approx((0.25, 0.4, 0.4))


def test_ratios_of_schedules_by_hand() -> None:
    speeds = {"serial": 100, "lockstep": 50, "stream, 1 group": 120, "async, 2 groups": 80}
    rows = [{"part": "nano", "scheduler": name, "decisions_per_s": speed} for name, speed in speeds.items()]
    assert ratios_of("nano", rows) == pytest.approx(
        {
            "nano.stream_1_group.vs_serial": 1.2,
            "nano.stream_1_group.vs_lockstep": 2.4,
            "nano.async_2_groups.vs_serial": 0.8,
            "nano.async_2_groups.vs_lockstep": 1.6,
        }
    )
    assert ratios_of("nano", rows[:2]) == {} == ratios_of("loaded", rows)


def test_a_driver_counts_steps_pictures_and_begins_ended_episodes_anew() -> None:
    env = ToyEnv(3)
    episodes = RandomEpisodes(env, list(TASKS))
    for _ in range(40):
        steps, frames = episodes.turn("physics")
        assert 3 <= steps <= 24
        assert frames == 0
    assert len(env.started) > 3, "episodes ended"
    assert len({spec.seed for spec in env.started}) == len(env.started)
    assert episodes.turn("frames") == (0, 3 * len(env.info.cameras))
    speed = measure(episodes, "frames", 0.0)
    assert speed.frames_per_s > 0 == speed.env_steps_per_s


def test_a_file_has_a_section_for_policies_and_one_for_the_loop() -> None:
    rows = [{"part": name} for name in ("act", "render", "nano")]
    figures = {"bench": "gpu", "rows": rows, "failures": {"loaded": "exit code 1"}}
    policies, loop = parts_of(figures)
    assert (policies["bench"], policies["rows"]) == ("gpu policies", rows[:1])
    assert (loop["bench"], loop["rows"]) == ("gpu loop", rows[1:])
    assert (policies["failures"], loop["failures"]) == ({}, {"loaded": "exit code 1"})
    only = figures | {"rows": rows[1:]}
    assert [part["bench"] for part in parts_of(only)] == ["gpu loop"]


def test_parts_are_added_to_a_file_of_the_same_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "gpu.json"

    def one(*args: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        _, parts, _, _, save = args
        rows = [{"part": part.name, "renderer": "egl", "size": 64, "at_once": 1, "per_s": 5.0} for part in parts]
        failures = {"act": "exit code 1"} if "act" in {part.name for part in parts} else {}
        save([] if failures else rows, failures)
        return ([] if failures else rows), failures

    monkeypatch.setattr(gpu, "run_parts", one)
    monkeypatch.setattr(gpu, "compile_simulator", lambda: None)
    assert gpu.run(file, only="act") == 1
    assert gpu.run(file, only="render") == 0
    found = json.loads(file.read_text())
    assert found["failures"] == {"act": "exit code 1"}, "kept, for it was not measured again"
    assert [row["part"] for row in found["rows"]] == ["render"]
    assert gpu.run(file, only="render") == 0
    assert len(json.loads(file.read_text())["rows"]) == 1, "measured again, not added twice"
    with pytest.raises(UserError, match="another file"):
        gpu.run(file, quick=True, only="act")

"""Bench figures on a page."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.benchmarks.lab.page import fill, main
from embodied_rl.benchmarks.report import describe_machine, write_json

DOCS = Path(__file__).parents[2] / "docs" / "benchmarks.md"
LIBERO_ROWS = [
    {
        "task": "libero_goal/open",
        "of": of,
        "contender": "ours",
        "repeats": 5,
        "cpu_ms": 2.5,
        "cpu_low": 2.25,
        "cpu_high": 3.125,
        "wall_ms": 1.25,
        "wall_low": 1.0,
        "wall_high": 1.5,
    }
    for of in ("physics", "reset")
]
LIBERO_MORE = {
    "memory": [{"task": "libero_goal/open", "ours": 0.5, "official": 600.25}],
    "parts": [{"25 mj_step": 2.0, "all": 2.5}],
}
POLICY_ROWS = [
    {"network": "nano", "tokens": 7, "contender": "batch", "cpu_ms": 2.54, "low": 2.5, "high": 3.0},
    {"task": "flow update", "contender": "one prefix", "cpu_ms": 258.4, "low": 250.9, "high": 308.6},
]
LOOP_ROWS = [{"stage": "act", "wall_ms": 2.5, "cpu_ms": 4.25, "share": 0.5}]
SIM_ROWS = [
    {
        "contender": "ours",
        "mode": mode,
        "num_envs": count,
        "steps_per_s": 1000.4,
        "low": 900,
        "high": 1100,
        "cpu_ms": 1.125,
        "repeats": 5,
    }
    for mode in ("physics", "cameras")
    for count in (1, 8)
]

VLA_ROWS = [
    {
        "part": part,
        "rows": 32,
        "ms": 40.25,
        "low": 39.5,
        "high": 41.75,
        "planned_gib": planned,
        "allocated_gib": held,
        "reserved_gib": held,
    }
    for part, planned, held in (("act", 20.5, 20.125), ("forward", None, None))
]
PIPELINE_ROWS = [
    {
        "profile": "p",
        "mode": "async",
        "stages": 4,
        "ahead": 3,
        "microbatch": 16,
        "ms_per_decision": 52.354,
        "of_bound": 0.9804,
        "of_own_bound": 0.9911,
    }
]
PIPELINE_REAL = [
    {"turn": turn, "scheduler": name, "decisions_per_s": speed}
    for turn, *pairs in ((0, ("serial", 100.0), ("stream", 110.0)), (1, ("stream", 120.0), ("serial", 90.0)))
    for name, speed in pairs
]


def figures(path: Path, bench: str, rows: list[dict[str, Any]], *, quick: bool = False, **more: Any) -> dict[str, Any]:
    machine = describe_machine(("torch",))
    write_json(path, bench, quick, machine, rows, {"speed": 123.456}, setup={"renderer": "egl"}, **more)
    return json.loads(path.read_text())


@pytest.mark.process
@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have other kernels")
def test_a_bench_says_which_kernels_its_products_went_through() -> None:
    code = "from embodied_rl.benchmarks.report import describe_machine; print(describe_machine(())['blas_kernels'])"
    ran = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"OPENBLAS_CORETYPE": "Nehalem"},
        capture_output=True,
        text=True,
        check=True,
        timeout=900,
    )
    assert ran.stdout.split() == ["Nehalem"]


def test_the_projects_page_has_a_place_for_each_bench(tmp_path: Path) -> None:
    names = ("sim", "loop", "libero", "policy", "pipeline", "vla")
    page, files = tmp_path / "page.md", [tmp_path / f"{name}.json" for name in names]
    sim, loop, libero, policy, pipeline, vla = files
    words = [str(path) for path in (page, *files)]
    page.write_text(DOCS.read_text())
    figures(sim, "sim", SIM_ROWS)
    figures(loop, "loop", LOOP_ROWS)
    figures(libero, "libero", LIBERO_ROWS, **LIBERO_MORE)
    figures(policy, "policy", POLICY_ROWS)
    figures(pipeline, "pipeline", PIPELINE_ROWS, real=PIPELINE_REAL)
    figures(vla, "vla", VLA_ROWS)
    assert main(words) == 0
    text = page.read_text()
    assert "| act | 2.50 | 50 % | 4.25 |" in text
    assert text.index("| ours | cameras | 8 | 1000 | 900 to 1100 | 1.12 |") < text.index("| ours | physics | 1 |")
    assert text.count("| `speed` | 123.5 |") == 6, "of real.* bench pipeline's real part, else its timed one"
    assert "| libero_goal: control step, physics | ours | 2.5 | 2.25 to 3.12 | 1.25 | 1 to 1.5 |" in text
    assert "| libero_goal: reset | ours |" in text
    assert "| nano, 7 tokens | batch | 2.5 | 2.5 to 3.0 |" in text
    assert "| flow update | one prefix | 258.4 | 250.9 to 308.6 |" in text
    assert "| libero_goal | 600 | 0.50 |" in text
    assert "| libero_goal | 2.000 | 2.500 |" in text
    assert "| act | 32 | 40.2 | 39.5 to 41.8 | 20.50 | 20.12 | 20.12 |" in text
    assert "| forward | 32 | 40.2 | 39.5 to 41.8 |  |  |  |" in text
    assert "--quick`: not to be quoted" not in text
    assert "Not measured yet" not in text
    assert main(words) == 0
    assert page.read_text() == text  # filling again changes nothing


def test_turns_have_their_columns_in_one_order(tmp_path: Path) -> None:
    """Also where the second turn went the other way round; without a real part there are none."""
    both = fill(DOCS.read_text(), figures(tmp_path / "a.json", "pipeline", PIPELINE_ROWS, real=PIPELINE_REAL))
    assert "| p | async | 4 | 3 | 16 | 52.35 | 98.0% | 99.1% |" in both
    assert "| really: turn, decisions/s | serial | stream |" in both
    assert "| 1 | 100.0 | 110.0 |" in both
    assert "| 2 | 90.0 | 120.0 |" in both
    apart = {"real.speed": 7.5, "p.vs_serial": 2.5}
    whole = figures(tmp_path / "b.json", "pipeline", PIPELINE_ROWS, real=PIPELINE_REAL) | {"ratios": apart}
    one = figures(tmp_path / "c.json", "pipeline timed", PIPELINE_ROWS, real=[]) | {"ratios": {"p.vs_serial": 2.5}}
    two = figures(tmp_path / "d.json", "pipeline real", [], real=PIPELINE_REAL) | {"ratios": {"real.speed": 7.5}}
    assert fill(DOCS.read_text(), whole) == fill(fill(DOCS.read_text(), one), two), "the parts alone say the same"
    timed = fill(DOCS.read_text(), figures(tmp_path / "e.json", "pipeline", PIPELINE_ROWS, real=[]))
    assert timed.partition("pipeline real -->")[2] == DOCS.read_text().partition("pipeline real -->")[2]


def test_quick_figures_say_so(tmp_path: Path) -> None:
    quick = figures(tmp_path / "loop.json", "loop", LOOP_ROWS, quick=True)
    assert "not to be quoted" in fill(DOCS.read_text(), quick)


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="figures of loop"):
        fill("# Benchmarks", figures(tmp_path / "loop.json", "loop", LOOP_ROWS))

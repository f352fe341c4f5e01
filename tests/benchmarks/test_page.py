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
FEW = DOCS.parent / "results" / "few_episodes"
FIGURES = sorted((DOCS.parent / "results" / "bench").glob("*.json"))
LOOP_ROWS = [{"stage": "act", "wall_ms": 2.5, "cpu_ms": 4.25, "share": 0.5}]
LOOP_RATIOS = {"decisions_per_s": 123.4, "decisions_per_s_low": 100.0, "decisions_per_s_high": 150.0}
PIPELINE_ROWS = [
    {"profile": "p", "mode": mode, "ms_per_decision": ms, "of_bound": bound}
    for mode, ms, bound in (("serial", 100.0, 0.49), ("async", 50.0, 0.98))
]
PIPELINE_REAL = [
    {"turn": turn, "scheduler": name, "decisions_per_s": speed}
    for turn, *pairs in ((0, ("serial", 100.0), ("stream", 110.0)), (1, ("stream", 120.0), ("serial", 80.0)))
    for name, speed in pairs
]


def figures(path: Path, bench: str, rows: list[dict[str, Any]], *, quick: bool = False, **more: Any) -> dict[str, Any]:
    machine = describe_machine(("torch",))
    write_json(path, bench, quick, machine, rows, LOOP_RATIOS, **more)
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


@pytest.mark.parametrize(
    ("committed", "files"), [(DOCS, FIGURES), (FEW.with_suffix(".md"), [FEW.with_suffix(".json")])], ids=["all", "few"]
)
def test_a_page_has_the_tables_of_the_committed_figures(committed: Path, files: list[Path], tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(committed.read_text())
    assert main([str(page), *map(str, files)]) == 0
    assert page.read_text() == committed.read_text(), "run the command that the page names"
    assert "--quick`: not to be quoted" not in page.read_text()


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_another_figure_is_another_table(path: Path) -> None:
    """Twice of every number."""
    page = fill(DOCS.read_text(), doubled(json.loads(path.read_text())))
    assert page != DOCS.read_text()


def doubled(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: each if name in ("num_envs", "size") else doubled(each) for name, each in value.items()}
    if isinstance(value, list):
        return [doubled(each) for each in value]
    return 2 * value if isinstance(value, float | int) and not isinstance(value, bool) else value


def test_a_stage_has_its_share_and_all_their_speed(tmp_path: Path) -> None:
    text = fill(DOCS.read_text(), figures(tmp_path / "loop.json", "loop", LOOP_ROWS))
    assert "| act | 2.50 | 50 % | 4.25 |" in text
    assert "123 decisions a second (100 to 150)." in text


def test_schedulers_are_compared_turn_by_turn(tmp_path: Path) -> None:
    """Also where the second turn went the other way round; without a real part its table stays."""
    both = fill(DOCS.read_text(), figures(tmp_path / "a.json", "pipeline", PIPELINE_ROWS, real=PIPELINE_REAL))
    assert "| p | async | 50.0 | 2.00 | 98% |" in both
    assert "| serial | 90 (80 to 100) | 1.00 (1.00 to 1.00) |" in both
    assert "| stream | 115 (110 to 120) | 1.30 (1.10 to 1.50) |" in both
    timed = fill(DOCS.read_text(), figures(tmp_path / "b.json", "pipeline", PIPELINE_ROWS, real=[]))
    assert timed.partition("pipeline real -->")[2] == DOCS.read_text().partition("pipeline real -->")[2]


def test_quick_figures_say_so(tmp_path: Path) -> None:
    quick = figures(tmp_path / "loop.json", "loop", LOOP_ROWS, quick=True)
    assert "not to be quoted" in fill(DOCS.read_text(), quick)


def test_a_page_without_marks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="figures of loop"):
        fill("# Benchmarks", figures(tmp_path / "loop.json", "loop", LOOP_ROWS))

"""The act bench compares two ways to the same tokens; `bench policy` writes the figures of both policy benches."""

from __future__ import annotations

import json
from pathlib import Path

from embodied_rl.benchmarks.policy_act import BATCHED, GENERATE, act_figures
from embodied_rl.cli import main


def test_batch_and_generate_choose_the_same_tokens() -> None:
    figures = act_figures(quick=True)
    assert figures.setup["equal_tokens"] == 1.0
    assert {(row.network, row.tokens, row.contender) for row in figures.rows} == {
        ("nano", 7, BATCHED),
        ("nano", 7, GENERATE),
    }
    batched, generated = (row.cpu_ms for row in figures.rows)
    assert figures.ratios["act_vs_generate"] == generated / batched


def test_one_file_has_every_ratio(tmp_path: Path) -> None:
    assert main(["bench", "policy", "--quick", "--json", str(tmp_path / "f.json")]) == 0
    written = json.loads((tmp_path / "f.json").read_text())
    assert {
        "act_vs_generate",
        "prefix_reuse",
        "shared_prefix_update",
        "drop_layers",
        "visual_tokens",
        "denoise_reuse",
        "all_three",
        "drop_layers_oft",
        "visual_tokens_oft",
    } <= written["ratios"].keys()
    assert {row["contender"] for row in written["rows"]} >= {BATCHED, GENERATE}
    assert written["quick"] is True

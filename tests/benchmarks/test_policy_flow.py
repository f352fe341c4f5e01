"""The flow bench compares two ways to the same result."""

from __future__ import annotations

from embodied_rl.benchmarks.policy_flow import AGAIN, KEPT, SEPARATE, SHARED, flow_figures


def test_both_ways_give_the_same_actions_and_gradients() -> None:
    figures = flow_figures(quick=True)
    assert {(row.task, row.contender) for row in figures.rows} == {
        *((task, contender) for task in ("flow act", "flow update") for contender in (SHARED, SEPARATE)),
        ("flow frozen update", KEPT),
        ("flow frozen update", AGAIN),
    }
    assert figures.ratios["kept_gradient_difference"] <= 1e-6
    assert figures.ratios["action_difference"] <= 1e-5
    assert figures.ratios["gradient_difference"] <= 1e-5
    assert figures.ratios["prefix_reuse"] > 0
    assert figures.setup["horizon"] == 50

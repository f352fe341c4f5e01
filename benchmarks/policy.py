"""Policies: what batching, sharing the prefix, and leaving parts out save.

The figures of `policy_act`, `policy_flow` and `policy_speed` in one file.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from embodied_rl.benchmarks import policy_act, policy_flow, policy_speed
from embodied_rl.benchmarks.report import describe_machine, machine_line, write_json


def run(json_path: Path | None, quick: bool = False) -> None:
    """Print the tables; write `rows`, flat `ratios` and the machine to `json_path`."""
    console = Console()
    machine = describe_machine(("torch", "transformers", "numpy"))
    act, flow = policy_act.act_figures(quick), policy_flow.flow_figures(quick)
    speed = policy_speed.speed_figures(quick)
    console.print(policy_act.table(act))
    console.print(policy_flow.table(flow, "flow policy: the prefix, once or again and again"))
    console.print(policy_flow.table(speed, "evaluation only: parts left out"))
    parts = {"act": act.setup, "flow": flow.setup, "speed": speed.setup}
    ratios = act.ratios | flow.ratios | speed.ratios
    setup: dict[str, Any] = {f"{part}_{name}": value for part in parts for name, value in parts[part].items()}
    for name, value in (setup | ratios).items():
        console.print(f"  {name:<27}{f'{value:.3g}' if isinstance(value, float) else value}")
    console.print(machine_line(machine))
    if json_path is not None:
        rows = [asdict(row) for row in (*act.rows, *flow.rows, *speed.rows)]
        write_json(json_path, "policy", quick, machine, rows, ratios, setup=setup)

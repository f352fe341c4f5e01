"""Policies: what batching, and sharing the prefix, save. The figures of `policy_act` and `policy_flow` in one file."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from embodied_rl.benchmarks import policy_act, policy_flow
from embodied_rl.benchmarks.report import describe_machine, machine_line, write_json


def run(json_path: Path | None, quick: bool = False) -> None:
    """Print the tables; write `rows`, flat `ratios` and the machine to `json_path`."""
    console = Console()
    machine = describe_machine(("torch", "transformers", "numpy"))
    act, flow = policy_act.act_figures(quick), policy_flow.flow_figures(quick)
    console.print(policy_act.table(act))
    console.print(policy_flow.table(flow))
    parts = {"act": act.setup, "flow": flow.setup}
    setup: dict[str, Any] = {f"{part}_{name}": value for part in parts for name, value in parts[part].items()}
    for name, value in (setup | act.ratios | flow.ratios).items():
        console.print(f"  {name:<27}{f'{value:.3g}' if isinstance(value, float) else value}")
    console.print(machine_line(machine))
    if json_path is not None:
        rows = [asdict(row) for row in (*act.rows, *flow.rows)]
        write_json(json_path, "policy", quick, machine, rows, act.ratios | flow.ratios, setup=setup)

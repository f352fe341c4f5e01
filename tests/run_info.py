"""A `RunInfo` and an `EvalInfo` for tests that write the folder of a run or an evaluation by hand."""

from __future__ import annotations

from typing import Any

from embodied_rl.evaluation.overlap import Overlap
from embodied_rl.telemetry.info import EvalInfo, MachineInfo, PolicyInfo, RunInfo, SessionEnd, SimulatorInfo, Versions


def run_info(**changes: Any) -> RunInfo:
    """Of a small OpenVLA on the tabletop; changes: to its fields."""
    values: dict[str, Any] = {
        "command": "embodied-rl train tabletop",
        "started": "2026-11-29 20:14:38 +0000",
        "output": "runs/a",
        "suite": "tabletop_spatial",
        "task_names": ("tabletop_spatial/pick_up_the_bowl",),
        "protocol": "native",
        "algorithm": "ppo",
        "scheduler": "serial",
        "seed": 0,
        "num_processes": 1,
        "policy": PolicyInfo(
            family="openvla",
            parameters=990_000,
            trained_parameters=990_000,
            chunk_len=4,
            unnorm_key="tabletop_spatial",
            checkpoint="start",
            digest="0123456789abcdef",
        ),
        "simulator": simulator_info(),
        "overlap": Overlap({}, 0, 50),
        "machine": MachineInfo(cpu="a CPU", cores=2, device="cpu", gpu=None, threads=2),
        "versions": Versions(embodied_rl="0.1.0", mujoco="4.0.0", torch="2.13.0", python="3.11.7"),
    }
    return RunInfo(**(values | changes))


def eval_info(**changes: Any) -> EvalInfo:
    """An evaluation of the policy of `run_info`; changes: to its fields."""
    info = run_info()
    values: dict[str, Any] = {
        "command": "embodied-rl eval tabletop",
        "output": "runs/e",
        "suite": info.suite,
        "task_names": info.task_names,
        "states": "heldout",
        "num_states": 4,
        "protocol": {"name": "native"},
        "deviations": (),
        "perturb": (),
        "perturb_level": 1.0,
        "overlap": info.overlap,
        "failing_states": None,
        "failing_tasks": None,
        "at_end": True,
        "mode": "greedy",
        "seed": 0,
        "policy": info.policy,
        "efficient": None,
        "trained_suite": info.suite,
        "trained_physics_version": "current",
        "simulator": info.simulator,
        "machine": info.machine,
        "versions": info.versions,
    }
    return EvalInfo(**(values | changes))


def simulator_info(**changes: Any) -> SimulatorInfo:
    """Of the tabletop; changes: to its fields."""
    values: dict[str, Any] = {
        "name": "native-mujoco 4.0.0",
        "num_envs": 32,
        "processes": None,
        "threads": 2,
        "batched": False,
        "renderer": "raycast",
        "renderer_reason": "the scenes are primitives",
        "render_quality": "fast",
        "cameras": 2,
        "image_height": 64,
        "image_width": 64,
        "state_dim": 9,
        "max_episode_steps": 150,
        "control_hz": 20.0,
        "has_success": True,
        "repeatable": True,
        "physics_version": "current",
    }
    return SimulatorInfo(**(values | changes))


def ended(*, finished: bool = True, **changes: Any) -> SessionEnd:
    """After 100 seconds, 90 of CPU time; changes: to its fields."""
    values: dict[str, Any] = {
        "score_before": 0.6,
        "score_after": 0.9,
        "seconds": 100.0,
        "cpu_seconds": 90.0,
        "peak_memory_bytes": 2_640_000_000,
    }
    return SessionEnd(finished=finished, **(values | changes))

"""`embodied-rl eval`: success of a policy on held-out initial states, by task, with Wilson intervals.

With a benchmark's name, or --resume, it is a whole evaluation (see eval_benchmark.py); without, a quick look.
"""

from __future__ import annotations

import dataclasses
import json
import shlex
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied_rl.cli import eval_benchmark
from embodied_rl.cli.eval_benchmark import USAGE
from embodied_rl.cli.parse import parse
from embodied_rl.config.train import SUITE, EnvConfig
from embodied_rl.errors import UserError
from embodied_rl.factory.policies import CheckpointOptions
from embodied_rl.jobs.efficient_inference import EfficientConfig, make_efficient
from embodied_rl.jobs.eval_request import BenchmarkCommand
from embodied_rl.policy import ActMode

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from embodied_rl.evaluation.evaluate import EvalReport
    from embodied_rl.sim.mujoco.task import MujocoTask


@dataclass(frozen=True, kw_only=True)
class EvalCommand(CheckpointOptions):
    """Measure a policy's success on held-out initial states."""

    suite: str = SUITE
    """Suite of tasks."""
    tasks: tuple[str, ...] = ()
    """Short names of the tasks (none given: all of the suite)."""
    states_per_task: int = 50
    """Held-out initial states of each task, one episode each."""
    mode: ActMode = "greedy"
    """Take the most likely action (greedy; a flow policy follows its ODE), or sample as the checkpoint explores."""
    seed: int = 0
    """Seed of the episodes; matters where actions are sampled."""
    device: str = "auto"
    """auto, cpu or cuda."""
    efficient: EfficientConfig = field(default_factory=EfficientConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    json: Path | None = None
    """Write the result here, episode by episode, stamped with what ran."""


def main(argv: list[str]) -> int:
    """Run the command."""
    if "-h" in argv or "--help" in argv:
        print(USAGE)
        parse(BenchmarkCommand, ["--help"], "eval")
    if (argv and not argv[0].startswith("-")) or any(word.partition("=")[0] == "--resume" for word in argv):
        return eval_benchmark.main(argv)
    command = parse(EvalCommand, argv, "eval")
    if command.json and not command.json.absolute().parent.is_dir():
        raise UserError(f"--json {command.json}: its folder does not exist.")
    if command.states_per_task < 1:
        raise UserError(f"--states-per-task must be at least 1, got {command.states_per_task}.")
    from rich.console import Console  # after the checks: a typing error should not wait for torch

    from embodied_rl.factory.tasks import load_tasks

    console = Console()
    tasks = load_tasks(command.suite, command.tasks)
    stamp, result = _evaluate(command, tasks, _states(command, tasks), console)
    console.print(result_table(result))
    if command.json:
        words = shlex.join(["embodied-rl", "eval", *argv])
        command.json.write_text(json.dumps({"command": words, **stamp, **result.to_json()}, indent=1))
    return 0


def result_table(result: EvalReport) -> Table:
    """One row a task, and all together."""
    from rich.table import Table

    table = Table("task", "success", "rate", "95 % interval", "steps")
    for name, score in {**result.tasks, "all tasks": result.overall}.items():
        table.add_row(
            name,
            f"{score.successes}/{score.episodes}",
            f"{score.rate:.1%}",
            f"{score.low:.1%} to {score.high:.1%}",
            f"{score.mean_steps:.0f}",
        )
    return table


def _evaluate(
    command: EvalCommand, tasks: list[MujocoTask], states: dict[str, list[int]], console: Console
) -> tuple[dict[str, Any], EvalReport]:
    from embodied_rl.evaluation.evaluate import evaluate
    from embodied_rl.factory.envs import (
        cpu_count,
        describe_env_processes,
        describe_policy,
        open_env,
        open_policy,
        pick_device,
        pick_render_quality,
        pick_renderer,
        policy_folder,
        statistics_line,
    )
    from embodied_rl.rollout.sampler import evaluation_specs
    from embodied_rl.telemetry.progress import RunProgress

    device = pick_device(command.device)
    options = command.load_options(policy_folder(command.checkpoint))
    policy = open_policy(command.checkpoint, device, options)
    renderer = pick_renderer(command.env.renderer, tasks)
    env_config = dataclasses.replace(
        command.env, renderer=renderer.name, num_threads=command.env.num_threads or cpu_count()
    )
    specs = evaluation_specs(states, command.seed)
    worlds = partial(open_env, tasks, env_config, policy.config.image_size, cameras=policy.config.num_cameras)
    efficient = make_efficient(policy, command.efficient, worlds, specs)
    with worlds() as env, RunProgress(0, console=console) as progress:
        stamp = {
            "suite": command.suite,
            "simulator": f"{env.info.simulator}, {describe_env_processes(env_config)}",
            "renderer": f"{env.info.renderer} ({renderer.reason}), "
            f"{pick_render_quality(command.env.render_quality, tasks)} frames",
            "device": device,
            **describe_policy(policy, command.checkpoint),
            "unnorm key": statistics_line(policy, command.suite),
            "efficient": efficient.describe,
            "mode": command.mode,
            "seed": command.seed,
        }
        for name, value in stamp.items():
            progress.message(f"  {name:<14}{value}")
        progress.stage("evaluate", len(specs))
        report = evaluate(env, policy, specs, command.mode, on_episode=lambda result: progress.episode(result.success))
    return stamp, report


def _states(command: EvalCommand, tasks: list[MujocoTask]) -> dict[str, list[int]]:
    for task in tasks:
        if len(task.heldout_states) < command.states_per_task:
            raise UserError(f"--states-per-task {command.states_per_task}: {task.name} has {len(task.heldout_states)}.")
    return {task.name: list(task.heldout_states)[: command.states_per_task] for task in tasks}

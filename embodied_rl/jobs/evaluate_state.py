"""One evaluation of a state policy, from a checked command to its table. Imports torch and the simulator."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from rich.console import Console
from rich.table import Table

from embodied_rl.config.train import AUTO, EnvConfig
from embodied_rl.errors import UserError
from embodied_rl.evaluation.benchmark import interleaved
from embodied_rl.evaluation.evaluate import EvalReport, evaluate
from embodied_rl.evaluation.overlap import overlap, trained_states
from embodied_rl.factory.backends import (
    POTENTIALS,
    check_fits,
    describe_state_env,
    describe_state_policy,
    need_state,
    open_suite,
    repeats,
)
from embodied_rl.factory.policies import load_policy, policy_folder
from embodied_rl.factory.suite_env import SuiteEnv
from embodied_rl.jobs.eval_request import StateCommand
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.rollout.sampler import TaskStates, evaluation_specs
from embodied_rl.telemetry.progress import RunProgress
from embodied_rl.telemetry.tables import NOT_REPEATABLE, cells, short_labels, success_table
from embodied_rl.utils.console import LastingConsole
from embodied_rl.utils.machine import cpu_count, cpu_name, pick_device
from embodied_rl.utils.words import counted


def run(suite: str, command: StateCommand, words: str) -> None:
    """Evaluate as `command` says, print the result, and write it where `--json` says.

    Raises:
        UserError: The checkpoint or a task is not there, they do not fit, or there are fewer such states.
    """
    console = LastingConsole()
    folder = policy_folder(command.checkpoint)
    provenance = read_provenance(folder)
    policy: Any = load_policy(folder)
    policy.to(pick_device(command.device))
    tasks = command.tasks or _trained_tasks(suite, provenance)
    command = dataclasses.replace(command, env=_as_trained(command.env, suite, provenance))
    with closing(open_suite(suite, tasks, command.env)) as env:
        need_state(env.info)
        check_fits(policy, env.info, command.checkpoint)
        specs = interleaved(evaluation_specs(_states(env, command), command.seed))
        stamp = {
            "command": words,
            "suite": f"{suite}, {', '.join(tasks)}, {command.states} initial states",
            **repeats(env.info, overlap(trained_states(provenance), specs).describe()),
            **describe_state_env(env.info, command.env),
            **describe_state_policy(policy, command.checkpoint, 0),
            "mode": command.mode,
            "seed": command.seed,
            "machine": f"{cpu_name()}, {counted(cpu_count(), 'core')}",
        }
        named = ("policy", "weights", "simulator", "horizon", "overlap")
        lines = [f"  {name:<10}{stamp[name]}" for name in named]
        console.facts(lines if env.info.repeatable else [*lines, f"  {'repeats':<10}{NOT_REPEATABLE}"])
        report = _evaluate(env, policy, specs, command, console)
    console.print(_table(report))
    if command.json:
        command.json.write_text(json.dumps(stamp | report.to_json(), indent=1), encoding="utf-8")


def _trained_tasks(suite: str, provenance: Mapping[str, Any]) -> tuple[str, ...]:
    """The tasks that the checkpoint was trained on, where it says so and they are of this suite."""
    config = provenance.get("config", {})
    return tuple(config.get("tasks", ())) if provenance.get("suite") == suite else ()


def _as_trained(env: EnvConfig, suite: str, provenance: Mapping[str, Any]) -> EnvConfig:
    """`env` with the controller and the step reward of the checkpoint's training, where it asks for none.

    The discount is the training's where the reward is.
    """
    if provenance.get("suite") != suite:
        return env
    trained = provenance.get("config", {}).get("env", {})
    kept = {name: trained[name] for name in ("control", "step_reward") if name in trained}
    if env.step_reward in POTENTIALS:
        kept["reward_gamma"] = trained.get("reward_gamma")
    missing = {name: value for name, value in kept.items() if getattr(env, name) in (AUTO, None)}
    return dataclasses.replace(env, **missing)


def _states(env: SuiteEnv, command: StateCommand) -> TaskStates:
    all_states = env.heldout_states if command.states == "heldout" else env.train_states
    fewest = min(map(len, all_states.values()))
    if command.states_per_task > fewest:
        raise UserError(f"--states-per-task {command.states_per_task}: there are {fewest} {command.states} states.")
    return {task: list(rows)[: command.states_per_task] for task, rows in all_states.items()}


def _evaluate(env: SuiteEnv, policy: Any, specs: list[Any], command: StateCommand, console: Console) -> EvalReport:
    with RunProgress(0, console=console) as progress:
        progress.stage("evaluate", len(specs))
        return evaluate(
            env,
            policy,
            specs,
            command.mode,
            on_episode=lambda result: progress.episode(result.success if env.info.has_success else None, result.reward),
        )


def _table(report: EvalReport) -> Table:
    tasks = list(report.tasks)
    rows = [("all tasks", report.overall)] if len(tasks) > 1 else []
    rows += list(zip(short_labels(tasks), report.tasks.values(), strict=True))
    what = "success" if report.overall.has_success else "mean return"
    lines = [(label, (cells(score), (f"{score.mean_steps:.0f}", ""))) for label, score in rows]
    return success_table(("task", what, "steps"), lines)

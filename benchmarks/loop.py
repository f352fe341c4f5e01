"""`embodied-rl bench loop`: decisions a second of the whole training loop, and where the time goes.

The preset, the policy, the envs and the classes are those of `embodied-rl train tabletop --policy openvla`: envs
render, the policy acts, physics runs a chunk, rows are gathered, the learner takes its optimiser steps. An iteration's
decisions are all that were simulated; its time is all that passed until its update was done. Evaluation, checkpoints
and videos are not part of it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.console import Console
from rich.table import Table

from embodied_rl import configs as recipes
from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.algorithms.make import make_algorithm
from embodied_rl.benchmarks.report import describe_machine, machine_line, write_json
from embodied_rl.config.env import MujocoConfig
from embodied_rl.config.policies import SHIPPED
from embodied_rl.config.train import TrainConfig, kind_of
from embodied_rl.factory.policies import open_policy, policy_folder, policy_info, prepare_policy
from embodied_rl.factory.scenes import pick_renderer
from embodied_rl.factory.suite_env import SuiteEnv
from embodied_rl.factory.suites import load, open_tasks
from embodied_rl.factory.tasks import load_tasks
from embodied_rl.factory.view import view_of
from embodied_rl.jobs.describe import weights_words
from embodied_rl.learner.learner import Learner
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.rollout.group_queue import GroupQueue
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.exchange import GroupExchange
from embodied_rl.scheduler.serial import Collector, SerialScheduler
from embodied_rl.telemetry.progress import RunProgress
from embodied_rl.utils.machine import cpu_count, pick_device
from embodied_rl.utils.profiler import Profiler
from embodied_rl.utils.threads import set_torch_threads

if TYPE_CHECKING:
    from embodied_rl.factory.policies import AnyPolicy

RECIPE = "tabletop_openvla_ppo"
WARM_UP, MEASURED = 1, 5
OTHER = "other"
"""Time outside every stage: the sampler, refilling envs, accounting."""
ORDER = ("reset", "render", "act", "simulate", "gather", "update", OTHER)


@dataclass(frozen=True, slots=True)
class Iteration:
    """One measured iteration.

    decisions: simulated; rows: of these, trained on. seconds: from the first reset to the end of the update.
    wall, cpu: seconds by stage; cpu counts all threads of the process.
    """

    decisions: int
    rows: int
    env_steps: int
    episodes: int
    seconds: float
    wall: dict[str, float]
    cpu: dict[str, float]

    @property
    def speed(self) -> float:
        """Decisions a second."""
        return self.decisions / self.seconds


def measure(
    config: TrainConfig, env: SuiteEnv, policy: AnyPolicy, measured: int, progress: RunProgress
) -> list[Iteration]:
    """Train WARM_UP iterations, then `measured` ones that count."""
    algorithm = make_algorithm(config.algorithm)
    clock = Profiler()
    sampler = EpisodeSampler(config.seed, env.train_states, algorithm.group_size)
    episodes = config.rollout.episodes_per_iteration
    collector = Collector(
        env,
        policy,
        GroupExchange(
            GroupQueue(
                sampler,
                groups=config.rollout.groups(algorithm.group_size),
                success_rate_range=algorithm.success_rate_range,
                max_oversampling=algorithm.max_oversampling,
            ),
            on_episode=lambda result: progress.episode(result.success),
        ),
        clock,
        final_value=algorithm.needs_final_value,
    )
    scheduler = SerialScheduler(collector)
    found: list[Iteration] = []
    with tempfile.TemporaryDirectory() as dumps:
        threads = torch.get_num_threads() if policy.device.type == "cpu" else 1
        learner = Learner(policy, algorithm, config.learner, seed=config.seed, dump_dir=Path(dumps), threads=threads)
        progress.stage("rollout", episodes)
        began, cpu_began = time.perf_counter(), time.process_time()
        for batch in scheduler.batches(0, WARM_UP + measured):
            with clock.span("update"):
                learner.update(batch)
            scheduler.publish(learner.version)
            seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
            iteration = _iteration(batch.info, len(batch), seconds, cpu, clock.drain())
            if batch.version >= WARM_UP:
                found.append(iteration)
            progress.iteration(learner.version, batch.info | {"speed/decisions_per_s": iteration.speed})
            progress.stage("rollout", episodes)
            began, cpu_began = time.perf_counter(), time.process_time()
    return found


def _iteration(info: dict[str, float], rows: int, seconds: float, cpu: float, times: dict[str, float]) -> Iteration:
    walls, cpus = (
        {name.partition("/")[2]: value for name, value in times.items() if name.startswith(kind)}
        for kind in ("time/", "cpu/")
    )
    walls[OTHER], cpus[OTHER] = seconds - sum(walls.values()), cpu - sum(cpus.values())
    counts = (int(info[f"rollout/{name}"]) for name in ("decisions", "env_steps", "episodes"))
    decisions, env_steps, episodes = counts
    return Iteration(decisions, rows, env_steps, episodes, seconds, walls, cpus)


def stage_rows(iterations: Sequence[Iteration]) -> list[dict[str, Any]]:
    """One row a stage and one for all: ms of wall and CPU time a decision, over all iterations; share of the wall."""
    decisions, seconds = sum(i.decisions for i in iterations), sum(i.seconds for i in iterations)
    rows = []
    for stage in (*ORDER, "all"):
        if stage == "all":
            wall, cpu = seconds, sum(sum(i.cpu.values()) for i in iterations)
        else:
            wall, cpu = (
                sum(part.get(stage, 0.0) for part in parts)
                for parts in ([i.wall for i in iterations], [i.cpu for i in iterations])
            )
        rows.append(
            {
                "stage": stage,
                "wall_ms": 1e3 * wall / decisions,
                "cpu_ms": 1e3 * cpu / decisions,
                "share": wall / seconds,
            }
        )
    return rows


def ratios_of(iterations: Sequence[Iteration]) -> dict[str, float]:
    """decisions_per_s: all decisions of the measured iterations over all their time; low, high: extremes of one."""
    decisions, seconds = sum(i.decisions for i in iterations), sum(i.seconds for i in iterations)
    return {
        "decisions_per_s": decisions / seconds,
        "decisions_per_s_low": min(i.speed for i in iterations),
        "decisions_per_s_high": max(i.speed for i in iterations),
        "env_steps_per_s": sum(i.env_steps for i in iterations) / seconds,
        "ms_per_decision": 1e3 * seconds / decisions,
        "trained_share": sum(i.rows for i in iterations) / decisions,
        "cores_busy": sum(sum(i.cpu.values()) for i in iterations) / seconds,
    }


def bench_config(quick: bool) -> TrainConfig:
    """The preset of `train tabletop --policy openvla`; quick: one task and four episodes."""
    config = recipes.get(RECIPE)
    if not quick:
        return config
    tasks = (load_tasks(config.suite)[0].name.partition("/")[2],)
    rollout = RolloutConfig(episodes_per_iteration=4)
    return replace(config, tasks=tasks, rollout=rollout, env=replace(config.env, num_envs=4))


def _table(rows: Sequence[dict[str, Any]], title: str) -> Table:
    table = Table("stage", title=title)
    for name in ("wall ms/decision", "share", "CPU ms/decision"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(row["stage"], f"{row['wall_ms']:.2f}", f"{row['share']:.0%}", f"{row['cpu_ms']:.2f}")
    return table


def run(json_path: Path | None, quick: bool = False) -> None:
    """Print the table; write `rows` (a stage each), `iterations`, flat `ratios` and the machine to `json_path`.

    quick: one small iteration on one task; the figures are then only a smoke test.
    """
    console = Console()
    machine = describe_machine(("torch", "mujoco", "numpy", "numba"))
    config = bench_config(quick)
    assert isinstance(config.env, MujocoConfig), "as the recipe says"
    tasks = load(config.suite, config.tasks, config.env)
    policy = open_policy(SHIPPED, pick_device(config.device))
    prepare_policy(policy, config.policy, policy_folder(SHIPPED))
    policy.with_value = isinstance(config.algorithm, PPOConfig)
    renderer = pick_renderer(config.env, tasks.scenes)
    threads = config.num_threads or cpu_count()
    set_torch_threads(threads)
    env_config = replace(config.env, renderer=renderer.name, num_threads=config.env.num_threads or cpu_count())
    measured = 1 if quick else MEASURED
    progress = RunProgress(WARM_UP + measured, console=console)
    with open_tasks(tasks, env_config, view_of(policy)) as env, progress:
        setup = {
            "suite": config.suite,
            "tasks": len(tasks.names),
            "renderer": renderer.name,
            "weights": weights_words(policy_info(policy, SHIPPED)),
            "image_size": env.info.image_shape[0],
            "cameras": len(env.info.cameras),
            "chunk": policy.chunk_len,
            "num_envs": env.num_envs,
            "env_threads": env_config.num_threads,
            "num_threads": threads,
            "device": str(policy.device),
            "algorithm": kind_of("algorithm", config.algorithm),
            "episodes_per_iteration": config.rollout.episodes_per_iteration,
            "parameters": sum(parameter.numel() for parameter in policy.parameters()),
        }
        iterations = measure(config, env, policy, measured, progress)
    rows, ratios = stage_rows(iterations), ratios_of(iterations)
    console.print(_table(rows, f"{setup['suite']}; {setup['algorithm']}, {setup['num_envs']} envs"))
    for name, value in setup.items():
        console.print(f"  {name:<23}{value}", highlight=False, soft_wrap=True)
    console.print(
        f"{ratios['decisions_per_s']:.1f} decisions/s over {len(iterations)} iterations "
        f"({ratios['decisions_per_s_low']:.1f} to {ratios['decisions_per_s_high']:.1f}), "
        f"{ratios['ms_per_decision']:.2f} ms a decision, {ratios['cores_busy']:.2f} cores busy; "
        f"{ratios['trained_share']:.0%} of the decisions were trained on",
        soft_wrap=True,
    )
    console.print(machine_line(machine))
    if json_path is not None:
        each = [asdict(iteration) | {"decisions_per_s": iteration.speed} for iteration in iterations]
        write_json(json_path, "loop", quick, machine, rows, ratios, setup=setup, iterations=each)

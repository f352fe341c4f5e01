"""The schedule that suits this machine, by trials, without training."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from embodied_rl.config.env import scenes
from embodied_rl.config.train import TrainConfig, dump_yaml
from embodied_rl.factory.run_config import open_policy_of, resolve
from embodied_rl.factory.scenes import pick_renderer
from embodied_rl.factory.suites import load
from embodied_rl.jobs.train_setup import find_schedule
from embodied_rl.telemetry.trace import draw_timeline


def plan_schedule(config: TrainConfig, chart: Path | None, write: Path | None) -> None:
    """Try schedules and print the fastest; what `train --autotune` does before it trains.

    Args:
        config: what would be trained.
        chart: file for a picture (SVG) of one iteration.
        write: file for the config with the schedule.
    """
    console = Console()
    tasks = load(config.suite, config.tasks, config.env)
    config = resolve(config, pick_renderer(scenes(config.env), tasks.scenes), tasks.scenes)
    policy, _ = open_policy_of(config)
    tuning = find_schedule(config, tasks, policy, console)
    if chart is not None:
        drawn = draw_timeline(tuning.best.trials[-1].spans, "one iteration of the schedule chosen")
        chart.write_text(drawn, encoding="utf-8")
    if write is not None:
        write.write_text(dump_yaml(tuning.config), encoding="utf-8")

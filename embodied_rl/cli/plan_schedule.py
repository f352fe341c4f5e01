"""`embodied-rl plan BENCHMARK [options of train] [--write FILE] [--chart FILE]`: the fastest schedule here."""

from __future__ import annotations

from pathlib import Path

from embodied_rl import configs as recipes
from embodied_rl.cli.select import select
from embodied_rl.config.train import dump_yaml
from embodied_rl.errors import UserError

_OWN = ("--write", "--chart")


def main(argv: list[str]) -> int:
    """Run the command: what `train --autotune` does before it trains."""
    words, files = _take(argv)
    selected = select(words)
    if selected.benchmark in recipes.STATE_BENCHMARKS:
        name = selected.benchmark
        raise UserError(f"plan is for policies that see images; {name} needs none: embodied-rl train {name}")
    config = selected.config
    if config is None:
        raise UserError("plan needs a benchmark, not a run to resume: embodied-rl plan tabletop")
    from rich.console import Console

    from embodied_rl.factory.envs import pick_renderer
    from embodied_rl.factory.run_config import open_policy_of, resolve
    from embodied_rl.factory.tasks import load_tasks
    from embodied_rl.jobs.train_setup import find_schedule
    from embodied_rl.telemetry.trace import draw_timeline

    console = Console()
    tasks = load_tasks(config.suite, config.tasks, config.env.scene_era)
    env = config.env
    config = resolve(config, pick_renderer(env.renderer, tasks, env.render_quality, env.simulator), tasks)
    policy, _ = open_policy_of(config)
    tuning = find_schedule(config, tasks, policy, {task.name: list(task.train_states) for task in tasks}, console)
    if "--chart" in files:
        chart = draw_timeline(tuning.best.trials[-1].spans, "one iteration of the schedule chosen")
        files["--chart"].write_text(chart, encoding="utf-8")
    if "--write" in files:
        files["--write"].write_text(dump_yaml(tuning.config), encoding="utf-8")
        console.print(f"to train: embodied-rl train {words[0]} --config {files['--write']}", soft_wrap=True)
    return 0


def _take(argv: list[str]) -> tuple[list[str], dict[str, Path]]:
    """Split off this command's own options; the rest is for `train`."""
    rest: list[str] = []
    files: dict[str, Path] = {}
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if name not in _OWN:
            rest.append(word)
            continue
        given = value if equals else next(words, "")
        if not given or given.startswith("--"):
            raise UserError(f"{name} needs the name of a file.")
        files[name] = Path(given)
        if not files[name].absolute().parent.is_dir():
            raise UserError(f"{name} {given}: its folder does not exist.")
        if name == "--chart" and files[name].suffix != ".svg":
            raise UserError(f"--chart {given}: the chart is an SVG picture; name it {files[name].stem}.svg.")
    return rest, files

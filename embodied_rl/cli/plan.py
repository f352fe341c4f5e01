"""`embodied-rl plan`: what training needs and how it is best scheduled, before it begins.

`plan --policy NAME --preset SIZE --gpu GIB`: memory; nothing is loaded. `plan BENCHMARK [options of train]`: time.
"""

from __future__ import annotations

from pathlib import Path

from embodied_rl.cli.parse import parse, split_off
from embodied_rl.cli.select import select
from embodied_rl.config.plan import PlanCommand
from embodied_rl.errors import UserError
from embodied_rl.utils.output import try_file

_OWN = ("--write", "--chart")


def main(argv: list[str]) -> int:
    """Run the command; 0 when a way to train fits or a schedule is found, 1 when no way fits."""
    if argv and not argv[0].startswith("-"):
        return _schedule(argv)
    command = parse(PlanCommand, argv, "plan")
    if command.json:
        try_file("--json", command.json)
    from embodied_rl.jobs.plan import plan_memory  # torch, only now

    return 0 if plan_memory(command) else 1


def _schedule(argv: list[str]) -> int:
    """What `train --autotune` does before it trains."""
    words, files = _take(argv)
    selected = select(words)
    if selected.config is not None and selected.config.policy.observes != "images":
        name = selected.benchmark
        raise UserError(f"plan is for policies that see images; {name} needs none: embodied-rl train {name}")
    if selected.config is None:
        raise UserError("plan needs a benchmark, not a run to resume: embodied-rl plan tabletop")
    from embodied_rl.jobs.plan_schedule import plan_schedule  # torch and the simulator, only now

    plan_schedule(selected.config, files.get("--chart"), files.get("--write"))
    if "--write" in files:
        print(f"to train: embodied-rl train {words[0]} --config {files['--write']}")
    return 0


def _take(argv: list[str]) -> tuple[list[str], dict[str, Path]]:
    """Split off this command's own options; the rest is for `train`."""
    rest, found = split_off(argv, _OWN)
    files = {name: Path(value) for name, value in found}
    for name, value in found:
        if not value:
            raise UserError(f"{name} needs the name of a file.")
        if not files[name].absolute().parent.is_dir():
            raise UserError(f"{name} {value}: its folder does not exist.")
        if name == "--chart" and files[name].suffix != ".svg":
            raise UserError(f"--chart {value}: the chart is an SVG picture; name it {files[name].stem}.svg.")
    return rest, files

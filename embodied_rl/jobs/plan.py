"""What training a policy needs in memory, by way to train, and what fits on a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from embodied_rl.autotune.memory import GIB, modes, need, serving_bytes
from embodied_rl.config.plan import PlanCommand
from embodied_rl.errors import UserError
from embodied_rl.factory.policies import FAMILIES
from embodied_rl.policies.family import TrainingMode, pick
from embodied_rl.utils.words import counted

if TYPE_CHECKING:
    from embodied_rl.autotune.memory import Mode, Need
    from embodied_rl.policies.family import PolicyFamily

_LORA_RANK = 32
_GOOD_ROWS = 8
_COLUMNS = 4
"""Ways to train that 80 columns hold side by side."""


def plan_memory(command: PlanCommand) -> bool:
    """Count memory and print it by way to train; whether one of them fits. Nothing is loaded."""
    console = Console()
    budget = int(command.gpu * GIB)
    family, config = _family(command), _config(command)
    needs = []
    console.print(
        f"counting what {command.policy} {command.size} holds in each way to train; nothing is loaded, "
        "but large ones take about a minute of CPU time",
        soft_wrap=True,
    )
    with console.status("measuring") as status:
        for mode in modes(command.lora_rank or _LORA_RANK, expert=command.denoises):
            status.update(f"measuring: {mode.name}")
            needs.append(_need(family, config, mode))
    parameters = needs[-1].weights // 4  # the last mode: everything in float32
    kept = family.prefix_bytes(config, 2)
    serve = serving_bytes(parameters, needs[0].rollout_row, needs[0].cache_row)
    console.print(f"{command.policy} {command.size}: {parameters:,} parameters; a GPU of {command.gpu:g} GiB")
    for first in range(0, len(needs), _COLUMNS):
        console.print(_table(needs[first : first + _COLUMNS], budget, command.num_envs))
    console.print(
        f"deciding for one robot, bfloat16: {serve / GIB:.1f} GiB, {'fits' if serve <= budget else 'does not fit'}"
    )
    if kept:
        console.print(
            f"prefixes kept for the update: {kept / 2**20:.3g} MiB of host memory a decision "
            "(--policy.train-expert-only --policy.prefix-cache-gib)"
        )
    fitting = [need for need in needs if need.most_rows(budget) and need.most_envs(budget)]
    for line in _advice(fitting, needs, budget, command):
        console.print(line, soft_wrap=True)
    if command.json:
        rows = [
            asdict(need) | {"most_rows": need.most_rows(budget), "most_envs": need.most_envs(budget)} for need in needs
        ]
        figures: dict[str, Any] = {
            "policy": command.policy,
            "preset": command.size,
            "parameters": parameters,
            "gpu_bytes": budget,
            "serving_bytes": serve,
            "kept_prefix_bytes": kept,
            "modes": rows,
        }
        command.json.write_text(json.dumps(figures, indent=1) + "\n")
    return bool(fitting)


def _family(command: PlanCommand) -> PolicyFamily:
    return FAMILIES["pi0" if command.policy == "pi05" else command.policy]


def _config(command: PlanCommand) -> Any:
    """The model config of the preset."""
    found = _family(command).preset(command.size, command.variant)
    if command.policy in ("pi0", "pi05") and found.adaptive != (command.policy == "pi05"):
        other = "pi05" if found.adaptive else "pi0"
        raise UserError(f"the preset '{command.size}' is one of {other}, not of {command.policy}.")
    return found


def _need(family: PolicyFamily, config: Any, mode: Mode) -> Need:
    element = 2 if mode.dtype == "bfloat16" else 4
    return need(mode, family.measure(config, pick(TrainingMode, mode)), family.cache_bytes(config, element))


def _table(needs: list[Need], budget: int, envs: int) -> Table:
    """A column a way to train, which 80 columns hold."""
    table = Table("GiB", title="activations of a row of a micro-batch, key-value cache of an env", box=box.SIMPLE_HEAD)
    for way in needs:
        table.add_column(way.mode.name.replace(", ", "\n"), justify="right", max_width=13)
    figures: dict[str, Callable[[Need], int]] = {
        "weights": lambda need: need.weights,
        "gradients": lambda need: need.gradients,
        "optimizer": lambda need: need.optimizer,
        "activations": lambda need: need.row,
        "cache": lambda need: need.cache_row,
        "least in all": lambda need: need.total(1, envs),
    }
    for name, figure in figures.items():
        table.add_row(name, *(_gib(figure(need) / GIB) for need in needs))
    rows = [need.most_rows(budget) if need.most_envs(budget) else 0 for need in needs]
    table.add_row("micro-batch", *(counted(count, "row") if count else "does not fit" for count in rows))
    return table


def _gib(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.3g}"


def _advice(fitting: list[Need], needs: list[Need], budget: int, command: PlanCommand) -> list[str]:
    """What to do with the result."""
    if not fitting:
        least = min(need.total(1, 1) for need in needs)
        return [f"no way to train fits: a GPU needs at least {least / GIB:.1f} GiB for it"]
    # later ones train more with less approximation, but a very small micro-batch makes them slow
    best = next((need for need in reversed(fitting) if need.most_rows(budget) >= _GOOD_ROWS), fitting[0])
    rows, envs = best.most_rows(budget), best.most_envs(budget)
    kind = "pi0" if command.policy == "pi05" else command.policy
    lines = [
        f"to train: embodied-rl train libero --policy {kind} {best.mode.options} "
        f"--learner.microbatch-size {min(rows, 64)}"
    ]
    if envs < command.num_envs:
        lines.append(f"only {counted(envs, 'env')} can be decided for at once: --env.num-envs {envs}")
    return lines

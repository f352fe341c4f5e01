"""`embodied-rl plan`: what training needs and how it is best scheduled, before it begins.

`plan --policy NAME --preset SIZE --gpu GIB`: memory; nothing is loaded. `plan BENCHMARK`: time, see `plan_schedule`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied_rl.cli.parse import parse
from embodied_rl.errors import UserError, suggest
from embodied_rl.utils.output import try_file
from embodied_rl.utils.words import counted

if TYPE_CHECKING:
    from rich.table import Table

    from embodied_rl.autotune.memory import Mode, Need
    from embodied_rl.policies.family import PolicyFamily

PUBLISHED = {"openvla": "7b", "openvla_oft": "7b", "pi0": "pi0_base", "pi05": "pi05_base", "smolvla": "smolvla_base"}
"""The preset that a policy has unless another is chosen."""
_LORA_RANK = 32
_GOOD_ROWS = 8


@dataclass(frozen=True, kw_only=True)
class PlanCommand:
    """What training a policy needs in memory, and what of it fits on a GPU. Nothing is loaded or downloaded.

    With a benchmark, as in `embodied-rl plan tabletop`: the scheduler that suits this machine, measured.
    """

    policy: str = "openvla"
    """openvla, openvla_oft, pi0, pi05 or smolvla."""
    preset: str | None = None
    """Size of the policy: nano, tiny or 7b; of pi0 nano, tiny, pi0_base, nano_pi05, tiny_pi05, pi05_base or
    pi05_libero; of smolvla nano or smolvla_base (None: the published one)."""
    variant: str = "official"
    """Which published OpenVLA-OFT: official, simplevla or rlinf (7b only)."""
    gpu: float = 24.0
    """Memory of the GPU in GiB."""
    lora_rank: int | None = None
    """Rank of the LoRA adapters (None: 32; pi0 and smolvla have none)."""
    num_envs: int = 32
    """Worlds that are decided for at once."""
    json: Path | None = None
    """Write the figures here, in bytes."""


def main(argv: list[str]) -> int:
    """Run the command; 0 when a way to train fits, 1 when none does."""
    if argv and not argv[0].startswith("-"):
        from embodied_rl.cli.plan_schedule import main as schedule

        return schedule(argv)
    command = parse(PlanCommand, argv, "plan")
    _check(command)
    from rich.console import Console  # after the checks: a typing error should not wait for torch

    from embodied_rl.autotune.memory import GIB, modes, serving_bytes

    console = Console()
    budget = int(command.gpu * GIB)
    family, config = _family(command), _config(command)
    needs = []
    console.print(
        f"counting what {command.policy} {_preset(command)} holds in each way to train; nothing is loaded, "
        "but large ones take about a minute of CPU time",
        soft_wrap=True,
    )
    with console.status("measuring") as status:
        for mode in modes(0 if _denoises(command) else command.lora_rank or _LORA_RANK):
            status.update(f"measuring: {mode.name}")
            needs.append(_need(family, config, mode))
    parameters = needs[-1].weights // 4  # the last mode: everything in float32
    kept = family.prefix_bytes(config, 2)
    serve = serving_bytes(parameters, needs[0].rollout_row, needs[0].cache_row)
    console.print(f"{command.policy} {_preset(command)}: {parameters:,} parameters; a GPU of {command.gpu:g} GiB")
    console.print(_table(needs, budget, command.num_envs))
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
            "preset": _preset(command),
            "parameters": parameters,
            "gpu_bytes": budget,
            "serving_bytes": serve,
            "kept_prefix_bytes": kept,
            "modes": rows,
        }
        command.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if fitting else 1


def _check(command: PlanCommand) -> None:
    if command.policy not in PUBLISHED:
        raise UserError(f"unknown policy '{command.policy}'.{suggest(command.policy, PUBLISHED)}")
    if _denoises(command) and command.lora_rank is not None:
        raise UserError(f"--lora-rank does not apply to {command.policy}, which trains its action expert or all.")
    for name in ("gpu", "lora_rank", "num_envs"):
        value = getattr(command, name)
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"--{name.replace('_', '-')} must be positive and finite, got {value}.")
    if command.variant != "official" and command.policy != "openvla_oft":
        raise UserError(f"--variant {command.variant} is a way of OpenVLA-OFT: it needs --policy openvla_oft.")
    if command.variant != "official" and _preset(command) != "7b":
        raise UserError(
            f"--variant {command.variant} is one of the 7b preset, not of {_preset(command)}: leave it out."
        )
    if command.json:
        try_file("--json", command.json)


def _denoises(command: PlanCommand) -> bool:
    return command.policy in ("pi0", "pi05", "smolvla")


def _preset(command: PlanCommand) -> str:
    return command.preset or PUBLISHED[command.policy]


def _family(command: PlanCommand) -> PolicyFamily:
    from embodied_rl.factory.policies import FAMILIES

    return FAMILIES["pi0" if command.policy == "pi05" else command.policy]


def _config(command: PlanCommand) -> Any:
    """The model config of the preset."""
    found = _family(command).preset(_preset(command), command.variant)
    if command.policy in ("pi0", "pi05") and found.adaptive != (command.policy == "pi05"):
        other = "pi05" if found.adaptive else "pi0"
        raise UserError(f"the preset '{_preset(command)}' is one of {other}, not of {command.policy}.")
    return found


def _need(family: PolicyFamily, config: Any, mode: Mode) -> Need:
    from embodied_rl.autotune.memory import need
    from embodied_rl.policies.family import TrainingMode, pick

    element = 2 if mode.dtype == "bfloat16" else 4
    return need(mode, family.measure(config, pick(TrainingMode, mode)), family.cache_bytes(config, element))


def _table(needs: list[Need], budget: int, envs: int) -> Table:
    """A column a way to train, which 80 columns hold."""
    from rich import box
    from rich.table import Table

    from embodied_rl.autotune.memory import GIB

    table = Table("GiB", title="activations of a row of a micro-batch, key-value cache of a world", box=box.SIMPLE_HEAD)
    for need in needs:
        table.add_column(need.mode.name.replace(", ", "\n"), justify="right", max_width=13)
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
    from embodied_rl.autotune.memory import GIB

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
        lines.append(f"only {counted(envs, 'world')} can be decided for at once: --env.num-envs {envs}")
    return lines

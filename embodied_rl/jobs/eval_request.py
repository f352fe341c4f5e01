"""What an evaluation of a benchmark is asked to do."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from embodied_rl.config.env import AUTO, EnvConfig, MujocoConfig
from embodied_rl.config.suites import find_suite, suite_named
from embodied_rl.config.train import kind_of
from embodied_rl.errors import UserError, suggest
from embodied_rl.factory.policies import CheckpointOptions
from embodied_rl.factory.tasks import LIBERO_SUITES
from embodied_rl.jobs.efficient_inference import EfficientConfig
from embodied_rl.policies.checkpoints.shipped import SHIPPED, require_shipped_for
from embodied_rl.policy import ActMode
from embodied_rl.utils.suites import LIBERO_PLUS

_FAMILIES = ("spatial", "object", "goal", "long")
SUITES_OF = {
    "libero": (*_FAMILIES, *(name.removeprefix("libero_") for name in LIBERO_SUITES if name[7:] not in _FAMILIES)),
    "tabletop": _FAMILIES,
}


@dataclass(frozen=True, kw_only=True)
class BenchmarkCommand(CheckpointOptions):
    """Measure a policy on a benchmark."""

    suite: str = "spatial"
    """Suite of the benchmark: spatial, object, goal, long (LIBERO's is also called 10), LIBERO's 90, or one of
    LIBERO-PRO's: spatial_swap, goal_lan, ... (not given: the one that the checkpoint was trained on)."""
    tasks: tuple[str, ...] = ()
    """Short names of the tasks (none given: all of the suite, or those that the checkpoint was trained on where the
    suite is too large); --task NAME names one."""
    protocol: str = AUTO
    """Whose way to run an episode: auto (native on the built-in suites, libero on LIBERO's), native (this project's),
    libero (the same after 10 settle steps), openvla, openvla_oft, openpi, rlinf, rlinf_pi, simplevla or lerobot;
    libero_plus: --perturb libero_plus, on frames of 256 pixels."""
    states: Literal["heldout", "train"] = "heldout"
    """heldout: LIBERO's 50 official states, or other suites' held-out ones; train: those for training."""
    states_per_task: int | None = None
    """Only the first so many of them (None: all)."""
    at_end: bool = True
    """Run each episode to its horizon, to measure success at the end too; without it an episode ends at success."""
    perturb: tuple[str, ...] = ()
    """Change each episode: camera, light, texture, object, instruction. Or libero_plus: run LIBERO-plus' tasks."""
    perturb_level: float = 1.0
    """Scales what --perturb draws."""
    plus_tasks: int | None = None
    """LIBERO-plus: only so many tasks of each dimension, spread over the official list (None: all)."""
    plus_instruction: Literal["official", "clean"] = "official"
    """LIBERO-plus: instructions as the official code has them, which in most dimensions end with the numbers in the
    task's name; or without these."""
    mode: ActMode = "greedy"
    """Take the most likely action (greedy), or sample at the checkpoint's temperature."""
    seed: int = 0
    """Seed of the episodes; matters where actions are sampled or episodes are perturbed."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the policy is; auto takes a GPU if there is one."""
    efficient: EfficientConfig = field(default_factory=EfficientConfig)
    env: EnvConfig = field(default_factory=MujocoConfig)
    videos: int = 5
    """Failed episodes of which videos are recorded, spread over the tasks; 0: none."""
    keep: bool = False
    """Keep the episodes, frame by frame with their pictures; `export FOLDER --to lerobot` makes a data set of them."""
    output: str = AUTO
    """Folder of the evaluation; auto makes runs/eval-SUITE-PROTOCOL-TIME-PROCESS."""
    json: Path | None = None
    """Also write the report's figures here."""
    imports: tuple[str, ...] = field(default=(), metadata={"flag": "--import"})
    """Modules of one's own that register what is evaluated (--import); a resume imports them again."""


def suite_name(benchmark: str, suite: str) -> str:
    """'spatial' or 'libero_spatial' of benchmark libero is 'libero_spatial'; LIBERO's long suite is 'libero_10'.

    A benchmark that is a suite itself, such as gymnasium, has no others. UserError for a suite that it lacks.
    """
    table = find_suite(benchmark)
    if table is not None and suite == benchmark:
        return benchmark
    if table is not None:
        raise UserError(f"{benchmark} is a suite already: leave --suite out.")
    short = suite.removeprefix(f"{benchmark}_")
    if short not in SUITES_OF[benchmark]:
        raise UserError(f"unknown suite '{suite}' of {benchmark}.{suggest(short, SUITES_OF[benchmark])}")
    if benchmark == "libero" and short == "long":
        short = "10"
    return f"{benchmark}_{short}"


def benchmark_of(suite: str) -> str:
    """Of a suite's whole name, such as 'libero'; UserError where there is no such suite."""
    return suite_named(suite).benchmark


def resolved(benchmark: str, command: BenchmarkCommand, suite: str) -> BenchmarkCommand:
    """`command` with the protocol that 'auto' means, and the folder that 'shipped' means.

    Args:
        benchmark: of the suite.
        command: of an evaluation.
        suite: its whole name.

    Raises:
        UserError: no checkpoint for the suite is shipped.
    """
    if command.protocol == LIBERO_PLUS and not command.perturb:
        command = dataclasses.replace(command, perturb=(LIBERO_PLUS,))
    elif command.protocol == AUTO and LIBERO_PLUS in command.perturb:
        command = dataclasses.replace(command, protocol=LIBERO_PLUS)
    if command.protocol == AUTO:
        command = dataclasses.replace(command, protocol="libero" if benchmark == "libero" else "native")
    if command.checkpoint == SHIPPED:
        command = dataclasses.replace(command, checkpoint=require_shipped_for(suite))
    return command


def request_of(benchmark: str, command: BenchmarkCommand) -> dict[str, Any]:
    """What an evaluation's folder records, so that it can be resumed from anywhere."""
    options = {
        name: str(value) if isinstance(value, Path) else value for name, value in dataclasses.asdict(command).items()
    }
    options["env"] = {"name": kind_of("env", command.env)} | dataclasses.asdict(command.env)
    # as an earlier version wrote it where what came later is not asked for
    unasked = [name for name in ("imports", "keep") if not getattr(command, name)]
    unasked += [] if LIBERO_PLUS in command.perturb else ["plus_tasks", "plus_instruction"]
    left_out = ("output", "json", *unasked)
    return {"benchmark": benchmark, "options": {k: v for k, v in options.items() if k not in left_out}}

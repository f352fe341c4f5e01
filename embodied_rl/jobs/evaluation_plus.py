"""An evaluation on LIBERO-plus: what it can be asked for, and what of it can't run."""

from __future__ import annotations

from collections.abc import Mapping

from embodied_rl.errors import UserError
from embodied_rl.jobs.eval_request import BenchmarkCommand
from embodied_rl.sim.libero.plus import noise
from embodied_rl.sim.libero.protocol import Protocol
from embodied_rl.utils.suites import LIBERO_PLUS, PLUS_SUITES

_DECIDED = ("perturb_level", "states", "states_per_task")
"""Options that LIBERO-plus decides itself."""


def check_plus(command: BenchmarkCommand, suite: str, protocol: Protocol) -> None:
    """UserError where LIBERO-plus has not what `command` asks for."""
    if suite not in PLUS_SUITES:
        raise UserError(f"LIBERO-plus changes the suites {', '.join(PLUS_SUITES)}, not '{suite}'.")
    usual = BenchmarkCommand(checkpoint="")
    refused = [
        ("--perturb of other kinds", command.perturb != (LIBERO_PLUS,)),
        *((f"--{name.replace('_', '-')}", getattr(command, name) != getattr(usual, name)) for name in _DECIDED),
    ]
    for what, given in refused:
        if given:
            raise UserError(f"LIBERO-plus says what changes, and each of its tasks has one start: leave {what} out.")
    if protocol.render_size != noise.SIZE:
        raise UserError(
            f"LIBERO-plus' sensor noise needs frames of {noise.SIZE} pixels, which protocol '{protocol.name}' has not: "
            f"choose --protocol {LIBERO_PLUS}, or one of a published policy such as openvla_oft."
        )


def left_out_words(left_out: Mapping[str, Mapping[str, int]]) -> list[str]:
    """A line for each dimension of which tasks can't run."""
    return [
        f"{dimension}: " + ", ".join(f"{count} tasks lack {what}" for what, count in counts.items())
        for dimension, counts in left_out.items()
    ]

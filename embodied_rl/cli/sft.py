"""`embodied-rl sft DATA --out DIR`: train a policy on demonstrations (imitation)."""

from __future__ import annotations

import shlex

from embodied_rl.cli.parse import parse
from embodied_rl.config.register import CUSTOM_POLICIES
from embodied_rl.config.sft import SftCommand
from embodied_rl.config.train import known_kind
from embodied_rl.errors import UserError, suggest
from embodied_rl.utils.output import try_output

POLICIES = ("openvla", "openvla_oft", "pi0", "smolvla", "act")


def main(argv: list[str]) -> int:
    """Run the command; 0 when the checkpoint is written, now or before; 130 when Ctrl-C stopped it."""
    command = parse(SftCommand, argv, "sft")
    if command.policy is not None and command.policy not in POLICIES:
        known_kind("policy", command.policy)  # looks among installed packages too
        known = (*POLICIES, *CUSTOM_POLICIES)
        if command.policy not in known:
            raise UserError(f"unknown policy '{command.policy}'.{suggest(command.policy, known)}")
        command.check_custom()
    try_output("--out", command.out)
    from embodied_rl.jobs.sft import run  # torch, only now

    return 0 if run(command, shlex.join(["embodied-rl", "sft", *argv])) else 130

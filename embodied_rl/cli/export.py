"""`embodied-rl export --checkpoint DIR --out DIR`: a policy in the published layout of its kind."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from embodied_rl.cli.parse import parse
from embodied_rl.cli.policies import CheckpointOptions
from embodied_rl.errors import UserError


@dataclass(frozen=True, kw_only=True)
class ExportCommand(CheckpointOptions):
    """Write a policy in the published layout of its kind: OpenVLA's Hugging Face files, and openvla-oft's beside them.

    LoRA adapters are merged. The critic goes into a file of its own, which other programs ignore.
    """

    out: Path
    """Folder to write; it must not exist yet."""
    dtype: Literal["keep", "float32", "bfloat16"] = "keep"
    """Number format of the weights; keep leaves them as they are."""


def main(argv: list[str]) -> int:
    """Run the command."""
    command = parse(ExportCommand, argv, "export")
    if command.out.exists():
        raise UserError(f"{command.out} already exists; choose another --out or remove it")
    import torch  # after the checks: a typing error should not wait for it

    from embodied_rl import __version__
    from embodied_rl.cli.world import policy_folder
    from embodied_rl.policies.openvla.checkpoint import export_policy, load_policy

    source = policy_folder(command.checkpoint)
    policy = load_policy(source, command.load_options())
    dtype = None if command.dtype == "keep" else getattr(torch, command.dtype)
    words = shlex.join(["embodied-rl", "export", *argv])
    export_policy(policy, command.out, {"command": words, "version": __version__, "source": command.checkpoint}, dtype)
    size = sum(path.stat().st_size for path in command.out.rglob("*") if path.is_file())
    print(f"wrote {command.out}: {policy.architecture}, {size / 1e9:.2f} GB")
    return 0

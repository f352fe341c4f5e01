"""`embodied-rl export --checkpoint DIR --out DIR`: a policy in the published layout of its kind."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from embodied_rl.cli.parse import parse
from embodied_rl.errors import UserError
from embodied_rl.factory.policies import CheckpointOptions


@dataclass(frozen=True, kw_only=True)
class ExportCommand(CheckpointOptions):
    """Write a policy in the published layout of its kind.

    OpenVLA's Hugging Face files, and openvla-oft's beside them: LoRA adapters are merged, the critic goes into a file
    of its own, which other programs ignore. pi0: the files of openpi or LeRobot, SmolVLA: of LeRobot, without what only
    training needs.
    """

    out: Path
    """Folder to write; it must not exist yet."""
    dtype: Literal["keep", "float32", "bfloat16"] = "keep"
    """Number format of the weights; keep leaves them as they are."""
    layout: Literal["openpi", "lerobot"] | None = None
    """Whose files a pi0 becomes (None: openpi's); a SmolVLA becomes LeRobot's."""
    cameras: tuple[str, ...] = ()
    """LeRobot's names of the cameras, in their order, such as image image2."""


def main(argv: list[str]) -> int:
    """Run the command."""
    command = parse(ExportCommand, argv, "export")
    if command.out.exists():
        raise UserError(f"{command.out} already exists; choose another --out or remove it")
    import torch  # after the checks: a typing error should not wait for it

    from embodied_rl import __version__
    from embodied_rl.factory.envs import policy_folder
    from embodied_rl.factory.policies import load_policy
    from embodied_rl.policies.openvla.checkpoint import export_policy
    from embodied_rl.policies.pi0.hf_format import save_published
    from embodied_rl.policies.pi0.policy import Pi0Policy
    from embodied_rl.policies.smolvla.hf_format import save_published as save_smolvla
    from embodied_rl.policies.smolvla.policy import SmolVLAPolicy

    source = policy_folder(command.checkpoint)
    policy = load_policy(source, command.load_options(source))
    dtype = None if command.dtype == "keep" else getattr(torch, command.dtype)
    words = shlex.join(["embodied-rl", "export", *argv])
    provenance = {"command": words, "version": __version__, "source": command.checkpoint}
    if isinstance(policy, SmolVLAPolicy):
        if command.layout == "openpi":
            raise UserError(f"--layout openpi is for pi0; {source} holds {policy.architecture}")
        save_smolvla(policy, command.out, command.cameras, provenance, dtype)
    elif isinstance(policy, Pi0Policy):
        save_published(policy, command.out, command.layout or "openpi", command.cameras, provenance, dtype)
    elif command.layout or command.cameras:
        raise UserError(f"--layout and --cameras are for pi0 and smolvla; {source} holds {policy.architecture}")
    else:
        export_policy(policy, command.out, provenance, dtype)
    size = sum(path.stat().st_size for path in command.out.rglob("*") if path.is_file())
    print(f"wrote {command.out}: {policy.architecture}, {size / 1e9:.2f} GB")
    return 0

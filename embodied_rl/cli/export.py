"""`embodied-rl export --checkpoint DIR --out DIR`: a policy in the published layout of its kind; or recordings."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from embodied_rl.cli.export_recording import ExportRecordingCommand, PushOptions, is_of_recordings, run
from embodied_rl.cli.parse import parse
from embodied_rl.errors import UserError
from embodied_rl.factory.policies import CheckpointOptions
from embodied_rl.utils.output import folder_bytes
from embodied_rl.utils.words import file_size


@dataclass(frozen=True, kw_only=True)
class ExportCommand(CheckpointOptions, PushOptions):
    """Write a policy in the published layout of its kind, with a model card for the Hugging Face hub.

    OpenVLA's Hugging Face files, and openvla-oft's beside them: LoRA adapters are merged, the critic goes into a file
    of its own, which other programs ignore. pi0: the files of openpi or LeRobot, SmolVLA and ACT: of LeRobot, without
    what only training needs. Small presets have parts that none of these layouts has a place for: --layout native
    writes any policy in embodied-rl's own, in one folder with its adapters merged.

    A robot's recordings become a data set, and a data set goes to the hub: `embodied-rl export run.mcap --help` lists
    the options of that.
    """

    out: Path
    """Folder to write; it must not exist yet."""
    dtype: Literal["keep", "float32", "bfloat16"] = "keep"
    """Number format of the weights; keep leaves them as they are."""
    layout: Literal["openpi", "lerobot", "native"] | None = None
    """Whose files a pi0 becomes (None: openpi's); a SmolVLA or ACT becomes LeRobot's. native: ours, for any policy."""
    cameras: tuple[str, ...] = ()
    """LeRobot's names of the cameras, in their order, such as image image2."""
    evaluations: tuple[Path, ...] = ()
    """Folders of evaluations of this checkpoint, for its card (none given: what its own run found for it)."""
    verify: bool = False
    """Read the export back and compare its actions with the policy's on eight observations, of the suite that it was
    trained on where that is built in; a pi0 in LeRobot's layout also in transformers, where that is installed."""


def main(argv: list[str]) -> int:
    """Run the command."""
    if is_of_recordings(argv):
        return run(parse(ExportRecordingCommand, argv, "export"), argv)
    command = parse(ExportCommand, argv, "export")
    if command.out.exists():
        raise UserError(f"{command.out} already exists; choose another --out or remove it")
    if command.layout == "native" and command.cameras:
        raise UserError("--cameras gives LeRobot's names; --layout native has none: leave it out.")
    command.check()
    import torch  # after the checks: a typing error should not wait for it

    from embodied_rl.factory.policies import export_policy, load_policy, policy_folder, policy_info
    from embodied_rl.jobs.cards import evaluations_of, run_of, write_model_card
    from embodied_rl.policies.checkpoints.folder import read_provenance
    from embodied_rl.policies.family import ExportRequest
    from embodied_rl.version import __version__

    source = policy_folder(command.checkpoint)
    policy = load_policy(source, command.load_options(source))
    dtype = None if command.dtype == "keep" else getattr(torch, command.dtype)
    words = shlex.join(["embodied-rl", "export", *argv])
    about, trained, of_run = policy_info(policy, command.checkpoint), read_provenance(source), run_of(source)
    evaluations = evaluations_of(source, of_run, command.evaluations, about.digest)
    provenance = {"command": words, "version": __version__, "source": command.checkpoint}
    if command.layout == "native":
        provenance = trained | provenance  # what it was trained on goes along
    request = ExportRequest(
        out=command.out, layout=command.layout, cameras=command.cameras, provenance=provenance, dtype=dtype
    )
    export_policy(policy, request)
    try:
        name = command.push or command.out.name
        write_model_card(command.out, name, words, about, trained, of_run, evaluations, command.license)
    except BaseException:
        shutil.rmtree(command.out)  # without its card it would look finished
        raise
    print(f"wrote {command.out}: {policy.architecture}, {file_size(folder_bytes(command.out))}")
    if command.verify:
        from embodied_rl.jobs.verify_export import verify
        from embodied_rl.sim.tabletop import suites

        before: Any = load_policy(source, command.load_options(source))  # an export may merge or round its own
        suite = str(trained.get("suite", ""))
        for found in verify(before, command.out, command.layout, suite if suite in suites() else "", dtype):
            print(found.describe())
    command.upload(command.out, "model")
    return 0

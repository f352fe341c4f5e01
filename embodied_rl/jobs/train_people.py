"""Who watches the episodes of a training run: its failure detector (`--people-rule detector`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embodied_rl.config.policies import CustomPolicyConfig, PolicyObjectConfig
from embodied_rl.config.train import TrainConfig
from embodied_rl.errors import UserError
from embodied_rl.evaluation.detector import load_detector
from embodied_rl.evaluation.features import Watcher
from embodied_rl.factory.policies import load_options, open_policy
from embodied_rl.factory.run_config import begins_anew
from embodied_rl.jobs.run_folder import DETECTOR
from embodied_rl.training.filtered_bc import weights_digest


def open_watcher(config: TrainConfig, policy: Any, instructions: Sequence[str]) -> Watcher | None:
    """What watches the episodes of the run; None where no detector is asked for.

    The policy of --policy.checkpoint looks on with the weights that it began with, whatever the run makes of them:
    what it made of demonstrations is what the detector compares with. The run keeps a copy of the detector.

    Args:
        config: of the run.
        policy: that learns.
        instructions: of its tasks.

    Raises:
        UserError: the detector is of another policy, chunk length or task; or it was changed since the run began.
    """
    if config.people_rule != "detector":
        return None
    if isinstance(config.policy, CustomPolicyConfig | PolicyObjectConfig) or begins_anew(config):
        raise UserError(
            "--people-rule detector needs the policy that it was calibrated with: name it with --policy.checkpoint."
        )
    path, kept = Path(config.people_detector), Path(config.output) / DETECTOR
    if kept.is_file():
        if path.is_file() and path.read_bytes() != kept.read_bytes():
            raise UserError(f"{path} is no longer the detector that {config.output} began with, which is {kept}.")
        path = kept
    detector = load_detector(path)
    detector.require_chunk_len(policy.chunk_len, path)
    if "instruction" in config.perturb:
        raise UserError("--people-rule detector knows tasks by their words: leave --perturb instruction out.")
    if unknown := [words for words in instructions if words not in detector.limits]:
        raise UserError(f"{path} was not calibrated for '{unknown[0]}': make another one, or leave its task out.")
    begun = open_policy(config.policy.checkpoint, config.device, load_options(config.policy))
    detector.require_policy(weights_digest(begun), config.policy.checkpoint, path)
    if path != kept:
        kept.write_bytes(path.read_bytes())
    return Watcher(detector, begun)

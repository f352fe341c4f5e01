"""A pi0 policy from any folder: our own, which says everything itself, or one of openpi or LeRobot, which does not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.folder import read_json
from embodied_rl.policies.pi0 import checkpoint
from embodied_rl.policies.pi0.config import preset
from embodied_rl.policies.pi0.hf_format import load_published, read_statistics
from embodied_rl.policies.pi0.normalise import NormMode
from embodied_rl.policies.pi0.policy import Pi0Policy

_LEROBOT_TYPES = ("pi0", "pi05")


@dataclass(frozen=True)
class Pi0Options:
    """What the user says about a checkpoint.

    preset, tokenizer (PaliGemma's tokenizer.json), normalisation: needed for a published one, and refused for ours.
    statistics: file or folder of them, None for the only ones in the published folder. chunk_len: control steps
    executed a decision, None for what the folder or the preset says.
    """

    preset: str | None = None
    tokenizer: str | None = None
    statistics: str | None = None
    normalisation: NormMode | None = None
    chunk_len: int | None = None


def is_pi0(folder: Path) -> bool:
    """Whether `folder` is a checkpoint of this kind, ours or published; False without a readable config.json."""
    if not (folder / "config.json").is_file():
        return False
    config = read_json(folder / "config.json")
    return config.get("architecture") == Pi0Policy.architecture or _is_published(config)


def is_published(folder: Path) -> bool:
    """Whether `folder` is a pi0 of openpi or LeRobot."""
    return (folder / "config.json").is_file() and _is_published(read_json(folder / "config.json"))


def load_any(folder: Path, options: Pi0Options) -> Pi0Policy:
    """The policy in `folder`, on the CPU; UserError names whatever is missing, superfluous or does not fit."""
    given = {name: value for name, value in vars(options).items() if value is not None}
    chunk_len = given.pop("chunk_len", None)
    if is_published(folder):
        return _published(folder, options)
    if given:
        name = next(iter(given)).replace("_", "-")
        raise UserError(f"{folder} is no published pi0 and says everything itself: leave the option {name} out")
    policy = checkpoint.load_policy(folder)
    if chunk_len is not None:
        execute(policy, chunk_len)
    return policy


def _is_published(config: dict[str, object]) -> bool:
    return "paligemma_variant" in config or config.get("type") in _LEROBOT_TYPES


def _published(folder: Path, options: Pi0Options) -> Pi0Policy:
    for name in ("preset", "tokenizer", "normalisation"):
        if getattr(options, name) is None:
            raise UserError(
                f"{folder} is a published pi0, which does not say its {name}: name its preset (pi0_base, pi05_base, "
                "pi05_libero), PaliGemma's tokenizer.json and the normalisation (mean_std or quantiles)"
            )
    assert options.preset is not None
    assert options.tokenizer is not None
    assert options.normalisation is not None
    config = preset(options.preset)
    if options.chunk_len is not None:
        config = replace(config, chunk_len=checked_chunk_len(options.chunk_len, config.horizon))
    statistics = read_statistics(Path(options.statistics or folder), options.normalisation, config)
    return load_published(folder, config, statistics, Path(options.tokenizer))


def execute(policy: Pi0Policy, chunk_len: int) -> None:
    """Let `policy` execute so many control steps a decision; UserError if it does not predict as many."""
    policy.config = replace(policy.config, chunk_len=checked_chunk_len(chunk_len, policy.config.horizon))
    policy.chunk_len = chunk_len


def checked_chunk_len(chunk_len: int, horizon: int) -> int:
    """`chunk_len`, or UserError."""
    if not 1 <= chunk_len <= horizon:
        raise UserError(f"chunk_len must lie in 1..{horizon}, the steps that this policy predicts; got {chunk_len}.")
    return chunk_len

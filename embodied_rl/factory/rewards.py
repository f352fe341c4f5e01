"""Reward models by name: which kind a folder holds, opening it, and the digest of what was opened."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.hub import is_repository, resolve
from embodied_rl.policies.checkpoints.integrity import files_digest
from embodied_rl.rewards.config import PromptConfig
from embodied_rl.rewards.pretrained import READS, need_transformers, read_config

if TYPE_CHECKING:
    from embodied_rl.rewards.base import Judge

_CARD = "card.json"  # written beside a model, and no part of it


def reward_folder(model: str) -> Path:
    """The folder of a reward model: `model` itself, or one of the hub in its cache, downloaded first if need be."""
    return resolve(model) if is_repository(model) else Path(model)


def reward_kind(folder: Path) -> str:
    """What the folder holds, by its config.json: progress, clip or vlm.

    Raises:
        UserError: none of them.
    """
    config = read_config(folder)
    if "architecture" in config:
        return "progress"  # whose loader says whether it is whole
    kind = str(config.get("model_type"))
    need_transformers()
    from transformers.models.auto import modeling_auto as auto

    if kind in auto.MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES and not kind.startswith("blip"):
        return "clip"
    if kind in auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        return "vlm"
    raise UserError(
        f"{folder} holds a model of type '{kind}', which compares no picture with words and answers no question about "
        "one: choose a CLIP-like or an image-text-to-text model of transformers, or make one with embodied-rl reward "
        "train"
    )


def open_judge(folder: Path, prompts: PromptConfig, device: str) -> Judge:
    """The reward model in a folder, on `device`.

    Raises:
        UserError: it is damaged, or prompts are given that it has no use for.
    """
    kind = reward_kind(folder)
    if kind == "progress":
        from embodied_rl.rewards.progress import load_progress

        _refuse(folder, prompts, ("goal_prompt", "baseline_prompt", "projection"))
        return load_progress(folder)[0].to(device)
    if kind == "clip":
        from embodied_rl.rewards.clip import ClipJudge

        return ClipJudge(folder, prompts, device)
    from embodied_rl.rewards.vlm import VlmJudge

    _refuse(folder, prompts, ("baseline_prompt", "projection"))
    return VlmJudge(folder, prompts, device)


def reward_digest(folder: Path) -> str:
    """SHA-256 of what decides the model's judgements: the same for the same model, wherever it lies."""
    if reward_kind(folder) == "progress":
        from embodied_rl.rewards.progress import digest

        return digest(folder)
    files = {path for pattern in READS for path in folder.glob(pattern) if path.name != _CARD}
    return files_digest(sorted(files), folder)


def _refuse(folder: Path, prompts: PromptConfig, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(prompts, name) not in ("", None):
            what = name.replace("_", " ")
            raise UserError(f"a {what} does not apply to the reward model in {folder}: leave it out.")

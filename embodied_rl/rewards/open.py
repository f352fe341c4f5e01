"""Opens a reward model: what its folder holds, the digest of it, and the rewards that a run learns from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from embodied_rl.algorithms.config import PPOConfig
from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.hub import resolve
from embodied_rl.policies.checkpoints.integrity import files_digest
from embodied_rl.reward_model import RewardModel
from embodied_rl.rewards.clip import ClipJudge
from embodied_rl.rewards.config import AUTO, PromptConfig, RewardConfig
from embodied_rl.rewards.judge import Judge
from embodied_rl.rewards.pretrained import READS, need_transformers, read_config
from embodied_rl.rewards.progress import ProgressModel, digest, load_progress
from embodied_rl.rewards.relabel import ProgressReward, SuccessReward
from embodied_rl.rewards.vlm import VlmJudge
from embodied_rl.vec_env import EnvInfo

_CARD = "card.json"  # written beside a model, and no part of it


def open_reward(
    asked: RewardConfig, ppo: PPOConfig, device: str, info: EnvInfo, instructions: Sequence[str], *, rephrased: bool
) -> tuple[RewardModel, str]:
    """The reward model that a run with the envs of `info` asks for, and its digest.

    Args:
        instructions: of its tasks, as far as they are known before an episode.
        rephrased: whether episodes say them in other words.

    Raises:
        UserError: there is no whole model, it is another one than the run began with, it sees other pictures, or it
            cannot read an instruction.
    """
    folder = resolve(asked.model)
    found = reward_digest(folder)
    if asked.digest not in (AUTO, found):
        raise UserError(
            f"{asked.model} holds another reward model ({found[:12]}) than the run began with ({asked.digest[:12]}): "
            "put that one back, or begin a new run."
        )
    judge = open_judge(folder, asked, device)
    _check_pictures(judge, info, asked.model)
    if isinstance(judge, ProgressModel) and rephrased:
        raise UserError(
            f"the reward model in {asked.model} knows the words of its demonstrations, and --perturb instruction says "
            "it in others: leave 'instruction' or the model out."
        )
    if isinstance(judge, ClipJudge):
        judge.check(instructions)
    if asked.replace_env_reward:
        return SuccessReward(judge, gamma=ppo.gamma, weight=asked.weight, has_success=info.has_success), found
    return ProgressReward(judge, gamma=ppo.gamma, weight=asked.weight, bootstrap=ppo.bootstrap_truncated), found


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
        _refuse(folder, prompts, ("goal_prompt", "baseline_prompt", "projection"))
        return load_progress(folder)[0].to(device)
    if kind == "clip":
        return ClipJudge(folder, prompts, device)
    _refuse(folder, prompts, ("baseline_prompt", "projection"))
    return VlmJudge(folder, prompts, device)


def reward_digest(folder: Path) -> str:
    """SHA-256 of what decides the model's judgements: the same for the same model, wherever it lies."""
    if reward_kind(folder) == "progress":
        return digest(folder)
    files = {path for pattern in READS for path in folder.glob(pattern) if path.name != _CARD}
    return files_digest(sorted(files), folder)


def _refuse(folder: Path, prompts: PromptConfig, names: tuple[str, ...]) -> None:
    for name in names:
        if getattr(prompts, name) not in ("", None):
            what = name.replace("_", " ")
            raise UserError(f"a {what} does not apply to the reward model in {folder}: leave it out.")


def _check_pictures(judge: Judge, info: EnvInfo, model: str) -> None:
    if not info.cameras:
        raise UserError(f"the reward model in {model} judges images, and this suite has none: leave it out.")
    if not isinstance(judge, ProgressModel):
        return
    size = judge.config.image_size
    if len(info.cameras) != judge.config.cameras or info.image_shape != (size, size):
        raise UserError(
            f"the reward model in {model} sees {judge.config.cameras} cameras of {size} x {size} pixels, the "
            f"policy {len(info.cameras)} of {info.image_shape[0]} x {info.image_shape[1]}: train one on such data."
        )

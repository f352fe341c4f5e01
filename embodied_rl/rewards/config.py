"""Settings of the rewards that a run learns from, and of a progress model's training; imports nothing heavy."""

from __future__ import annotations

import math
from dataclasses import dataclass

from embodied_rl.algorithms.config import AlgorithmConfig, PPOConfig
from embodied_rl.errors import UserError
from embodied_rl.learner.guard import GuardConfig
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.utils.options import Expert

AUTO = "auto"
_REPLACE = "--reward.replace-env-reward"


@dataclass(frozen=True, kw_only=True)
class PromptConfig:
    """What a reward model of transformers is asked; one of `embodied-rl reward train` needs none of it."""

    goal_prompt: Expert[str] = ""
    """What the finished task looks like, in words; {instruction} stands for the task's instruction ('': the instruction
    itself)."""
    baseline_prompt: Expert[str] = ""
    """CLIP: what any image shows, and the goal differs from ('': 'a robot arm at a table')."""
    projection: Expert[float | None] = None
    """CLIP: how much of what has nothing to do with goal and baseline is left out, 0 to 1 (None: 0.5)."""

    def __post_init__(self) -> None:
        if self.projection is not None and not 0 <= self.projection <= 1:
            raise UserError(f"the projection of a CLIP reward must lie in [0, 1], got {self.projection}.")
        left = self.goal_prompt.replace("{instruction}", "") + self.baseline_prompt
        if "{" in left or "}" in left:
            raise UserError("a goal prompt may hold {instruction} and no other braces; a baseline prompt holds none.")

    def goal(self, instruction: str) -> str:
        """The goal of a task in words."""
        return self.goal_prompt.replace("{instruction}", instruction) if self.goal_prompt else instruction


@dataclass(frozen=True, kw_only=True)
class RewardConfig(PromptConfig):
    """A reward model beside the simulator's rewards, or in their place; with PPO."""

    model: Expert[str] = ""
    """Folder of a reward model: one that `embodied-rl reward train` made, a CLIP-like or an image-text-to-text model of
    transformers; or OWNER/NAME[@REVISION] of one on the Hugging Face hub ('': the simulator's rewards alone)."""
    weight: Expert[float] = 0.5
    """What the differences of its progress are multiplied with."""
    replace_env_reward: Expert[bool] = False
    """Learn from the model alone: an episode pays 1 where the model sees the task done in the images after its last
    step, and the differences, which sum to 0. The simulator's success is reported, and ends episodes as ever."""
    digest: Expert[str] = AUTO
    """SHA-256 of the model; auto: of the one in the folder. A folder with another model is refused."""

    def __post_init__(self) -> None:
        PromptConfig.__post_init__(self)
        if not 0 < self.weight < 2**20:
            raise UserError(f"--reward.weight must be above 0 and below 2^20, got {self.weight}.")
        if self.replace_env_reward and not self.model:
            raise UserError(f"{_REPLACE} learns from a reward model alone: name it with --reward.model.")
        used = self.goal_prompt or self.baseline_prompt or self.projection is not None
        if used and not self.model:
            raise UserError(
                "a goal prompt, a baseline prompt and a projection are for a reward model: name it with --reward.model."
            )


@dataclass(frozen=True, slots=True)
class RewardTrainConfig:
    """How a progress model learns; every one of them changes the result, except `threads`."""

    steps: int = 1500
    """Optimiser steps."""
    batch_size: int = 64
    """Frames a step; a quarter of them show success."""
    lr: float = 1e-3
    """Peak learning rate of AdamW; it rises over 50 steps and falls to 0 along a cosine."""
    shift: int = 3
    """Random shift of each image by up to this many pixels (0: none)."""
    success_frames: int = 2
    """Frames at the end of a demonstration that show success; as many before them again are left out."""
    validation: float = 0.2
    """Share of each instruction's episodes that are held out."""
    seed: int = 0
    """Seed of the initial weights, the split, the order of frames and the augmentation."""
    threads: int | None = None
    """CPU threads of torch (None: torch's own choice)."""

    def __post_init__(self) -> None:
        least = {"steps": 1, "batch_size": 4, "success_frames": 1, "shift": 0, "seed": 0, "threads": 1}
        for name, low in least.items():
            value = getattr(self, name)
            if value is not None and not low <= value < 2**31:
                raise UserError(f"--{name.replace('_', '-')} must be at least {low} and below 2^31, got {value}")
        if not 0 < self.lr < math.inf:
            raise UserError(f"--lr must be a finite number above 0, got {self.lr}")
        if not 0 <= self.validation < 1:
            raise UserError(f"--validation must be in [0, 1), got {self.validation}")


def check_reward(
    reward: RewardConfig,
    algorithm: AlgorithmConfig,
    rollout: RolloutConfig,
    guard: GuardConfig,
    *,
    env_reward: str,
    autotune: bool,
) -> None:
    """Raise UserError where a reward model does not go with the rest of a run.

    env_reward: what the simulator pays on the way to success; 'sparse': nothing.
    """
    if not reward.model:
        return
    if autotune:
        raise UserError("--autotune has no reward model in its trials: tune without --reward.model, then train.")
    if not isinstance(algorithm, PPOConfig):
        raise UserError(
            "--reward.model is built for PPO: GRPO compares episodes by their returns, which differences of a "
            "potential leave as they were, and imitate learns from successes. Use --algorithm ppo."
        )
    if reward.replace_env_reward:  # then nothing that is learned may depend on what the simulator says of success
        if algorithm.bootstrap_truncated:
            raise UserError(
                f"{_REPLACE}: whether an episode ended by success or by time, which --algorithm.bootstrap-truncated "
                "learns from, is the simulator's word: add --algorithm.no-bootstrap-truncated."
            )
        follows = {
            "--rollout.sampler adaptive draws episodes by the simulator's successes": rollout.sampler == "adaptive",
            "--guard.action roll_back takes updates back by the simulator's successes": guard.action == "roll_back",
            f"--env.reward {env_reward} is paid by the simulator": env_reward != "sparse",
        }
        for what, asked in follows.items():
            if asked:
                raise UserError(f"{what}, which {_REPLACE} does not learn from: leave one of the two out.")

"""Settings of the rewards that a run learns from."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_rl.errors import UserError

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class PromptConfig:
    """What a reward model of transformers is asked; one of `embodied-rl reward train` needs none of it."""

    goal_prompt: str = ""
    """What the finished task looks like, in words; {instruction} stands for the task's instruction ('': the instruction
    itself)."""
    baseline_prompt: str = ""
    """CLIP: what any picture shows, and the goal differs from ('': 'a robot arm at a table')."""
    projection: float | None = None
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

    model: str = ""
    """Folder of a reward model: one that `embodied-rl reward train` made, a CLIP-like or an image-text-to-text model of
    transformers; or OWNER/NAME[@REVISION] of one on the Hugging Face hub ('': the simulator's rewards alone)."""
    weight: float = 0.5
    """What the differences of its progress are multiplied with."""
    alone: bool = False
    """Learn from the model alone: an episode pays 1 where the model sees the task done in the pictures after its last
    step, and the differences, which sum to 0. The simulator's success is reported, and ends episodes as ever."""
    digest: str = AUTO
    """SHA-256 of the model; auto: of the one in the folder. A folder with another model is refused."""

    def __post_init__(self) -> None:
        PromptConfig.__post_init__(self)
        if not 0 < self.weight < 2**20:
            raise UserError(f"--reward.weight must be above 0 and below 2^20, got {self.weight}.")
        if self.alone and not self.model:
            raise UserError("--reward.alone learns from a reward model alone: name it with --reward.model.")
        used = self.goal_prompt or self.baseline_prompt or self.projection is not None
        if used and not self.model:
            raise UserError(
                "a goal prompt, a baseline prompt and a projection are for a reward model: name it with --reward.model."
            )


def check_reward(config: RewardConfig, *, autotune: bool, has_critic: bool) -> None:
    """Raise UserError where a reward model does not go with the rest of a run."""
    if config.model and autotune:
        raise UserError("--autotune has no reward model in its trials: tune without --reward.model, then train.")
    if config.model and not has_critic:
        raise UserError(
            "--reward.model adds differences of a potential, which leave the return of each episode that GRPO "
            "compares as it was: use --algorithm ppo."
        )

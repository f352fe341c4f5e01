"""Options of evaluation."""

from __future__ import annotations

from dataclasses import dataclass

from embodied_rl.errors import UserError
from embodied_rl.policy import ActMode


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Evaluation on held-out initial states: before the first update, while training, and at the end."""

    every: int = 10
    """Iterations between evaluations; 0 evaluates at the start and the end only."""
    states_per_task: int = 50
    """Held-out initial states of each task, one episode each."""
    mode: ActMode = "greedy"
    """Take the most likely action (greedy), or sample as in the rollout."""

    def __post_init__(self) -> None:
        if self.every < 0:
            raise UserError(f"--evaluation.every must not be negative, got {self.every}.")
        if self.states_per_task < 1:
            raise UserError(f"--evaluation.states-per-task must be at least 1, got {self.states_per_task}.")

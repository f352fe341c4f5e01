"""A tiny world and a tiny policy that keep the real contracts, for tests of everything around them.

World: a point in the unit square must reach one of the four corners; the picture shows where. Two control steps a
decision, a horizon of 8. Policy: two small layers over picture, position and instruction, 5 bins an action token; bit
for bit the same whatever the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from embodied_rl.policy import ActMode, PolicyTraits, masked_steps
from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, EvalOutput, Observation
from tests.toy_world import ACTION_DIM, BINS, CHUNK, HELDOUT, HORIZON, INSTRUCTIONS, SIZE, TASKS, ToyEnv

__all__ = ["ACTION_DIM", "BINS", "CHUNK", "HELDOUT", "HORIZON", "INSTRUCTIONS", "SIZE", "TASKS", "ToyEnv", "ToyPolicy"]


class ToyPolicy(nn.Module):
    """Independent categorical tokens; `replay` is {'tokens': uint8 [N, L]}."""

    traits = PolicyTraits(acts_in_parts=True, critic="value_head.")
    chunk_len = CHUNK
    action_dim = ACTION_DIM
    terms_per_step = ACTION_DIM

    def __init__(self, seed: int = 0, hidden: int = 32, *, with_value: bool = True) -> None:
        super().__init__()
        self.with_value = with_value
        inputs = SIZE * SIZE * 3 + 2 + 1
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.body = nn.Linear(inputs, hidden)
            self.head = nn.Linear(hidden, CHUNK * ACTION_DIM * BINS)
            self.value_head = nn.Linear(hidden, 1)
        nn.init.zeros_(self.value_head.weight)
        with torch.no_grad():
            self.head.weight.mul_(0.1)

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        obs.check()
        with torch.inference_mode():
            log_probs, value = self._forward(obs.images, obs.proprio, obs.instruction)
            if mode == "greedy":
                tokens = log_probs.argmax(-1)
            else:
                uniform = torch.from_numpy(rng.uniform(CHUNK * ACTION_DIM))[..., None]
                tokens = (log_probs.exp().cumsum(-1) < uniform).sum(-1).clamp(max=BINS - 1)
            log_prob = log_probs.gather(-1, tokens[..., None])[..., 0]
        actions = (tokens.reshape(-1, CHUNK, ACTION_DIM).float() * 2 / (BINS - 1) - 1).clone()
        return ActOutput(actions, log_prob, value, {"tokens": tokens.to(torch.uint8)})

    def evaluate(
        self, images: Tensor, proprio: Tensor, instruction: list[str], replay: dict[str, Tensor]
    ) -> EvalOutput:
        log_probs, value = self._forward(images, proprio, instruction)
        log_prob = log_probs.gather(-1, replay["tokens"].long()[..., None])[..., 0]
        return EvalOutput(log_prob, -(log_probs.exp() * log_probs).sum(-1), value)

    def sft_loss(
        self,
        images: Tensor,
        proprio: Tensor,
        instruction: list[str],
        actions: Tensor,
        drop_action_history: Tensor | None = None,
        action_mask: Tensor | None = None,
    ) -> Tensor:
        tokens = ((actions + 1) / 2 * (BINS - 1)).round().long().flatten(1)
        log_probs, _ = self._forward(images, proprio, instruction)
        return -masked_steps(log_probs.gather(-1, tokens[..., None])[..., 0], action_mask).mean()

    def _forward(self, images: Tensor, proprio: Tensor, instruction: list[str]) -> tuple[Tensor, Tensor | None]:
        text = torch.tensor([[float("touch" in words)] for words in instruction])
        x = torch.cat([images.flatten(1).float() / 255, proprio, text], dim=1)
        hidden = torch.tanh(row_linear(x, self.body))
        logits = row_linear(hidden, self.head).reshape(-1, CHUNK * ACTION_DIM, BINS)
        value = row_linear(hidden.detach(), self.value_head)[:, 0] if self.with_value else None
        return torch.log_softmax(logits, dim=-1), value


def row_linear(x: Tensor, layer: nn.Linear) -> Tensor:
    """A linear layer whose rows do not depend on the number of rows (matrix kernels change with it)."""
    return (x[:, None, :] * layer.weight).sum(dim=-1) + layer.bias

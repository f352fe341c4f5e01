"""A torch module behind the policy contract: its output through an action head, a critic, LoRA."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor, nn

from embodied_rl.errors import UserError
from embodied_rl.policies.nn.heads import make_value_head
from embodied_rl.policies.nn.lora import add_lora
from embodied_rl.policies.wrapped.heads import ActionHead, VelocityField
from embodied_rl.policy import ActMode, PolicyTraits, action_chunks, void_rows
from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, EvalOutput, Observation

_VALUE_HIDDEN = (256, 128)


def wrap_policy(module: nn.Module, head: ActionHead, *, lora_rank: int = 0) -> WrappedPolicy:
    """Make a torch module a policy that PPO, GRPO and imitation train.

    The module reads an `Observation` of N envs on its own device: images uint8 [N, V, H, W, 3], proprio float32 [N, P],
    N instructions, and state float32 [N, S] or None. The head says by which methods, and what they return. Its actions
    are in [-1, 1], which is mapped to the bounds that the env has for each number of an action.

    Args:
        module: Any network, in any number format. It stays in evaluation mode, without dropout: the learner must find
            the log-probs of the rollout again.
        head: What its output is: `ActionTokens`, `AutoregressiveTokens`, `GaussianActions` or `VelocityField`.
        lora_rank: Freeze the module and train adapters of its linear layers, and whole what is named action_head; 0
            trains all that requires a gradient.

    Raises:
        UserError: The module lacks a method, or has no linear layer to adapt.

    Example:
        >>> policy = erl.wrap_policy(MyVLA(), erl.VelocityField(env.info, chunk_len=8))
        >>> erl.train("tabletop_openvla_ppo", env=env, policy=policy)
    """
    for method in head.methods:
        if not callable(getattr(module, method, None)):
            raise UserError(f"{type(module).__name__} has no method {method}(), which {type(head).__name__} calls.")
    if lora_rank:
        if not any(isinstance(part, nn.Linear) for part in module.modules()):
            raise UserError(f"{type(module).__name__} has no linear layer that LoRA could adapt: leave lora_rank out.")
        add_lora(module, lora_rank)
    return WrappedPolicy(module, head)


class WrappedPolicy(nn.Module):
    """A network of one's own behind the policy contract (see `wrap_policy`).

    module: the network, with its trained weights. `replay` is the head's, and 'state' where the env shows one.
    """

    offset: Tensor
    scale: Tensor

    def __init__(self, module: nn.Module, head: ActionHead) -> None:
        super().__init__()
        self.module = module.eval()
        self.action_head = head
        # An env of images alone and a network without features have none; GRPO needs none.
        self.value_head = make_value_head(head.critic_dim, _VALUE_HIDDEN) if head.critic_dim else None
        # Buffers: a checkpoint keeps what its network's numbers meant.
        self.register_buffer("offset", (head.bounds[1] + head.bounds[0]) / 2)
        self.register_buffer("scale", (head.bounds[1] - head.bounds[0]) / 2)
        self.with_value = False
        self.chunk_len, self.horizon = head.chunk_len, head.horizon
        self.action_dim = self.terms_per_step = head.action_dim

    @property
    def class_name(self) -> str:
        """What it is, for a run's records and checkpoints."""
        network, head = type(self.module), type(self.action_head)
        return f"{network.__module__}.{network.__qualname__} with {head.__name__}"

    @property
    def traits(self) -> PolicyTraits:
        """See `PolicyTraits`."""
        draws = isinstance(self.action_head, VelocityField)
        return PolicyTraits(
            critic=None if self.value_head is None else "value_head.",
            noisy_imitation=draws,
            summarise=None if self.action_head.features is None else self._summarise,
        )

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def train(self, mode: bool = True) -> Self:
        """As of any module, but the network stays in evaluation mode: `act` and `evaluate` must agree."""
        super().train(mode)
        self.module.eval()
        return self

    @torch.no_grad()
    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        """Decide for N envs: 'sample' draws, 'greedy' takes the mode (of a velocity field the ODE's end)."""
        seen = self._seen(obs.images, obs.proprio, obs.instruction, obs.state)
        decided = self.action_head.decide(self.module, seen, rng, greedy=mode == "greedy")
        bounded = decided.actions.clamp(-1.0, 1.0) * self.scale + self.offset
        actions = void_rows(bounded, decided.actions, decided.log_prob)
        replay = decided.replay if seen.state is None else decided.replay | {"state": seen.state}
        return ActOutput(action_chunks(actions), decided.log_prob, self._value(seen, decided.features), replay)

    def evaluate(
        self, images: Tensor, proprio: Tensor, instruction: list[str], replay: dict[str, Tensor]
    ) -> EvalOutput:
        """Log-probs and entropies float32 [N, L] of recorded decisions, with gradients."""
        seen = self._seen(images, proprio, instruction, replay.get("state"))
        score = self.action_head.score(self.module, seen, replay)
        return EvalOutput(score.log_prob, score.entropy, self._value(seen, score.features))

    def sft_loss(
        self,
        images: Tensor,
        proprio: Tensor,
        instruction: list[str],
        actions: Tensor,
        drop_action_history: Tensor | None = None,
        action_mask: Tensor | None = None,
        rng: DecisionRng | None = None,
    ) -> Tensor:
        """The head's imitation loss; actions float32 [N, H, A] within the env's bounds, action_mask bool [N, H].

        drop_action_history changes nothing: what a network makes of earlier tokens is its own.
        """
        sizes = (self.action_head.horizon, self.action_dim)
        if actions.shape[1:] != sizes:
            raise UserError(f"imitation needs actions [N, {sizes[0]}, {sizes[1]}], got {list(actions.shape)}.")
        seen = self._seen(images, proprio, instruction, None)
        arguments = self.module, seen, self._normalised(actions), action_mask
        if isinstance(self.action_head, VelocityField):
            return self.action_head.loss(*arguments, rng)
        return self.action_head.loss(*arguments)

    def encode(self, actions: Tensor) -> Tensor:
        """Actions [N, H, A] -> action tokens int64 [N, H * A], of a head of tokens."""
        head: Any = self.action_head
        return head.encode(self._normalised(actions))

    @torch.no_grad()
    def _summarise(self, images: Tensor, proprio: Tensor, instruction: list[str]) -> Tensor:
        """What the network gives the critic to read: float32 [N, W]."""
        features = self.action_head.read(self.module, self._seen(images, proprio, instruction, None))[1]
        assert features is not None, "the head checks it"
        return features.float()

    def _normalised(self, actions: Tensor) -> Tensor:
        return (actions.to(self.device) - self.offset) / self.scale

    def _seen(self, images: Tensor, proprio: Tensor, instruction: list[str], state: Tensor | None) -> Observation:
        device = self.device
        state = None if state is None else state.to(device)
        return Observation(images.to(device), proprio.to(device), instruction, state)

    def _value(self, seen: Observation, features: Tensor | None) -> Tensor | None:
        """float32 [N]; None without a critic."""
        if not self.with_value:
            return None
        if self.value_head is None:
            raise UserError(
                f"PPO's critic has nothing to read, since the env shows images alone: let {type(self.module).__name__} "
                "give features (features=... of its action head), or train with GRPO."
            )
        if features is None:
            features = seen.proprio if seen.state is None else torch.cat([seen.proprio, seen.state], dim=1)
        return self.value_head(features.detach())[:, 0].float()

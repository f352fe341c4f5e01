"""OpenVLA-OFT behind the policy contract: the whole chunk in one forward pass, in `act` and in `evaluate` alike."""

from __future__ import annotations

import torch
from torch import Tensor

from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.policies.openvla_oft.config import OFTModelConfig
from embodied_rl.policies.openvla_oft.heads import ActionHead, LaplaceHead, TokenHead
from embodied_rl.policies.openvla_oft.model import OFTModel
from embodied_rl.policy import ActMode, action_chunks, void_rows
from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, EvalOutput, Observation


class OpenVLAOFTPolicy(OpenVLAPolicy):
    """OpenVLA's inputs and codecs, decoded in parallel.

    temperature: divides the logits, or multiplies the scale of the L1 head's Laplace distribution.
    `replay` is {'tokens': uint8 [N, L]}, or with the L1 head {'actions': float32 [N, L]}.
    """

    architecture = "openvla_oft"
    network = OFTModel
    config_class = OFTModelConfig
    config: OFTModelConfig
    model: OFTModel

    @property
    def head(self) -> ActionHead:
        """How actions are read from the hidden states."""
        return LaplaceHead(self.model) if self.config.head == "l1" else TokenHead(self.model)

    def _act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        uniform = torch.from_numpy(rng.uniform(self.config.num_tokens)).to(self.device) if mode == "sample" else None
        hidden = self._hidden(obs.images, obs.proprio, obs.instruction, compiled=self.compiled)
        drawn, log_prob = self.head.draw(hidden, uniform, self.temperature)
        value = self.model.value(hidden[:, 0]) if self.with_value else None
        decided = torch.from_numpy(self.to_env(self.head.normalised(drawn)))
        actions = action_chunks(void_rows(decided, drawn, log_prob))
        return ActOutput(actions, log_prob, value, {self.head.replay_key: drawn})

    def evaluate(
        self, images: Tensor, proprio: Tensor, instruction: list[str], replay: dict[str, Tensor]
    ) -> EvalOutput:
        """Log-probs and entropies float32 [N, L] of recorded decisions, with gradients, at `temperature`."""
        drawn = replay[self.head.replay_key].to(self.device)
        with self._precision():
            hidden = self._hidden(images, proprio, instruction)
            log_prob, entropy = self.head.score(hidden, drawn, self.temperature)
            value = self.model.value(hidden[:, 0]) if self.with_value else None
        return EvalOutput(log_prob, entropy, value)

    @torch.no_grad()
    def summarise(self, images: Tensor, proprio: Tensor, instruction: list[str]) -> Tensor:
        """Hidden state of the first action slot, which the critic reads too: float32 [N, D]."""
        with self._precision():
            return self._hidden(images, proprio, instruction)[:, 0].float()

    def sft_loss(
        self,
        images: Tensor,
        proprio: Tensor,
        instruction: list[str],
        actions: Tensor,
        drop_action_history: Tensor | None = None,
        action_mask: Tensor | None = None,
    ) -> Tensor:
        """Mean cross-entropy (nats a token, temperature 1), or mean absolute error with the L1 head.

        No row sees its own actions, so `drop_action_history` changes nothing. action_mask: bool [N, K], the control
        steps that count; None: all.
        """
        with self._precision():
            hidden = self._hidden(images, proprio, instruction)
            return self.head.loss(hidden, self.from_env(actions), action_mask)

    def _hidden(self, images: Tensor, proprio: Tensor, instruction: list[str], *, compiled: bool = False) -> Tensor:
        """Hidden states [N, L, D] of the action slots, shifted as the heads read them."""
        prompt = self._prompt(instruction, compiled=compiled)
        text = self.model.language_model.model.embed_tokens(prompt.ids)
        language = self.model.language(text, prompt.lengths, self.tokenizer.bos_id) if self.config.film else None
        prefix = self._prefix(images, proprio, language, compiled=compiled)
        return self.model.decode(prefix, text, prompt.lengths, prompt.padded, compiled=compiled)

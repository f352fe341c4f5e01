"""SmolVLA behind the policy contract: pi0's sampler, densities, critic and imitation around its own network."""

from __future__ import annotations

from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.policies.pi0.prompt import Pi0Prompt
from embodied_rl.policies.smolvla.config import SmolVLAModelConfig
from embodied_rl.policies.smolvla.model import SmolVLAModel

MAX_TOKENS = 48


class SmolVLAPrompt(Pi0Prompt):
    """Instructions to token ids as LeRobot makes them: with a line end, cut after 48 tokens."""

    def _find_bos(self) -> int:
        return 0  # pads only: what begins a prompt is up to the tokenizer

    def _plain(self, instruction: str) -> list[int]:
        ids = self._cache.get(instruction)
        if ids is None:
            text = instruction if instruction.endswith("\n") else f"{instruction}\n"
            ids = self._cache[instruction] = self.tokenizer.encode(text).ids[:MAX_TOKENS]
        return ids


class SmolVLAPolicy(Pi0Policy):
    """A SmolVLA policy (see `embodied_rl.policy.Policy`), used and trained as a `Pi0Policy`."""

    architecture = "smolvla"
    config_class = SmolVLAModelConfig
    model_class = SmolVLAModel
    prompt_class = SmolVLAPrompt
    config: SmolVLAModelConfig

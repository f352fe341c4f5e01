"""OpenVLA behind the policy contract: chunks of tokenised actions, decoded one token at a time with a key-value cache.

Rows of a batch may have prompts of different lengths. `evaluate` and `sft_loss` put a row's action tokens right after
its own prompt and the padding at the end of the row, where causal attention never looks. `act` appends the shared
cache slots after the longest prompt, masks the gap and keeps each row's own rotary positions. Both compute the same.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_rl.errors import UserError
from embodied_rl.policies.openvla.config import OpenVLAModelConfig
from embodied_rl.policies.openvla.decode import prefill_and_decode
from embodied_rl.policies.openvla.model import OpenVLAModel
from embodied_rl.policies.text import PromptTokenizer, build_word_tokenizer
from embodied_rl.policies.tokens import (
    NUM_BINS,
    Statistics,
    decode_tokens,
    encode_actions,
    gripper_from_env,
    gripper_to_env,
    identity_statistics,
    normalise_actions,
    unnormalise_actions,
)
from embodied_rl.policy import ActMode, action_array
from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, EvalOutput, Observation


class OpenVLAPolicy(nn.Module):
    """A native OpenVLA policy (see `embodied_rl.policy.Policy`).

    temperature: divides the logits of `act` (mode 'sample') and `evaluate`; log-probs are those of the tempered
        distribution over the 256 action tokens. with_value: fill `value`, from the hidden state at the last prompt
        token.
    `replay` is {'tokens': uint8 [N, L]}.
    """

    def __init__(
        self, config: OpenVLAModelConfig, tokenizer: PromptTokenizer, statistics: Statistics,
        *, unnorm_key: str = "default", temperature: float = 1.0, with_value: bool = False,
    ) -> None:
        super().__init__()
        if statistics.q01.shape != (config.action_dim,) or (
            config.use_proprio and statistics.proprio_mean.shape != (config.proprio_dim,)
        ):
            raise UserError(
                f"statistics are for {statistics.q01.shape[0]} action and {statistics.proprio_mean.shape[0]} proprio "
                f"dimensions, the model has {config.action_dim} and {config.proprio_dim}: "
                "use the statistics of the data set that the model is for"
            )
        self.config = config
        self.model = OpenVLAModel(config)
        self.tokenizer = tokenizer
        self.statistics = statistics
        self.unnorm_key = unnorm_key
        self.temperature = temperature
        self.with_value = with_value
        self.chunk_len = config.chunk_len
        self.action_dim = config.action_dim
        self.terms_per_step = config.action_dim

    @classmethod
    def fresh(
        cls, config: OpenVLAModelConfig, instructions: Iterable[str], statistics: Statistics | None = None,
        *, seed: int = 0, unnorm_key: str = "default",
    ) -> OpenVLAPolicy:
        """A randomly initialised policy whose word tokenizer knows `instructions`; `seed` fixes the weights."""
        text_rows = config.action_token_end - NUM_BINS
        tokenizer = PromptTokenizer(build_word_tokenizer(instructions, text_rows), config.append_token)
        statistics = statistics or identity_statistics(config.action_dim, config.proprio_dim)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(config, tokenizer, statistics, unnorm_key=unnorm_key)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.projector.fc1.weight.device

    @torch.inference_mode()
    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        """Decide for N slots: sample by inverse CDF from one uniform number a token, or take each token's argmax.

        'greedy' reports log-probs of the same tempered distribution.
        """
        count = self.config.num_tokens
        uniform = torch.from_numpy(rng.uniform(count)).to(self.device) if mode == "sample" else None
        images = torch.from_numpy(obs.images)
        prefix = self._prefix(images, torch.from_numpy(obs.proprio))
        ids, lengths = self._prompt(obs.instruction)
        prompt = self.model.language_model.model.embed_tokens(ids)
        decoded = prefill_and_decode(
            self.model, torch.cat([prefix, prompt], dim=1), lengths + prefix.shape[1], uniform, self.temperature
        )
        value = self.model.value(decoded.prompt_hidden) if self.with_value else None
        tokens = decoded.tokens.to(torch.uint8)
        actions = action_array(self._actions(tokens))
        return ActOutput(actions, decoded.log_prob, value, {"tokens": tokens})

    def evaluate(
        self, images: Tensor, proprio: Tensor, instruction: list[str], replay: dict[str, Tensor]
    ) -> EvalOutput:
        """Log-probs and entropies float32 [N, L] of recorded tokens, with gradients, at `temperature`."""
        tokens = replay["tokens"].to(self.device).long()
        hidden = self._teacher_forced(images, proprio, instruction, tokens)
        log_probs = F.log_softmax(self.model.action_logits(hidden) / self.temperature, dim=-1)
        chosen = log_probs.gather(-1, tokens[..., None])[..., 0]
        entropy = -(log_probs.exp() * log_probs).sum(dim=-1)
        value = self.model.value(hidden[:, 0]) if self.with_value else None
        return EvalOutput(chosen, entropy, value)

    def sft_loss(
        self, images: Tensor, proprio: Tensor, instruction: list[str], actions: Tensor, blind: Tensor | None = None
    ) -> Tensor:
        """Mean cross-entropy (nats a token, temperature 1) of `actions` float32 [N, K, A] in [-1, 1].

        blind: bool [N], rows whose tokens are predicted without their earlier action tokens. Within a chunk a token is
        mostly a copy of the one a step before, so a model that always sees it learns to copy before it learns to look.
        """
        tokens = self.encode(actions).to(self.device).long()
        hidden = self._teacher_forced(images, proprio, instruction, tokens, blind)
        logits = self.model.action_logits(hidden)
        return F.cross_entropy(logits.flatten(0, 1), tokens.flatten())

    def encode(self, actions: Tensor) -> Tensor:
        """The simulator's actions [N, K, A] -> action tokens uint8 [N, L], ordered by control step."""
        values = actions.detach().cpu().numpy()
        if values.shape[1:] != (self.chunk_len, self.action_dim):
            raise ValueError(f"actions must be [N,{self.chunk_len},{self.action_dim}], got {values.shape}")
        if self.config.gripper_zero_one:
            values = gripper_from_env(values)
        tokens = encode_actions(normalise_actions(values, self.statistics))
        return torch.from_numpy(tokens).flatten(1)

    def _actions(self, tokens: Tensor) -> np.ndarray:
        """Action tokens uint8 [N, L] -> the simulator's actions float32 [N, K, A] in [-1, 1]."""
        normalised = decode_tokens(tokens.cpu().numpy()).reshape(-1, self.chunk_len, self.action_dim)
        actions = unnormalise_actions(normalised, self.statistics)
        if self.config.gripper_zero_one:
            actions = gripper_to_env(actions)
        return np.clip(actions, -1.0, 1.0)

    def _prefix(self, images: Tensor, proprio: Tensor) -> Tensor:
        """Raw images and proprio, on any device -> embedded BOS, patches and proprio token."""
        size, cameras = self.config.image_size, self.config.num_cameras
        if images.dtype != torch.uint8 or tuple(images.shape[1:]) != (cameras, size, size, 3):
            raise ValueError(
                f"the policy needs uint8 images [N,{cameras},{size},{size},3], got {images.dtype} "
                f"{tuple(images.shape)}: render that many cameras at that size"
            )
        if self.config.use_proprio and proprio.shape[1] != self.config.proprio_dim:
            raise ValueError(f"the policy needs proprio [N,{self.config.proprio_dim}], got {tuple(proprio.shape)}")
        mean = torch.from_numpy(self.statistics.proprio_mean).to(self.device)
        std = torch.from_numpy(self.statistics.proprio_std).to(self.device)
        normalised = (proprio.to(self.device) - mean) / std if self.config.use_proprio else proprio
        return self.model.embed_prefix(images.to(self.device), normalised, self.tokenizer.bos_id)

    def _prompt(self, instruction: list[str]) -> tuple[Tensor, Tensor]:
        """Prompt ids [N, T] (padded at the end) and lengths [N] on the policy's device."""
        ids, lengths = self.tokenizer.batch(instruction)
        return torch.from_numpy(ids).to(self.device), torch.from_numpy(lengths).to(self.device)

    def _teacher_forced(
        self, images: Tensor, proprio: Tensor, instruction: list[str], tokens: Tensor, blind: Tensor | None = None
    ) -> Tensor:
        """Hidden states [N, L, D] from which each of `tokens` [N, L] is predicted, given the tokens before it.

        In the rows of `blind` the embeddings of action tokens are zero; what marks their slots stays.
        """
        prompt, lengths = self._prompt(instruction)
        prefix = self._prefix(images, proprio)
        decoder = self.model.language_model.model
        count = tokens.shape[1]
        at = lengths[:, None] + torch.arange(count - 1, device=self.device)
        ids = F.pad(prompt, (0, count - 1)).scatter(1, at, tokens[:, :-1] + self.model.action_rows.start)
        text = decoder.embed_tokens(ids)
        which = torch.zeros_like(ids).scatter(1, at, torch.arange(1, count, device=self.device).expand_as(at))
        if blind is not None:
            hidden_inputs = (which > 0) & blind.to(self.device)[:, None]
            text = text.masked_fill(hidden_inputs[..., None], 0.0)
        slots = self.model.embed_slots()
        if slots is not None:
            text = text + F.embedding(which, slots)
        x = torch.cat([prefix, text], dim=1)
        read = prefix.shape[1] - 1 + lengths[:, None] + torch.arange(count, device=self.device)
        return decoder(x, decoder.rope(x.shape[1], x.device), read=read)

"""OpenVLA behind the policy contract: chunks of tokenised actions, decoded one token at a time with a key-value cache.

Rows of a batch may have prompts of different lengths. `evaluate` and `sft_loss` put a row's action tokens right after
its own prompt and the padding at the end of the row, where causal attention never looks. `act` appends the shared
cache slots after the longest prompt, masks the gap and keeps each row's own rotary positions. Both compute the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.adapters import Base
from embodied_rl.policies.compile import pad_prompt
from embodied_rl.policies.efficient import EfficientParts
from embodied_rl.policies.openvla.config import OpenVLAModelConfig
from embodied_rl.policies.openvla.decode import prefill_and_decode, token_scores
from embodied_rl.policies.openvla.model import OpenVLAModel
from embodied_rl.policies.preprocessing.crop import center_crop
from embodied_rl.policies.preprocessing.text import PromptTokenizer, build_word_tokenizer
from embodied_rl.policies.preprocessing.tokens import (
    NUM_BINS,
    Statistics,
    decode_tokens,
    encode_actions,
    gripper_from_env,
    gripper_to_env,
    identity_statistics,
    normalise_actions,
    statistics_from_json,
    statistics_to_json,
    unnormalise_actions,
)
from embodied_rl.policies.steering import Steering
from embodied_rl.policy import ActMode, PolicyTraits, Proposals, action_chunks, masked_steps, void_rows
from embodied_rl.rng import DecisionRng
from embodied_rl.types import ActOutput, EvalOutput, Observation, concatenate, take_rows


@dataclass(frozen=True, slots=True)
class Prompt:
    """Prompts of N rows without BOS. ids: int64 [N, T], padded at the end; lengths: int64 [N]; padded: any row is."""

    ids: Tensor
    lengths: Tensor
    padded: bool


class OpenVLAPolicy(nn.Module):
    """A native OpenVLA policy (see `embodied_rl.policy.Policy`).

    temperature: divides the logits of `act` (mode 'sample') and `evaluate`; log-probs are those of the tempered
        distribution over the 256 action tokens. with_value: fill `value`, from the hidden state at the last prompt
        token.
    steering: chooses among its chunks, None where it acts by the first one.
    mixed_precision: multiply in bfloat16 where that is safe (autocast); logits are always float32.
    compiled: `act` runs its network through `torch.compile`, see `policies.compiled`; `evaluate` does not.
    norm_stats: every entry of the checkpoint's dataset statistics as it came; `statistics` is the one in use.
    public: small files of the published checkpoint that the policy came from, to be passed on. base: what its LoRA
        adapters adapt, None without adapters.
    `replay` is {'tokens': uint8 [N, L]}.
    """

    architecture = "openvla"
    network: type[OpenVLAModel] = OpenVLAModel
    config_class: type[OpenVLAModelConfig] = OpenVLAModelConfig

    def __init__(
        self,
        config: OpenVLAModelConfig,
        tokenizer: PromptTokenizer,
        statistics: Statistics,
        *,
        unnorm_key: str = "default",
        temperature: float = 1.0,
        norm_stats: dict[str, Any] | None = None,
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
        self.model = self.network(config)
        self.tokenizer = tokenizer
        self.statistics = statistics
        self.unnorm_key = unnorm_key
        self.norm_stats = norm_stats or {unnorm_key: statistics_to_json(statistics)}
        self.temperature = temperature
        self.with_value = False
        self.mixed_precision = False
        self.compiled = False
        self.steering: Steering | None = None
        self.source_files: tuple[Path, ...] = ()
        self.public: dict[str, bytes] = {}
        self.base: Base | None = None
        self.resized: frozenset[str] = frozenset()
        self.chunk_len = config.chunk_len
        self.action_dim = config.action_dim
        self.terms_per_step = config.action_dim

    @classmethod
    def fresh(
        cls,
        config: OpenVLAModelConfig,
        instructions: Iterable[str],
        statistics: Statistics | None = None,
        *,
        seed: int = 0,
        unnorm_key: str = "default",
    ) -> Self:
        """A randomly initialised policy whose word tokenizer knows `instructions`; `seed` fixes the weights."""
        text_rows = config.action_token_end - NUM_BINS
        tokenizer = PromptTokenizer(build_word_tokenizer(instructions, text_rows), config.append_token)
        statistics = statistics or identity_statistics(config.action_dim, config.proprio_dim)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return cls(config, tokenizer, statistics, unnorm_key=unnorm_key)

    @property
    def traits(self) -> PolicyTraits:
        """See `PolicyTraits`."""
        return PolicyTraits(
            acts_in_parts=True,
            compiled=self.compiled,
            critic="model.value_head.",
            propose=self.propose,
            summarise=self.summarise,
        )

    @property
    def center_crop(self) -> float | None:
        """Share of each image's area that the policy itself cuts out of the middle; None for the whole image."""
        return self.config.center_crop

    @property
    def uses_proprio(self) -> bool:
        """Whether it reads the proprio, or its critic does."""
        return self.config.use_proprio or self.steering is not None

    @property
    def gripper_zero_one(self) -> bool:
        """Whether its data said 1 = open and 0 = closed, and not -1 and 1."""
        return self.config.gripper_zero_one

    @property
    def statistics_keys(self) -> list[str]:
        """Data sets whose statistics it has."""
        return sorted(self.norm_stats)

    def select(self, key: str) -> None:
        """Act for, and learn from, the robot of a data set, by its statistics; UserError without such."""
        norm = self.config.proprio_norm if self.config.use_proprio else None
        self.statistics, self.unnorm_key = statistics_from_json(self.norm_stats, key, norm), key

    @property
    def action_range(self) -> tuple[np.ndarray, np.ndarray]:
        """What the statistics say about the ends of each action dimension, float32 [A] twice."""
        return self.statistics.q01, self.statistics.q99

    @property
    def efficient_parts(self) -> EfficientParts:
        """See `EfficientParts`."""
        visual = self.config.featurizer.num_patches * self.config.num_cameras
        return EfficientParts([self.model.language_model.model], 1, visual, 0)  # BOS comes first

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.projector.fc1.weight.device

    def public_config(self) -> dict[str, Any]:
        """The config.json of the published checkpoint that the policy came from; empty when there was none."""
        return json.loads(self.public.get("config.json", b"{}"))

    def act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        """Decide for N envs: sample by inverse CDF from one uniform number a token, or take each token's argmax.

        'greedy' reports log-probs of the same tempered distribution.
        """
        if self.steering is not None:
            return self.steering.act(self, obs, rng, mode)
        with torch.inference_mode(), self._precision():
            return self._act(obs, rng, mode)

    def propose(self, obs: Observation, rng: DecisionRng, mode: ActMode, count: int) -> Proposals:
        """See `PolicyTraits.propose`: chunks after the first are sampled at `temperature`, in either mode."""
        rows = len(obs.instruction)
        each = rng.candidates(count)
        further = np.arange(rows * count).reshape(rows, count)[:, 1:].reshape(-1)
        with torch.no_grad(), self._precision():
            first = self._act(obs, rng, mode)
            summary = self._summary(obs.images, obs.proprio, obs.instruction)
            if count == 1:
                return Proposals(first, summary.float())
            again = obs.rows((further // count).tolist())
            rest = self._act(again, DecisionRng(each.seed[further], each.decision[further]), "sample")
        order = np.concatenate([np.arange(rows) * count, further]).argsort()
        return Proposals(take_rows(concatenate([first, rest]), order.tolist()), summary.float())

    def summarise(self, images: Tensor, proprio: Tensor, instruction: list[str]) -> Tensor:
        """See `PolicyTraits.summarise`."""
        with torch.no_grad(), self._precision():
            return self._summary(images, proprio, instruction).float()

    def _summary(self, images: Tensor, proprio: Tensor, instruction: list[str]) -> Tensor:
        """[N, D]: the hidden state at the last token of the prompt, which a value head reads."""
        nothing = torch.zeros((len(instruction), 1), dtype=torch.int64, device=self.device)
        return self._teacher_forced(images, proprio, instruction, nothing)[:, 0]

    def _act(self, obs: Observation, rng: DecisionRng, mode: ActMode) -> ActOutput:
        count = self.config.num_tokens
        uniform = torch.from_numpy(rng.uniform(count)).to(self.device) if mode == "sample" else None
        prefix = self._prefix(obs.images, obs.proprio, compiled=self.compiled)
        prompt = self._prompt(obs.instruction, compiled=self.compiled)
        text = self.model.language_model.model.embed_tokens(prompt.ids)
        prefix, first = self.model.prune(prefix, text, prompt.lengths)
        decoded = prefill_and_decode(
            self.model,
            torch.cat([prefix, text], dim=1),
            prompt.lengths + prefix.shape[1],
            prompt.padded,
            uniform,
            self.temperature,
            first,
            compiled=self.compiled,
        )
        value = self.model.value(decoded.prompt_hidden) if self.with_value else None
        tokens = decoded.tokens.to(torch.uint8)
        decided = torch.from_numpy(self.to_env(decode_tokens(tokens.cpu().numpy())))
        actions = action_chunks(void_rows(decided, decoded.log_prob))
        return ActOutput(actions, decoded.log_prob, value, {"tokens": tokens})

    def evaluate(
        self, images: Tensor, proprio: Tensor, instruction: list[str], replay: dict[str, Tensor]
    ) -> EvalOutput:
        """Log-probs and entropies float32 [N, L] of recorded tokens, with gradients, at `temperature`."""
        tokens = replay["tokens"].to(self.device).long()
        with self._precision():
            hidden = self._teacher_forced(images, proprio, instruction, tokens)
            log_prob, entropy = token_scores(self.model.action_logits(hidden), tokens, self.temperature)
            value = self.model.value(hidden[:, 0]) if self.with_value else None
        return EvalOutput(log_prob, entropy, value)

    def sft_loss(
        self,
        images: Tensor,
        proprio: Tensor,
        instruction: list[str],
        actions: Tensor,
        drop_action_history: Tensor | None = None,
        action_mask: Tensor | None = None,
    ) -> Tensor:
        """Mean cross-entropy (nats a token, temperature 1) of `actions` float32 [N, K, A] in [-1, 1].

        drop_action_history: bool [N], rows whose tokens are predicted without their earlier action tokens. Within a
        chunk a token is mostly a copy of the one a step before, so a model that always sees it learns to copy before
        it learns to look.
        action_mask: bool [N, K], the control steps that count; None: all."""
        tokens = self.encode(actions).to(self.device).long()
        with self._precision():
            hidden = self._teacher_forced(images, proprio, instruction, tokens, drop_action_history)
            logits = self.model.action_logits(hidden)
        return F.cross_entropy(masked_steps(logits, action_mask), masked_steps(tokens, action_mask))

    def encode(self, actions: Tensor) -> Tensor:
        """The simulator's actions [N, K, A] -> action tokens uint8 [N, L], ordered by control step."""
        return torch.from_numpy(encode_actions(self.from_env(actions))).flatten(1)

    def from_env(self, actions: Tensor) -> np.ndarray:
        """The simulator's actions [N, K, A] -> what the network predicts: normalised, float32 [N, K, A] in [-1, 1]."""
        values = actions.detach().cpu().numpy()
        if values.shape[1:] != (self.chunk_len, self.action_dim):
            raise ValueError(f"actions must be [N,{self.chunk_len},{self.action_dim}], got {values.shape}")
        if self.config.gripper_zero_one:
            values = gripper_from_env(values)
        return normalise_actions(values, self.statistics)

    def to_env(self, normalised: np.ndarray) -> np.ndarray:
        """Normalised actions [N, L] -> the simulator's actions float32 [N, K, A]."""
        actions = unnormalise_actions(normalised.reshape(-1, self.chunk_len, self.action_dim), self.statistics)
        if self.config.gripper_zero_one:
            actions = gripper_to_env(actions)
        return np.clip(actions, -1.0, 1.0) if self.config.clip_actions else actions

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, torch.bfloat16) if self.mixed_precision else nullcontext()

    def _prefix(
        self, images: Tensor, proprio: Tensor, language: Tensor | None = None, *, compiled: bool = False
    ) -> Tensor:
        """Raw images and proprio, on any device -> embedded BOS, patches and proprio token."""
        config, size, cameras = self.config, self.config.image_size, self.config.num_cameras
        if images.dtype != torch.uint8 or tuple(images.shape[1:]) != (cameras, size, size, 3):
            raise ValueError(
                f"the policy needs uint8 images [N,{cameras},{size},{size},3], got {images.dtype} "
                f"{tuple(images.shape)}: render that many cameras at that size"
            )
        if config.use_proprio:
            if proprio.shape[1] != config.proprio_dim:
                raise ValueError(f"the policy needs proprio [N,{config.proprio_dim}], got {tuple(proprio.shape)}")
            proprio = self.statistics.normalise_proprio(proprio.to(self.device))
        images = images.to(self.device)
        if config.center_crop is not None:
            images = center_crop(images.flatten(0, 1), config.center_crop).view_as(images)
        return self.model.embed_prefix(images, proprio, self.tokenizer.bos_id, language, compiled=compiled)

    def _prompt(self, instruction: list[str], *, compiled: bool = False) -> Prompt:
        """The prompts of some rows, on the policy's device; compiled: of a width that compiled code reads."""
        array, lengths = self.tokenizer.batch(instruction)
        ids = torch.from_numpy(array).to(self.device)
        if compiled:
            ids = pad_prompt(ids)
        padded = bool((lengths < ids.shape[1]).any())  # known here; asking the device would make the CPU wait for it
        return Prompt(ids, torch.from_numpy(lengths).to(self.device), padded)

    def _teacher_forced(
        self,
        images: Tensor,
        proprio: Tensor,
        instruction: list[str],
        tokens: Tensor,
        drop_action_history: Tensor | None = None,
        action_mask: Tensor | None = None,
    ) -> Tensor:
        """Hidden states [N, L, D] from which each of `tokens` [N, L] is predicted, given the tokens before it.

        In the rows of `drop_action_history` the embeddings of action tokens are zero; what marks their slots stays.
        """
        prompt = self._prompt(instruction)
        prefix = self._prefix(images, proprio)
        decoder = self.model.language_model.model
        count = tokens.shape[1]
        at = prompt.lengths[:, None] + torch.arange(count - 1, device=self.device)
        ids = F.pad(prompt.ids, (0, count - 1)).scatter(1, at, tokens[:, :-1] + self.model.action_rows.start)
        text = decoder.embed_tokens(ids)
        prefix, first = self.model.prune(prefix, text[:, : prompt.ids.shape[1]], prompt.lengths)
        which = torch.zeros_like(ids).scatter(1, at, torch.arange(1, count, device=self.device).expand_as(at))
        if drop_action_history is not None:
            hidden_inputs = (which > 0) & drop_action_history.to(self.device)[:, None]
            text = text.masked_fill(hidden_inputs[..., None], 0.0)
        slots = self.model.embed_slots()
        if slots is not None:
            text = text + F.embedding(which, slots)
        x = torch.cat([prefix, text], dim=1)
        read = prefix.shape[1] - 1 + prompt.lengths[:, None] + torch.arange(count, device=self.device)
        return decoder(x, decoder.rope(x.shape[1], x.device, first), read=read)

"""The pi0 and pi0.5 network: what an observation costs once, and what each denoising step costs.

Once a decision the vision tower and the language model turn images and prompt into keys and values, to which pi0's
state token is added. A denoising step is the action expert over H action tokens that attend to these and to each other.
Nothing of the prefix looks at the actions, so it is shared by all steps (Black et al. 2024, appendix B).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_rl.policies.efficient import VisualPruner
from embodied_rl.policies.nn.decoder import Cache, Decoder, GradientKV, KVCache, Rope
from embodied_rl.policies.nn.heads import make_value_head
from embodied_rl.policies.nn.linear import Linear
from embodied_rl.policies.nn.vision import ViT, normalise_images
from embodied_rl.policies.pi0.config import Pi0ModelConfig

# Periods of the time features, in units of the denoising time.
_MIN_PERIOD, _MAX_PERIOD = 4e-3, 4.0
_POSITION_STD = 0.3
_EMBEDDING_STD = 0.5


@dataclass(frozen=True, slots=True)
class Prefix:
    """What all denoising steps of N observations read.

    cache: keys and values of S slots. valid: bool [N,S], or None when no slot is padding. rope: factors of the action
    tokens' positions, [N,H,head_dim]. summary: [N,D] mean hidden state of images and prompt, or None if not asked for.
    expert: what stands in for the action expert in these steps, if anything does (see `prune.DenoiseReuse`).
    """

    cache: Cache
    valid: Tensor | None
    rope: Rope
    summary: Tensor | None
    expert: Callable[..., Tensor] | None = None


@dataclass(frozen=True, slots=True)
class LanguagePart:
    """The part of a prefix that images and prompt alone decide: keys and values of S slots.

    lengths: slots in use by row, the first ones. valid, summary: as in `Prefix`.
    """

    cache: Cache
    lengths: list[int]
    valid: Tensor | None
    summary: Tensor | None


class Pi0Model(nn.Module):
    """Tensors in, velocities out; no prompts, normalisation or sampling. Shapes as in `embodied_rl.policies.flow`."""

    causal_actions = False
    """Whether an action token sees only itself and the ones before it, or all of its sequence."""
    pruner: VisualPruner | None = None
    """Leaves out visual tokens, for evaluation and serving."""

    def __init__(self, config: Pi0ModelConfig) -> None:
        super().__init__()
        self.config = config
        width, dim = config.expert.dim, config.decoder.dim
        self.vision = ViT(config.vision)
        self.projector = Linear(config.vision.dim, dim)
        self.language = Decoder(config.decoder)
        self.expert = Decoder(config.expert)
        self.action_in_proj = Linear(config.max_action_dim, width)
        self.action_out_proj = Linear(width, config.max_action_dim)
        if config.adaptive:
            self.time_mlp_in = Linear(width, width)
            self.time_mlp_out = Linear(width, width)
        else:
            self.action_time_mlp_in = Linear(2 * width, width)
            self.action_time_mlp_out = Linear(width, width)
        if config.state_input == "token":
            self.state_proj = Linear(config.max_state_dim, width)
        if config.expert_head_rows:
            self.expert_head = Linear(width, config.expert_head_rows, bias=False).requires_grad_(False)
        if config.learned_positions:
            self.camera_embed = nn.Parameter(torch.randn(config.max_cameras or config.num_cameras, dim) * _POSITION_STD)
            self.step_embed = nn.Parameter(torch.randn(config.horizon, width) * _POSITION_STD)
        heads = make_heads(config)
        self.value_head, self.noise_head = heads["value_head"], heads["noise_head"]
        # embeddings are scaled by sqrt(dim) where they are used
        nn.init.normal_(self.language.embed_tokens.weight, std=_EMBEDDING_STD / math.sqrt(dim))

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.projector.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Number format of the weights."""
        return self.projector.weight.dtype

    def freeze_language_model(self) -> None:
        """Train the action expert and the heads only, as pi_RL does."""
        for parameter in self.prefix_parameters():
            parameter.requires_grad_(False)

    @property
    def idle_layers(self) -> frozenset[str]:
        """Linear layers that no action needs: the language model's last layer only makes keys and values."""
        last = f"language.layers.{self.config.decoder.layers - 1}"
        parts = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
        return frozenset(f"{last}.{part}" for part in parts)

    def prefix_parameters(self) -> list[nn.Parameter]:
        """What `read_language` computes with."""
        own = [self.camera_embed] if self.config.learned_positions else []
        return [*self.vision.parameters(), *self.projector.parameters(), *self.language.parameters(), *own]

    def embed_images(self, images: Tensor) -> Tensor:
        """uint8 [B,H,W,3] -> what the language model reads of each [B,P,D]."""
        return self.projector(self.vision(normalise_images(images, self.config.vision, self.dtype)))

    def embed_prefix(self, images: Tensor, ids: Tensor) -> Tensor:
        """uint8 [N,V,H,W,3] and prompt ids [N,T] -> embeddings of patches, camera by camera, and prompt [N,S,D]."""
        rows, cameras = images.shape[:2]
        patches = self.embed_images(images.flatten(0, 1)).unflatten(0, (rows, cameras))
        if self.config.learned_positions:
            seen = self.config.cameras or tuple(range(cameras))
            embed = self.camera_embed if len(seen) == len(self.camera_embed) else self.camera_embed[list(seen)]
            patches = patches + embed[:, None]
        text = self.language.embed_tokens(ids) * math.sqrt(self.config.decoder.dim)
        return torch.cat([patches.flatten(1, 2), text], dim=1)

    def read_language(
        self,
        images: Tensor,
        ids: Tensor,
        lengths: Sequence[int],
        *,
        suffixes: int,
        summarise: bool = False,
        attach: bool = False,
    ) -> LanguagePart:
        """Compute what the denoising steps of N observations share but for the state; `finish_prefix` adds that.

        ids: [N,T], row i valid up to lengths[i]. suffixes: action sequences an observation that one `velocity` call
        will hold (M). summarise: also fill `summary`, whose gradients flow with `attach`.
        """
        x, first = self.embed_prefix(images, ids), None
        if self.pruner is not None:
            patches, text = x.split([x.shape[1] - ids.shape[1], ids.shape[1]], dim=1)
            patches, first = self.pruner(patches, text, torch.tensor(lengths, device=x.device))
            x = torch.cat([patches, text], dim=1)
        rows, slots = x.shape[:2]
        used = [length + slots - ids.shape[1] for length in lengths]
        valid = valid_slots(used, slots, x.device)
        cache = self._new_cache(x, rows, slots + 1 + suffixes * self.config.horizon)
        here, mask = self.language.rope(slots, x.device, first), _key_mask(valid)
        hidden = self.language.fill(x, here, mask, cache, summarise=summarise, attach=attach)
        if hidden is None:
            return LanguagePart(cache, used, valid, None)
        weight = torch.ones_like(hidden[..., :1]) if valid is None else valid[..., None].to(hidden.dtype)
        return LanguagePart(cache, used, valid, (hidden * weight).sum(dim=1) / weight.sum(dim=1))

    def finish_prefix(self, part: LanguagePart, state: Tensor | None) -> Prefix:
        """Add the state [N, max_state_dim] where it is a token, and the positions of the action tokens."""
        gap = 0 if self.pruner is None else self.pruner.dropped  # positions are those of the whole sequence
        cache, valid, start = part.cache, part.valid, torch.tensor(part.lengths, device=self.device) + gap
        table = self.language.rope(cache.length + gap + 1 + self.config.horizon, start.device)
        if state is not None:
            cache, start, valid = self._add_state(state, table, cache, start, valid)
        positions = start[:, None] + torch.arange(self.config.horizon, device=start.device)
        return Prefix(cache, valid, table.at(positions), part.summary)

    def _new_cache(self, like: Tensor, rows: int, slots: int) -> Cache:
        return GradientKV() if torch.is_grad_enabled() else KVCache(self.language.config, rows, slots, like)

    def _add_state(
        self, state: Tensor, table: Rope, cache: Cache, start: Tensor, valid: Tensor | None
    ) -> tuple[Cache, Tensor, Tensor | None]:
        """Add the state token, which sees images and prompt and not the actions."""
        if valid is not None:
            valid = F.pad(valid, (0, 1), value=True)
        cache = cache.branch()
        token = self.state_proj(state.to(self.dtype))[:, None]
        self._state_reader().fill(token, table.at(start[:, None]), _key_mask(valid), cache)
        return cache, start + 1, valid

    def _state_reader(self) -> Decoder:
        return self.expert

    def velocity(self, prefix: Prefix, x: Tensor, time: Tensor) -> tuple[Tensor, Tensor]:
        """Velocities float32 [N,M,H,D] at points x [N,M,H,D] and times [N,M], and the hidden states [N,M,H,W].

        Sequence m of row i attends to prefix i and to itself.
        """
        count, horizon = x.shape[1:3]
        tokens, condition = self._embed_actions(x, time)
        rope = Rope(prefix.rope.cos.repeat(1, count, 1), prefix.rope.sin.repeat(1, count, 1))
        mask = _suffix_mask(prefix, count, horizon, causal=self.causal_actions)
        expert = self.expert if prefix.expert is None else prefix.expert
        hidden = expert(tokens, rope, mask, prefix.cache.branch(), causal=False, condition=condition)
        hidden = hidden.unflatten(1, (count, horizon))
        return self.action_out_proj(hidden).float(), hidden

    def _embed_actions(self, x: Tensor, time: Tensor) -> tuple[Tensor, Tensor | None]:
        """Action tokens [N,M*H,W], and the condition of the expert's norms [N,M,W] (pi0.5)."""
        horizon = x.shape[2]
        tokens = self.action_in_proj(x.to(self.dtype))
        if self.config.learned_positions:
            tokens = tokens + self.step_embed
        features = self._time_features(time).to(self.dtype)
        if self.config.adaptive:
            condition = F.silu(self.time_mlp_out(F.silu(self.time_mlp_in(features))))
            return tokens.flatten(1, 2), condition
        both = torch.cat([tokens, features[:, :, None].expand(-1, -1, horizon, -1)], dim=-1)
        return self.action_time_mlp_out(F.silu(self.action_time_mlp_in(both))).flatten(1, 2), None

    def _time_features(self, time: Tensor) -> Tensor:
        return time_features(time, self.config.expert.dim)

    def raw_std(self, hidden: Tensor) -> Tensor:
        """Hidden states [...,W] -> what `flow.learned_std` turns into standard deviations [...,D]."""
        return self.noise_head(hidden)

    def value(self, summary: Tensor) -> Tensor:
        """[...,D] or [...,W], see `Pi0ModelConfig.critic_input` -> float32 [...]."""
        return self.value_head(summary.to(next(self.value_head.parameters()).dtype))[..., 0].float()


def make_heads(config: Pi0ModelConfig) -> nn.ModuleDict:
    """What reinforcement learning adds to the published network, fresh: `value_head` and `noise_head`."""
    first, second = config.noise_hidden
    width = config.expert.dim
    noise_head = nn.Sequential(
        Linear(width, first), nn.Tanh(), Linear(first, second), nn.Tanh(), Linear(second, config.max_action_dim)
    )
    critic_width = config.decoder.dim if config.critic_input == "prefix" else width
    return nn.ModuleDict({"value_head": make_value_head(critic_width, config.value_hidden), "noise_head": noise_head})


def time_features(time: Tensor, width: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """`dtype` [..., width]: sines, then cosines of `time` float32 [...], periods geometric from 0.004 to 4."""
    share = torch.linspace(0.0, 1.0, width // 2, dtype=dtype, device=time.device)
    period = _MIN_PERIOD * (_MAX_PERIOD / _MIN_PERIOD) ** share
    angle = time.to(dtype)[..., None] * (1.0 / period * 2 * math.pi)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def valid_slots(lengths: Sequence[int], slots: int, device: torch.device) -> Tensor | None:
    """bool [N,slots]: the first lengths[i] of row i; None when that is all of them."""
    if min(lengths) == slots:
        return None
    return torch.arange(slots, device=device) < torch.tensor(lengths, device=device)[:, None]


def _key_mask(valid: Tensor | None) -> Tensor | None:
    """bool [N,S] -> [N,1,1,S], the same for every query."""
    return None if valid is None else valid[:, None, None]


def _suffix_mask(prefix: Prefix, count: int, horizon: int, *, causal: bool) -> Tensor | None:
    """Which slots each action token sees: the prefix and its own sequence. None when that is all of them."""
    if count == 1 and not causal:
        return None if prefix.valid is None else _key_mask(F.pad(prefix.valid, (0, horizon), value=True))
    device, slots = prefix.rope.cos.device, prefix.cache.length
    sequence = torch.arange(count, device=device).repeat_interleave(horizon)
    own = sequence[:, None] == sequence
    if causal:
        own = own.tril()
    before = torch.ones(1, slots, dtype=torch.bool, device=device) if prefix.valid is None else prefix.valid
    before = before[:, None, None].expand(-1, -1, count * horizon, -1)
    return torch.cat([before, own.expand(len(before), 1, -1, -1)], dim=-1)

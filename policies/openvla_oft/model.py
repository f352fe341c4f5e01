"""The OpenVLA-OFT network: OpenVLA's, with action slots that are read all at once, and an optional L1 head.

Sequence: BOS, patches of each camera, optional proprio token, rest of the prompt, L action slots (zero embeddings),
optional stop token, padding. Every token attends to every other but padding, both ways. As in OpenVLA, action token i
is read one place to the left of its slot: the first one at the last prompt token.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from embodied_rl.policies.nn.linear import Linear
from embodied_rl.policies.openvla.compile import compiled_slots
from embodied_rl.policies.openvla.model import OpenVLAModel
from embodied_rl.policies.openvla_oft.config import OFTModelConfig


class ResidualBlock(nn.Module):
    """x + relu(linear(norm(x)))."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.ffn = nn.Sequential(nn.LayerNorm(dim), Linear(dim, dim), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return x + self.ffn(x)


class ResidualMlp(nn.Module):
    """Norm, linear, ReLU, two residual blocks, norm, linear; openvla-oft's parameter names."""

    def __init__(self, dim: int, hidden: int, out: int) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(dim)
        self.fc1 = Linear(dim, hidden)
        self.mlp_resnet_blocks = nn.ModuleList(ResidualBlock(hidden) for _ in range(2))
        self.layer_norm2 = nn.LayerNorm(hidden)
        self.fc2 = Linear(hidden, out)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.fc1(self.layer_norm1(x)))
        for block in self.mlp_resnet_blocks:
            x = block(x)
        return self.fc2(self.layer_norm2(x))


class L1Head(nn.Module):
    """The hidden states of one control step's slots, side by side, to its action."""

    def __init__(self, dim: int, action_dim: int) -> None:
        super().__init__()
        self.action_dim = action_dim
        self.model = ResidualMlp(dim * action_dim, dim, action_dim)

    def forward(self, hidden: Tensor) -> Tensor:
        """[N, L, D] -> normalised actions float32 [N, L]; the network's output, not bounded."""
        steps = hidden.unflatten(1, (-1, self.action_dim)).flatten(2)
        return self.model(steps.to(self.model.fc1.weight.dtype)).flatten(1).float()


class OFTModel(OpenVLAModel):
    """OpenVLA's modules, the action slots and the L1 head."""

    config: OFTModelConfig

    def __init__(self, config: OFTModelConfig) -> None:
        super().__init__(config)
        if config.head == "l1":
            self.action_head = L1Head(config.decoder.dim, config.action_dim)

    def language(self, prompt: Tensor, lengths: Tensor, bos_id: int) -> Tensor:
        """[N, D]: mean embedding of BOS, each row's prompt (embeddings [N,T,D], valid up to `lengths`) and stop token.

        It is what FiLM sees; openvla-oft averages all of its language tokens, the stop token among them.
        """
        table = self.language_model.model.embed_tokens.weight
        valid = torch.arange(prompt.shape[1], device=prompt.device) < lengths[:, None]
        total = (prompt * valid[..., None]).sum(dim=1) + table[bos_id]
        count = lengths + 1
        if self.config.stop_token is not None:
            total, count = total + table[self.config.stop_token], count + 1
        return total / count[:, None]

    def decode(
        self, prefix: Tensor, prompt: Tensor, lengths: Tensor, padded: bool, *, compiled: bool = False
    ) -> Tensor:
        """Hidden states [N, L, D] from which the chunk's actions are read.

        prefix: [N,S,D]; prompt: embeddings [N,T,D], row i valid up to lengths[i], padding after it; padded: whether any
        row has some. compiled: the language model runs compiled.
        """
        config, decoder = self.config, self.language_model.model
        prefix, first = self.prune(prefix, prompt, lengths)
        count = config.num_tokens
        tail = count + (config.stop_token is not None)
        place = torch.arange(prompt.shape[1] + tail, device=prompt.device) - lengths[:, None]
        text = F.pad(prompt, (0, 0, 0, tail)).masked_fill((place >= 0)[..., None], 0.0)
        slots = self.embed_slots()
        if slots is not None:
            # slots[t] marks where token t is read from; token 0 is read before the first slot, so the last has none
            rolled = F.pad(slots[1:], (0, 0, 0, 2))
            text = text + F.embedding(torch.where((place >= 0) & (place < count), place, count), rolled)
        if config.stop_token is not None:
            text = torch.where((place == count)[..., None], decoder.embed_tokens.weight[config.stop_token], text)
        x = torch.cat([prefix, text], dim=1)
        read = prefix.shape[1] - 1 + lengths[:, None] + torch.arange(count, device=x.device)
        own = place < tail
        mask = F.pad(own, (prefix.shape[1], 0), value=True)[:, None, None] if padded or compiled else None
        if compiled:
            assert mask is not None
            return compiled_slots(decoder, x, mask, read, first)
        return decoder(x, decoder.rope(x.shape[1], x.device, first), mask, read=read, causal=False)

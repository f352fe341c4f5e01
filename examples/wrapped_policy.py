"""Train a network that is not ours: transformers' LLaVA, tiny and random, decides all action tokens of a chunk at once.

embodied-rl train tabletop --policy tiny_vla --import wrapped_policy --output runs/wrapped
"""

import zlib

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlavaConfig, LlavaModel, SiglipVisionConfig

import embodied_rl as erl
from embodied_rl.policies.wrapped.policy import WrappedPolicy
from embodied_rl.types import Observation
from embodied_rl.vec_env import EnvInfo

WIDTH, PATCHES, IMAGE, PAD, BINS, CHUNK = 64, 4, 1, 0, 9, 4
SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128, "initializer_range": 0.1}


class TinyVLA(nn.Module):
    """The VLM's hidden state at the last word and the proprio, and a linear layer on them."""

    def __init__(self, info: EnvInfo) -> None:
        super().__init__()
        side = info.image_shape[0]
        vision = SiglipVisionConfig(image_size=side, patch_size=side // PATCHES, hidden_size=WIDTH, **SIZES)
        text = LlamaConfig(vocab_size=512, hidden_size=WIDTH, pad_token_id=PAD, **SIZES)
        layout = {"image_token_id": IMAGE, "vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
        self.vlm = LlavaModel(LlavaConfig(vision_config=vision, text_config=text, **layout))
        self.proprio = nn.Linear(info.proprio_dim, WIDTH)
        self.action_head = nn.Linear(WIDTH, CHUNK * info.action_dim * BINS)
        self.action_head.weight.data.mul_(0.1)  # nearly uniform at the start

    def forward(self, obs: Observation) -> tuple[Tensor, Tensor]:
        """Logits of action tokens [N, CHUNK, A, BINS], and features [N, WIDTH] for PPO's critic."""
        rows, cameras = obs.images.shape[:2]
        words = [[2 + zlib.crc32(word.encode()) % 510 for word in text.split()] for text in obs.instruction]
        longest = max(map(len, words))
        images = [IMAGE] * (cameras * PATCHES**2)
        ids = torch.tensor([[PAD] * (longest - len(line)) + images + line for line in words], device=obs.images.device)
        pixels = obs.images.flatten(0, 1).permute(0, 3, 1, 2).float() / 127.5 - 1  # [N, V, H, W, 3] -> [N V, 3, H, W]
        out = self.vlm(input_ids=ids, attention_mask=(ids != PAD).long(), pixel_values=pixels)
        hidden = torch.tanh(out.last_hidden_state[:, -1] + self.proprio(obs.proprio))
        return self.action_head(hidden).view(rows, CHUNK, -1, BINS), hidden


def make_policy(info: EnvInfo) -> WrappedPolicy:
    head = erl.ActionTokens(info, values=torch.linspace(-1, 1, BINS), chunk_len=CHUNK, features=WIDTH)
    return erl.wrap_policy(TinyVLA(info), head)


erl.register_policy("tiny_vla", make_policy)  # --policy tiny_vla, with --import wrapped_policy

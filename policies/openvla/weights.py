"""The parameters of OpenVLA and OpenVLA-OFT on disk: our own layout and the published one."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from embodied_rl.policies.checkpoints.folder import File, read_weights
from embodied_rl.policies.checkpoints.shards import SINGLE, read_sharded, sharded_files, single_file
from embodied_rl.policies.nn.heads import make_value_head
from embodied_rl.policies.openvla.config import OpenVLAModelConfig
from embodied_rl.policies.openvla.description import is_public
from embodied_rl.policies.openvla_oft.config import OFTModelConfig
from embodied_rl.policies.openvla_oft.parts import check_parts, find_parts, read_parts, split_parts

VALUE_HEAD = "value_head.safetensors"
_VALUE = "value_head."
_RLINF_VALUE = "value_head.mlp."


def read_state(folder: Path, model: OpenVLAModelConfig) -> dict[str, Tensor]:
    """All parameters that `folder` holds, under our names; whether they fit `model` is for `check_keys` to say."""
    return _public_state(folder, model) if is_public(folder) else read_weights(folder / SINGLE)


def public_files(model: OpenVLAModelConfig, state: dict[str, Tensor]) -> dict[str, File]:
    """The weight files of `state` in the published layout; the critic in a file of its own, which others ignore."""
    main = {name: tensor for name, tensor in state.items() if not name.startswith(_VALUE)}
    files: dict[str, File] = {}
    if isinstance(model, OFTModelConfig):
        main, files = split_parts(model, main)
    critic = {name: tensor for name, tensor in state.items() if name.startswith(_VALUE)}
    return {**sharded_files(main), **files, VALUE_HEAD: single_file(critic)}


def _public_state(folder: Path, model: OpenVLAModelConfig) -> dict[str, Tensor]:
    # older transformers saved the rotary frequencies, which are no parameters
    state = {name: tensor for name, tensor in read_sharded(folder).items() if not name.endswith("rotary_emb.inv_freq")}
    if isinstance(model, OFTModelConfig):
        parts = find_parts(folder)
        check_parts(model, parts, folder)
        state |= read_parts(parts)
    if (folder / VALUE_HEAD).is_file():
        return state | read_weights(folder / VALUE_HEAD)
    return _with_value_head(state, model)


def _with_value_head(state: dict[str, Tensor], model: OpenVLAModelConfig) -> dict[str, Tensor]:
    """`state` with RLinf's critic under our names, or else with a fresh one."""
    trained = {name: state.pop(name) for name in list(state) if name.startswith(_RLINF_VALUE)}
    if trained:
        # RLinf's last layer has no bias
        return (
            state
            | {"value_head.4.bias": torch.zeros(1)}
            | {name.replace(_RLINF_VALUE, _VALUE): tensor for name, tensor in trained.items()}
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        fresh = make_value_head(model.decoder.dim, model.value_hidden).state_dict()
    return state | {_VALUE + name: tensor for name, tensor in fresh.items()}

"""Weights of one robot's policy for another robot's: what fits is kept, what is new begins at zero."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from embodied_rl.policies.checkpoints.folder import check_keys

_OF_A_ROBOT = re.compile(
    r"(^|\.)(action_in_proj|action_out_proj|state_proj|noise_head|camera_embed|step_embed|dim_embed"
    r"|proprio_projector|action_head|decoder_pos_embed|\w*(robot_state|action)_input_proj)(\.|$)"
)
"""Parts whose size follows from the numbers of actions, states, cameras or steps."""


def resized(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], source: Path) -> dict[str, Tensor]:
    """`found` in the shapes of `expected`: cut, or filled up with zeros (with ones where they scale a norm).

    Args:
        found: weights by name.
        expected: a state dict, of any device.
        source: where they are from, for messages.

    Raises:
        UserError: Something else than a robot's own part is missing or of another shape.
    """
    fits = {name: tensor for name, tensor in found.items() if not changed(name, tensor, expected)}
    check_keys({name: expected[name] for name in expected if name in fits or name not in found}, fits, source)
    return {name: fits[name] if name in fits else _resized(name, found[name], expected[name]) for name in expected}


def changed(name: str, tensor: Tensor, expected: Mapping[str, Tensor]) -> bool:
    """Whether `resized` changes it."""
    wanted = expected.get(name)
    return (
        wanted is not None
        and wanted.shape != tensor.shape
        and wanted.ndim == tensor.ndim
        and _OF_A_ROBOT.search(name) is not None
    )


def _resized(name: str, tensor: Tensor, wanted: Tensor) -> Tensor:
    scales = re.search(r"norm\d*\.weight$", name) is not None
    out = torch.full(wanted.shape, float(scales), dtype=tensor.dtype)
    common = tuple(slice(min(one, two)) for one, two in zip(tensor.shape, wanted.shape, strict=True))
    out[common] = tensor[common]
    return out

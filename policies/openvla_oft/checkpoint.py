"""OpenVLA-OFT's checkpoints: OpenVLA's folders, and the variants of published ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.policies.family import pick
from embodied_rl.policies.openvla.checkpoint import export, load, prepare, save_policy, weights
from embodied_rl.policies.openvla.hf_format import LoadOptions
from embodied_rl.policies.openvla_oft.config import variant
from embodied_rl.policies.openvla_oft.policy import OpenVLAOFTPolicy

__all__ = ["export", "load", "load_options", "prepare", "save_policy", "weights"]

_VARIANT_FLAGS = ("num_cameras", "use_proprio", "film", "chunk_len")


def load_options(given: Any) -> LoadOptions:
    """OpenVLA-OFT's part of `given` (training options or `PublishedOptions`)."""
    flags = {name: getattr(given, name, None) for name in _VARIANT_FLAGS}
    flags = {name: value for name, value in flags.items() if value is not None}
    if flags and given.variant is None:
        name = next(iter(flags)).replace("_", "-")
        raise UserError(f"--policy.{name} changes a published variant: choose that too, with --policy.variant.")
    chosen = None if given.variant is None else replace(variant(given.variant), **flags)
    return pick(LoadOptions, given, architecture=OpenVLAOFTPolicy.architecture, variant=chosen)

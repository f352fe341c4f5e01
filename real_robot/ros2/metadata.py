"""What a policy server says of its policy, checked before the bridge relies on it. Imports no ROS."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from embodied_rl.real_robot.ros2.said import Kind, SaidError, check

_SIZES = {"cameras": (0, 16), "proprio_dim": (0, 4096), "chunk_len": (1, 4096), "action_dim": (1, 4096)}
_KIND: dict[str, Kind] = {**dict.fromkeys(_SIZES, int), "policy": str, "instruction": bool}


def wrong_metadata(metadata: Mapping[str, Any]) -> str:
    """Why the bridge cannot work with what a server says; empty where it can."""
    try:
        check(dict(metadata), _KIND)
        json.dumps(dict(metadata))  # the recording and the status say it too
    except (SaidError, TypeError, ValueError) as error:
        return (
            f"the policy server's description is not understood: {error}; is it an `embodied-rl serve` of this version?"
        )
    for name, (least, most) in _SIZES.items():
        if not least <= metadata[name] <= most:
            return f"the policy server's {name} is {metadata[name]}: it must lie in {least} to {most}"
    return ""

"""What a policy server says of its policy, checked before the bridge relies on it. Imports no ROS."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Any

from embodied_rl.real_robot.client.wire import PROTOCOL
from embodied_rl.real_robot.ros2.messages import Kind, Many, Maybe, MessageError, check

_SIZES = {"cameras": (0, 16), "proprio_dim": (0, 4096), "chunk_len": (1, 4096), "action_dim": (1, 4096)}
_KIND: dict[str, Kind] = {**dict.fromkeys(_SIZES, int), "policy": str, "instruction": bool}


def wrong_metadata(metadata: Mapping[str, Any]) -> str:
    """Why the bridge cannot work with what a server says; empty where it can."""
    try:
        check(dict(metadata), _KIND)
        if metadata.get("tasks") is not None:
            check(metadata["tasks"], Many(str), "tasks")
        check(metadata.get("detector"), Maybe(str), "detector")
        if metadata.get("views") is not None:
            check(metadata["views"], Many(str), "views")
        json.dumps(dict(metadata))  # the recording and the status say it too
    except (MessageError, TypeError, ValueError) as error:
        return (
            f"the policy server's description is not understood: {error}; is it an `embodied-rl serve` of this version?"
        )
    for name, (least, most) in _SIZES.items():
        if not least <= metadata[name] <= most:
            return f"the policy server's {name} is {metadata[name]}: it must lie in {least} to {most}"
    if (protocol := metadata.get("protocol", PROTOCOL)) != PROTOCOL:
        return f"the policy server speaks version {protocol!r:.20} of the protocol, the bridge {PROTOCOL}: update one"
    return ""


def unknown_task(instruction: str, metadata: Mapping[str, Any]) -> str:
    """What to say of an instruction that the policy was not trained on; '' where it was, or nobody knows.

    Args:
        instruction: What the policy is asked to do.
        metadata: The server's: `tasks` are the instructions of its training, None where they are not known.
    """
    tasks = {_plain(task): task for task in metadata.get("tasks") or ()}
    if not tasks or not instruction or _plain(instruction) in tasks:
        return ""
    near = difflib.get_close_matches(_plain(instruction), tasks, n=1)
    hint = f"; the nearest is '{tasks[near[0]]:.100}'" if near else ""
    return f"'{instruction:.100}' is none of the {len(tasks)} tasks that the policy was trained on{hint}"


def _plain(words: str) -> str:
    return " ".join(words.lower().replace(".", " ").split())

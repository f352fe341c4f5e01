"""What the bridge is told on its command line, as one JSON text between processes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Literal, TypeVar

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.executor import Overlap
from embodied_rl.real_robot.ros2.messages import MessageError, read
from embodied_rl.utils.dataclass_io import read_dataclass

Options = TypeVar("Options")

Mode = Literal["live", "dry_run", "shadow"]
REALTIME = "realtime"
"""The way of joining chunks in which the policy itself goes on from what is planned."""
REST_S = 1.0
"""An arm is at rest sooner: its limits of jerk and acceleration take 0.3 s from full speed."""
JOIN_S, CLOSE_S = 2.0, 1.0
"""How long the bridge's threads are waited for as it ends, and each connection to the policy server."""
PANEL = "deploy"
"""Name of the node of `embodied-rl deploy`."""
SERVER_S = 5.0
"""How long a policy server that should be there is waited for."""
_WRITE_S, _NODES_S = 60.0, 20.0
"""The 128 MiB that may wait to be recorded, also on a slow disk; the nodes and their callbacks."""


@dataclass(frozen=True, kw_only=True)
class BridgeOptions:
    """How the bridge runs.

    Args:
        robot: A shipped arm or the path of its file.
        host: Of the policy server.
        port: The same.
        token: The server's, None for none.
        mode: live sends set points. dry_run decides them and takes them for measured joints, and sends nothing.
            shadow asks the policy while something else moves the arm, and cannot be armed.
        overlap: What overlapping chunks do (`Overlap`), or 'realtime': real-time chunking, for flow policies.
        blend_steps: Control steps of a blend.
        horizon: Control steps after which the policy is asked again, at most a chunk.
        aligned: See `InferenceConfig`.
        latency_s: Added to each answer of the policy.
        requests: Questions that may be on their way at once.
        speed: See `Clock`; for twins only.
        record: The recording, an MCAP file that does not exist yet; None: nothing is recorded.
        labelled_by: Who says how episodes end, for the recording: 'human' or 'simulator'.
        resume_s: Resume by itself so long after the last fault has gone; None: somebody must. For twins only.
        autostart: The bridge's process configures and activates its node by itself; without, somebody else does.
    """

    robot: str = "twin"
    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    mode: Mode = "live"
    overlap: str = Overlap.BLEND
    blend_steps: int = 1
    horizon: int = 2
    aligned: bool = True
    latency_s: float = 0.0
    requests: int = 1
    speed: float = 1.0
    record: str | None = None
    labelled_by: str = "human"
    resume_s: float | None = None
    autostart: bool = True

    @property
    def ending_s(self) -> float:
        """How long the bridge's process may take to end in order, s.

        What it was doing when it was told (it may wait for its server), the arm to rest in the arm's time, threads,
        connections, the recording and the nodes.
        """
        writing = 0.0 if self.record is None else _WRITE_S
        return SERVER_S + REST_S / self.speed + 2 * JOIN_S + CLOSE_S * self.requests + writing + _NODES_S

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> BridgeOptions:
        """What `to_json` wrote, or a person: what is left out has its default.

        Raises:
            UserError: It is no JSON, or an option is unknown or cannot be what it says.
        """
        options = read_options(cls, text, "bridge")
        for name, least, most in (("speed", 0.01, 1.0), ("requests", 1, 16), ("horizon", 1, 1000), ("port", 0, 65535)):
            if not least <= getattr(options, name) <= most:
                raise UserError(f"the bridge's options: {name} must lie in {least:g} to {most:g}")
        if options.overlap not in (*Overlap, REALTIME):
            raise UserError(f"the bridge's options: overlap is one of {', '.join((*Overlap, REALTIME))}")
        return options


def read_options(kind: type[Options], text: str, program: str) -> Options:
    """An options dataclass from a JSON text: what is left out has its default.

    Args:
        kind: Its class.
        text: A mapping of names to values.
        program: For messages: bridge or twin.

    Raises:
        UserError: It is no JSON, or an option is unknown or of another type.
    """
    try:
        values = read(text, {})
    except MessageError as error:
        raise UserError(f"the {program}'s options: {error}") from error
    return read_dataclass(kind, values, where=program, source=f"the {program}'s options")

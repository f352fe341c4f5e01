"""Records the bridge: all of its events into one MCAP file, in threads that the control loop never waits for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from embodied_rl.data.layout import ACTION_NAMES, PROPRIO_NAMES
from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.robot import robot_path
from embodied_rl.real_robot.core.two_arms import TwoArmRobot
from embodied_rl.real_robot.record.bridge import BridgeRecorder, stamp_of
from embodied_rl.real_robot.record.events import SessionStarted
from embodied_rl.real_robot.record.recorder import Recorder
from embodied_rl.real_robot.ros2.context import BridgeContext
from embodied_rl.real_robot.ros2.events import BackgroundSink
from embodied_rl.real_robot.ros2.two_arm_target import axis_names


class BridgeRecording:
    """The bridge's recording while it is written.

    Args:
        context: Whose events are recorded; subscribe before its threads start.
        path: The file; it must not exist yet.

    Raises:
        UserError: The file exists or cannot be made, or mcap is not installed.

    Example:
        >>> recording = BridgeRecording(context, Path("run.mcap"))
        >>> recording.status()
        {'file': 'run.mcap', 'dropped': 0, 'problem': ''}
    """

    def __init__(self, context: BridgeContext, path: Path) -> None:
        self._recorder = Recorder(path, _session(context))
        self._events = BridgeRecorder(
            self._recorder,
            context.observations.take,
            context.loop.law,
            labelled_by=context.options.labelled_by,
            policy=stamp_of(context.metadata),
            base=context.config.base,
        )
        self._sink = BackgroundSink(self._events)
        context.loop.events.subscribe(self._sink)

    def status(self) -> Mapping[str, Any]:
        """The file, how many events it lacks, and why it is not complete; '' while all is well."""
        lost = self._sink.dropped + sum(self._recorder.dropped.values())
        problem = self._recorder.problem or ("" if self._sink.error is None else str(self._sink.error))
        return {"file": str(self._recorder.path), "dropped": lost, "problem": problem}

    def close(self) -> None:
        """Write what waits and finish the file.

        Raises:
            UserError: Something was not written; says what.
        """
        try:
            self._sink.close()
            self._events.close()
        except RuntimeError as error:
            raise UserError(f"{self._recorder.path} is not complete: {error}") from error
        finally:
            self._recorder.close()


def _session(context: BridgeContext) -> SessionStarted:
    """What the recording says of itself; the server's token stays out of it."""
    robot, now_ns = context.robot, context.clock.now_ns()
    axes = axis_names(robot) if isinstance(robot, TwoArmRobot) else None
    options = {name: value for name, value in asdict(context.options).items() if name != "token"}
    return SessionStarted(
        time_ns=now_ns,
        wall_ns=time.time_ns(),
        robot=robot.name,
        joint_names=robot.limits.names,
        rate_hz=robot.rate_hz,
        control_hz=context.loop.law.rate_hz,
        cameras=context.observations.cameras,
        state_names=axes or PROPRIO_NAMES,
        action_names=axes or ACTION_NAMES,
        settings={
            "options": options,
            "policy": context.metadata,
            "robot_file": robot_path(context.options.robot).read_text(encoding="utf-8"),
        },
    )

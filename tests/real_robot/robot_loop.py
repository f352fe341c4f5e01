"""A robot's control loop in one process, without ROS: the core on an arm that follows at once, and what it records."""

from __future__ import annotations

import numpy as np

from embodied_rl.real_robot.core.executor import Chunk, ChunkExecutor, ExecutorConfig
from embodied_rl.real_robot.core.gate import Command, GateOutcome
from embodied_rl.real_robot.core.robot import load_robot
from embodied_rl.real_robot.core.runtime import ArmRuntime
from embodied_rl.real_robot.core.states import ArmState, Event
from embodied_rl.real_robot.record import events
from embodied_rl.real_robot.record.events import EventSink

ROBOT = load_robot("fr3")
NAMES, HOME = ROBOT.limits.names, ROBOT.home
TICK, TICKS_PER_STEP, CHUNK = 10_000_000, 5, 4
CAMERAS = ("front", "wrist")
STATE_NAMES = ("eef_x", "eef_y", "eef_z", "roll", "pitch", "yaw", "finger_1", "finger_2")
ACTION_NAMES = ("delta_x", "delta_y", "delta_z", "delta_rot_x", "delta_rot_y", "delta_rot_z", "gripper")
WALL_NS = 1_790_000_000_000_000_000


def session(**settings: object) -> events.SessionStarted:
    return events.SessionStarted(0, WALL_NS, "fr3", NAMES, 100.0, 20.0, CAMERAS, STATE_NAMES, ACTION_NAMES, settings)


def picture(step: int, camera: int, size: int = 32) -> np.ndarray:
    """A picture that says which it is."""
    image = np.full((size, size, 3), 40 * camera, np.uint8)
    image[: size // 2] = step % 256
    image[size // 2 :, : size // 2, 1] = np.arange(size // 2)
    return image


class ScriptedRobot:
    """Runs episodes: the policy moves one joint, a human takes over for some steps, an e-stop ends the day.

    Args:
        sink: Where events go.
        size: Side of the pictures.
    """

    def __init__(self, sink: EventSink, size: int = 32) -> None:
        self.sink, self.size, self.now = sink, size, 0
        self.runtime = ArmRuntime(ROBOT, CAMERAS)
        self.arm, self.step = HOME.copy(), 0
        self.executor = ChunkExecutor(ExecutorConfig(CHUNK, 7, TICK * TICKS_PER_STEP, execution_horizon=CHUNK), 0)
        self.proprios: list[np.ndarray] = []
        self.actions: list[np.ndarray] = []

    def episode(
        self, number: int, steps: int, *, success: bool | None, human: range = range(0), label: str = "human"
    ) -> None:
        self.sink.record(events.EpisodeStarted(self.now, number, f"do thing {number}", "script"))
        if self.runtime.machine.state is ArmState.IDLE:
            self.tick(None)
            self.fire(Event.ARM)
            self.fire(Event.START)
        for index in range(steps):
            self.control_step(number, index in human)
        self.sink.record(events.EpisodeEnded(self.now, number, success, label if success is not None else ""))

    def control_step(self, episode: int, human: bool) -> None:
        self.step += 1
        images_ns = {}
        for number, camera in enumerate(CAMERAS):
            taken = images_ns[camera] = self.now - number
            self.sink.record(events.CameraImage(taken, camera, picture(self.step, number, self.size)))
        if self.executor.due(self.now):
            chunk = Chunk(self.now, np.linspace(-0.3, 0.3, CHUNK * 7).reshape(CHUNK, 7), "v1")
            self.sink.record(events.ChunkArrived(self.now, chunk, self.executor.add(chunk, self.now)))
        planned = self.executor.action(self.now)
        assert planned is not None
        action = np.full(7, 0.5) if human else planned.values
        if human and self.runtime.machine.state is ArmState.RUNNING:
            transition = self.runtime.mux.human(Command(self.now, NAMES, self.arm), self.now, engaged=True)
            assert transition is not None
            self.sink.record(transition)
        elif not human and self.runtime.machine.state is ArmState.HUMAN:
            self.runtime.mux.human(Command(self.now, NAMES, self.arm), self.now, engaged=False)
            self.sink.record(self.runtime.mux.release(self.now))
            self.fire(Event.RESUME)
        proprio = np.concatenate([self.arm, [self.step / 1000]])
        self.proprios.append(proprio)
        self.actions.append(action)
        rewritten = [self.tick(self.arm + 0.001 * action) for _ in range(TICKS_PER_STEP)]
        selection = self.runtime.mux.select(None, self.now)
        self.sink.record(
            events.ControlStep(
                self.now, episode, self.step, proprio, images_ns, action, selection.source, selection.intervention,
                selection.number, "" if human else "v1", planned.values if human else None, any(rewritten),
            )
        )  # fmt: skip

    def tick(self, target: np.ndarray | None) -> bool:
        self.now += TICK
        for camera in CAMERAS:
            self.runtime.watchdog.observed(camera, self.now)
        self.runtime.watchdog.heartbeat(self.now)
        self.runtime.joint_states(NAMES, self.arm.tolist(), self.now)
        self.sink.record(events.JointStates(self.now, NAMES, self.arm))
        command = None if target is None else Command(self.now, NAMES, target)
        if command is not None and self.runtime.machine.state is ArmState.HUMAN:
            self.runtime.mux.human(command, self.now, engaged=True)
        done = self.runtime.tick(self.now, command)
        self.sink.record(done)
        if done.setpoint is not None:
            self.arm = done.setpoint.positions
        return done.decision is not None and done.decision.outcome is not GateOutcome.ALLOW

    def fire(self, event: Event) -> None:
        transition = self.runtime.fire(event, self.now)
        assert transition.accepted, transition
        self.sink.record(transition)

    def stop(self) -> None:
        transition = self.runtime.machine.button(True, self.now)
        assert transition is not None
        self.sink.record(events.EmergencyStop(self.now, True))
        self.sink.record(transition)

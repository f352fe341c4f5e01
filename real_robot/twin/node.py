"""The twin as a ROS 2 node: the topics of an arm, or of two, over a simulated world, in real time."""

from __future__ import annotations

import json
import threading
from array import array
from collections import deque
from functools import partial
from typing import Any

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.two_arms import TwoArmRobot, load_arms
from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.adapters.stamps import nanoseconds, set_time
from embodied_rl.real_robot.ros2.clock import Clock
from embodied_rl.real_robot.ros2.config import load_ros_config
from embodied_rl.real_robot.ros2.messages import Each, Kind, Many, MessageError, read
from embodied_rl.real_robot.ros2.session import Session
from embodied_rl.real_robot.twin.follower import Point, TrajectoryFollower
from embodied_rl.real_robot.twin.options import TOPICS, TwinOptions
from embodied_rl.real_robot.twin.person import TwinPerson
from embodied_rl.real_robot.twin.plant import Difference, Plant
from embodied_rl.real_robot.twin.two_arm_plant import TwoArmPlant
from embodied_rl.rng import TwinStream, philox

TIMESTEP_NS = 2_000_000
_MOST_BEHIND_NS = 200_000_000
"""Simulated time that is caught up with; what a busy computer lacks beyond it is left out, and reported."""
_JUDGE_NS = 50_000_000
EPISODE: dict[str, Kind] = {"number": int, "task": str, "state": int, "seed": int}
FAULTS: dict[str, Kind] = {"dropped": Many(str), "deaf": bool, "spoilt": Each(str)}
PERSON: dict[str, Kind] = {"acts": bool}


class TwinNode:
    """The plant, its controller, its sensors and their faults.

    Args:
        session: The node.
        options: How it differs from training and from a perfect arm.
    """

    _ends: tuple[int, ...] = (7,)
    """Where each arm's names end: the tabletop has one arm of seven joints."""
    _widest: tuple[float, ...] = (0.04,)
    """The furthest that a finger of each gripper goes, m."""

    def __init__(self, session: Session, options: TwinOptions) -> None:
        from sensor_msgs.msg import Image, JointState
        from std_msgs.msg import Float64MultiArray, String
        from trajectory_msgs.msg import JointTrajectory

        self._session, self.options, self._clock = session, options, Clock(options.speed)
        self._joint_state, self._image, self._text = JointState, Image, String
        difference = Difference(options.friction, options.damping, options.looks, options.level, options.noise)
        robot, config = load_arms(options.robot), load_ros_config(options.robot)
        self.plant: Plant | TwoArmPlant
        if isinstance(robot, TwoArmRobot):
            if difference != Difference():
                raise UserError(
                    "a twin of two arms has no friction, damping, looks or noise of its own: leave them out"
                )
            self.plant = TwoArmPlant(options.suite, robot, config, options.image_size)
            first = len(robot.arms[0].limits.names)
            self._ends = (first, len(robot.limits.names))
            self._widest = tuple(
                float(o.upper[0]) * g.scale for o, g in zip(robot.grippers, config.grippers, strict=True)
            )
        elif options.robot == "twin":
            self.plant = Plant(options.suite, difference, options.image_size)
        else:
            raise UserError(f"the twin of one arm is 'twin', not '{options.robot:.80}'")
        self._names, self._grips = [*robot.limits.names, *config.fingers], [len(one.fingers) for one in config.grippers]
        node = session.node
        self._joints = node.create_publisher(JointState, config.joint_states, qos.sensor(5))
        self._cameras = [node.create_publisher(Image, camera.topic, qos.sensor()) for camera in config.cameras]
        self._state = node.create_publisher(String, TOPICS["state"], qos.latched())
        for arm, (topic, gripper) in enumerate(zip(config.arms, config.grippers, strict=True)):
            node.create_subscription(JointTrajectory, topic.topic, partial(self._trajectory, arm=arm), qos.command())
            node.create_subscription(Float64MultiArray, gripper.topic, partial(self._gripper, arm=arm), qos.command())
        node.create_subscription(String, TOPICS["episode"], self._episode, qos.latched())
        node.create_subscription(String, TOPICS["faults"], self._inject, qos.event())
        node.create_subscription(String, TOPICS["person"], self._on_person, qos.event())
        self._person = TwinPerson(session, self.plant, self._clock) if isinstance(self.plant, Plant) else None
        self._lock, self._stopping = threading.Lock(), threading.Event()
        self._commands: deque[tuple[int, tuple[int, Any]]] = deque()
        self._late: deque[tuple[int, int, Any]] = deque()
        self._rng = philox(options.seed, TwinStream.NODE)
        self._dropped, self._deaf = set[str](), False
        self._spoilt, self._held = dict[str, str](), dict[str, Any]()
        self._wanted: dict[str, Any] | None = None
        self._number, self._sim_ns, self._behind_ns = 0, 0, 0
        self._succeeded = False
        home = self.plant.reset(self.plant.tasks[0], 0, options.seed)
        self._instruction, self._task = home, self.plant.tasks[0]
        self._followers, self._fingers = self._at_rest()
        self.plant.images()  # the first one compiles the renderer's kernels, which takes long
        runs = {"physics": self._run_physics}
        runs |= {"cameras": self._run_cameras} if self.plant.cameras else {}
        runs |= {"person": self._run_person} if self._person is not None else {}
        self._threads = [threading.Thread(target=run, name=name, daemon=True) for name, run in runs.items()]
        self.error: BaseException | None = None

    def start(self) -> None:
        """Simulate, publish and listen from now on."""
        self._say()
        self._session.start()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the threads."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(timeout=2.0)

    def _at_rest(self) -> tuple[list[TrajectoryFollower], list[float]]:
        """Controllers that keep each arm where it is, and where each gripper's first finger is, m."""
        positions, end = self.plant.joints()[0], self._ends[-1]
        first_fingers = np.cumsum([end, *self._grips])[:-1]
        followers = [TrajectoryFollower(one) for one in np.split(positions[:end], self._ends[:-1])]
        return followers, np.abs(positions[first_fingers]).tolist()

    def _trajectory(self, message: Any, arm: int = 0) -> None:
        if self._deaf:
            return
        now_ns = self._clock.ros_ns()
        try:
            points = points_of(message, self._names[(0, *self._ends)[arm] : self._ends[arm]], now_ns)
        except MessageError as error:
            self._session.node.get_logger().warning(f"a trajectory left out: {error}")
            return
        with self._lock:
            self._commands.append((now_ns + round(self.options.command_latency_s * 1e9), (arm, points)))

    def _gripper(self, message: Any, arm: int = 0) -> None:
        if not len(message.data) or not np.isfinite(message.data[0]):
            self._session.node.get_logger().warning("a gripper command left out: no finite position")
            return
        with self._lock:
            due_ns = self._clock.ros_ns() + round(self.options.command_latency_s * 1e9)
            self._commands.append((due_ns, (arm, float(np.clip(message.data[0], 0.0, self._widest[arm])))))

    def _episode(self, message: Any) -> None:
        wanted = self._read(TOPICS["episode"], message, EPISODE)
        problem = "" if wanted is None else self.plant.unknown(wanted["task"], wanted["state"], wanted["seed"])
        if problem:
            self._session.node.get_logger().warning(f"{TOPICS['episode']} left out: {problem}")
        elif wanted is not None:
            with self._lock:
                self._wanted = wanted

    def _inject(self, message: Any) -> None:
        """{"dropped": [cameras], "deaf": bool, "spoilt": {camera or "joints": how}}, until told again.

        What is dropped sends nothing, a deaf controller hears nothing. What is spoilt comes on time and is not so:
        "frozen", "black", or under a running "clock".
        """
        if (faults := self._read(TOPICS["faults"], message, FAULTS)) is not None:
            self._dropped, self._deaf = set(faults["dropped"]), faults["deaf"]
            self._spoilt, self._held = faults["spoilt"], {}

    def _on_person(self, message: Any) -> None:
        if (wanted := self._read(TOPICS["person"], message, PERSON)) is not None and self._person is not None:
            self._person.act(wanted["acts"])

    def _run_person(self) -> None:
        assert self._person is not None
        try:
            self._person.run(self._stopping)
        except BaseException as error:
            self.error = error
            raise

    def _read(self, topic: str, message: Any, kind: dict[str, Kind]) -> dict[str, Any] | None:
        """What was said; None, with a line in the log, where it is no such message."""
        try:
            return read(message.data, kind)
        except MessageError as error:
            self._session.node.get_logger().warning(f"{topic} left out: {error}")
            return None

    def _run_physics(self) -> None:
        try:
            self._simulate()
        except BaseException as error:
            self.error = error
            raise

    def _simulate(self) -> None:
        steps = max(1, round(1e9 / self.options.joint_hz / TIMESTEP_NS))
        period_ns = steps * TIMESTEP_NS
        due_ns = self._clock.now_ns()
        while not self._stopping.is_set():
            self._clock.sleep_until(due_ns)
            late_ns = self._clock.now_ns() - due_ns
            if late_ns > _MOST_BEHIND_NS:
                self._behind_ns += late_ns
                due_ns += late_ns
            due_ns += period_ns
            self._begin_if_asked()
            now_ns = self._clock.ros_ns()
            self._obey(now_ns)
            wanted = [follower.at(now_ns) for follower in self._followers]
            angles, velocities = (np.concatenate(each) for each in zip(*wanted, strict=True))
            if isinstance(self.plant, TwoArmPlant):
                self.plant.advance(angles, velocities, self._fingers, steps)
            else:
                self.plant.advance(angles, velocities, self._fingers[0], steps)
            self._sim_ns += period_ns
            self._publish_joints()
            if self._sim_ns // _JUDGE_NS != (self._sim_ns - period_ns) // _JUDGE_NS:
                self._succeeded = self._succeeded or self.plant.succeeded()
                self._say()

    def _begin_if_asked(self) -> None:
        with self._lock:
            wanted, self._wanted = self._wanted, None
        if wanted is None or wanted["number"] == self._number:
            return
        self._instruction = self.plant.reset(wanted["task"], wanted["state"], wanted["seed"])
        self._task, self._number, self._sim_ns, self._succeeded = wanted["task"], wanted["number"], 0, False
        with self._lock:
            self._commands.clear()
        self._followers, self._fingers = self._at_rest()
        self._say()

    def _obey(self, now_ns: int) -> None:
        with self._lock:
            while self._commands and self._commands[0][0] <= now_ns:
                _, (arm, command) = self._commands.popleft()
                if isinstance(command, float):
                    self._fingers[arm] = command
                else:
                    self._followers[arm].take(command, now_ns)

    def _publish_joints(self) -> None:
        if self.options.joint_drop and self._rng.random() < self.options.joint_drop:
            return
        positions, velocities = self.plant.joints()
        if self._spoilt.get("joints"):
            positions, velocities = self._held.setdefault("joints", (positions, velocities))
        message = self._joint_state(name=self._names, position=array("d", positions), velocity=array("d", velocities))
        set_time(message.header.stamp, self._clock.ros_ns())
        self._joints.publish(message)

    def _run_cameras(self) -> None:
        period_ns, due_ns = round(1e9 / self.options.camera_hz), self._clock.now_ns()
        latency_ns = round(self.options.camera_latency_s * 1e9)
        while not self._stopping.is_set():
            ahead = [due_ns, *(self._late[0][:1] if self._late else ())]
            self._clock.sleep_until(min(ahead))
            while self._late and self._late[0][0] <= self._clock.now_ns():
                _, index, message = self._late.popleft()
                self._cameras[index].publish(message)
            if self._clock.now_ns() < due_ns:
                continue
            due_ns = max(due_ns + period_ns, self._clock.now_ns())
            stamp_ns, images = self._clock.ros_ns(), self.plant.images()
            for index, image in enumerate(images):
                if self.plant.cameras[index] in self._dropped or self._rng.random() < self.options.camera_drop:
                    continue
                self._late.append((self._clock.now_ns() + latency_ns, index, self._as_image(image, index, stamp_ns)))

    def _as_image(self, image: np.ndarray, index: int, stamp_ns: int) -> Any:
        height, width = image.shape[:2]
        image = self._spoil_image(image, self.plant.cameras[index], stamp_ns)
        message = self._image(height=height, width=width, encoding="rgb8", step=3 * width)
        message.header.frame_id = self.plant.cameras[index]
        message.data = array("B", image.tobytes())
        set_time(message.header.stamp, stamp_ns)
        return message

    def _spoil_image(self, image: np.ndarray, camera: str, stamp_ns: int) -> np.ndarray:
        """Black, or the one from when that was asked for; `clock` writes the time into its first rows."""
        how = self._spoilt.get(camera, "")
        if how == "black":
            return np.zeros_like(image)
        if how:
            image = self._held.setdefault(camera, image)
        if how == "clock":
            image, rows = image.copy(), len(image) // 8
            pattern = np.arange(9 * rows * rows, dtype=np.uint64) * np.uint64(stamp_ns | 1) >> np.uint64(9)
            image[:rows, : 3 * rows] = pattern.astype(np.uint8).reshape(rows, 3 * rows, 3)
        return image

    def _say(self) -> None:
        words = {
            "number": self._number,
            "task": self._task,
            "instruction": self._instruction,
            "seconds": self._sim_ns / 1e9,
            "success": self._succeeded,
            "behind_s": self._behind_ns / 1e9,
        }
        self._state.publish(self._text(data=json.dumps(words)))


def points_of(message: Any, names: list[str], now_ns: int) -> list[Point]:
    """A JointTrajectory's points, in the order of `names`; one without a stamp begins now.

    Raises:
        MessageError: It is of other joints, or a point has other than a finite number for each.
    """
    given = list(message.joint_names)
    if set(given) != set(names) or len(given) != len(names):
        raise MessageError(f"its joints are {', '.join(given):.200}, not {', '.join(names)}")
    order = [given.index(name) for name in names]
    stamp_ns, points = nanoseconds(message.header.stamp) or now_ns, list[Point]()
    for point in message.points:
        positions = np.array(point.positions, np.float64)
        velocities = np.array(point.velocities, np.float64) if len(point.velocities) else np.zeros(len(names))
        if not all(len(row) == len(names) and np.isfinite(row).all() for row in (positions, velocities)):
            raise MessageError("a point has other than a finite position and velocity for each joint")
        points.append(Point(stamp_ns + nanoseconds(point.time_from_start), positions[order], velocities[order]))
    return points

"""What must hold before an arm is armed: topics, rates, clocks, limits, workspace, gripper, controller, policy."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.buttons import Button
from embodied_rl.real_robot.core.motion import Limit, Motion
from embodied_rl.real_robot.core.states import ArmState
from embodied_rl.real_robot.core.views_of_training import compare_views
from embodied_rl.real_robot.ros2.inputs import Inputs
from embodied_rl.real_robot.ros2.limits_table import limits_table
from embodied_rl.real_robot.ros2.metadata import unknown_task
from embodied_rl.real_robot.ros2.policy_health import policy_problem
from embodied_rl.real_robot.ros2.said import Many, SaidError, read
from embodied_rl.real_robot.ros2.station import Station

STOP = "emergency stop"
"""The name of the check of the button."""
LIMITS = "limits that hold"
"""The name of the table that a person confirms."""


@dataclass(frozen=True)
class Check:
    """One line of the list: what was looked at, whether it holds, and what was found or is to be done."""

    name: str
    passed: bool
    detail: str


def to_json(checks: list[Check]) -> str:
    """One line for a service's answer."""
    return json.dumps([asdict(check) for check in checks])


def from_json(text: str) -> list[Check]:
    """What `to_json` wrote.

    Raises:
        UserError: It is something else.
    """
    try:
        said = read(f'{{"checks": {text}}}', {"checks": Many({"name": str, "passed": bool, "detail": str})})["checks"]
    except SaidError as error:
        raise UserError(f"the bridge's checks are not understood ({error}): is it of another version?") from error
    return [Check(one["name"], one["passed"], one["detail"]) for one in said]


def checks(station: Station, inputs: Inputs) -> list[Check]:
    """Every check, also after one that fails."""
    parts = [*_views(station), _controller(station, inputs), _policy(station), _stop(station, inputs)]
    held = Check(LIMITS, True, limits_table(station.robot, station.config))
    return [*_flows(station, inputs), *_arm(station), *_gripper(station, inputs), *parts, held]


def _flows(station: Station, inputs: Inputs) -> list[Check]:
    """Rate, age and use of joint states and of each camera."""
    watch, now_ns = station.robot.watchdog, station.clock.now_ns()
    found = []
    for name, flow in inputs.flows.items():
        age_s = watch.joint_state_age_s if name == "joint_states" else watch.camera_age_s
        rate_hz = flow.rate_hz(now_ns)
        topic = station.config.joint_states if name == "joint_states" else _topic(station, name)
        if not rate_hz:
            nothing = f"nothing comes on {topic}: is the driver running, is the name right?"
            found.append(Check(name, False, flow.problem or nothing))
        elif flow.problem:
            found.append(Check(name, False, flow.problem))
        elif rate_hz < 2 / age_s:
            found.append(Check(name, False, f"{rate_hz:.0f} Hz; {2 / age_s:.0f} are needed for an age of {age_s:g} s"))
        elif not -10 < flow.age_ms < 1000 * age_s:
            advice = "the clocks disagree (chrony), or it is slow"
            found.append(Check(name, False, f"stamps are {flow.age_ms:.0f} ms old: {advice}"))
        else:
            found.append(Check(name, True, f"{rate_hz:.0f} Hz, {flow.age_ms:.0f} ms old, {topic}"))
    return found


def _arm(station: Station) -> list[Check]:
    """Whether the arm stands still within its limits and workspace."""
    robot, measured = station.robot, station.loop.measured(station.clock.now_ns())
    if measured is None:
        return [Check("pose", False, "no joint states yet")]
    motion = Motion(robot.limits, 1 / robot.rate_hz, robot.workspace.inside)
    broken = motion.allows_rest(measured.angles[None])[0]
    where = np.array2string(robot.chain.position(measured.angles), precision=3)
    moving = station.loop.moving()
    outside = [name for name, bits in zip(robot.limits.names, broken, strict=True) if bits & ~Limit.WORKSPACE]
    boxed = bool((broken & Limit.WORKSPACE).any())
    return [
        Check("limits", not outside, f"outside: {', '.join(outside)}; move it by hand" if outside else "within"),
        Check("workspace", not boxed, f"{robot.tool_frame} at {where} m in {robot.base_frame}" + ", outside" * boxed),
        Check("standstill", not moving, moving or "at rest"),
    ]


def _gripper(station: Station, inputs: Inputs) -> list[Check]:
    """Whether each of the gripper's fingers is heard."""
    gripper = station.config.gripper
    if gripper is None:
        return [Check("gripper", True, "none in the arm's file: what the policy says to one moves nothing")]
    missing = inputs.missing_fingers()
    return [Check("gripper", not missing, missing or f"{', '.join(gripper.fingers)} on {station.config.joint_states}")]


def _views(station: Station) -> list[Check]:
    """Whether each camera is the one that training looked through; nothing before each has sent a picture."""
    seen = station.observations.newest()
    if not seen:
        return []
    return [Check("views", *compare_views(seen, station.asking.metadata.get("views")))]


def _controller(station: Station, inputs: Inputs) -> Check:
    """Whether somebody listens to set points, and nobody else sends any."""
    config = station.config.arm
    if station.options.mode != "live":
        return Check("controller", True, f"{station.options.mode}: nothing is sent")
    if problem := inputs.command_problem():
        return Check("controller", False, problem)
    return Check("controller", True, f"{config.adapter} on {config.topic}")


def _policy(station: Station) -> Check:
    """Whether the server answers, and an arm that moves could use the answers."""
    report, loop = station.asking.report, station.loop
    if not station.observations.instruction:
        return Check("policy", False, "there is no instruction yet: publish one to ~/instruction")
    problem = policy_problem(report, loop, station.clock.now_ns())
    if not report.answer_ms:
        return Check("policy", False, problem)
    median, length = float(np.median(report.answer_ms)), station.metadata["chunk_len"]
    words = f"{report.policy}; answers in {median:.0f} ms, {loop.delay_steps} of {length} steps after the picture"
    if unknown := unknown_task(station.observations.instruction, station.asking.metadata):
        words += f"; CAUTION: {unknown}"
    return Check("policy", not problem, f"{words}; {problem}" if problem else words)


def _stop(station: Station, inputs: Inputs) -> Check:
    """Whether the button was heard, and the arm is not stopped."""
    topic = station.config.emergency_stop
    if station.loop.state is ArmState.ESTOPPED:
        return Check(STOP, False, "the arm is e-stopped: look at it, then call ~/reset")
    inputs.watch()
    now_ns, buttons = station.clock.now_ns(), station.loop.runtime.buttons
    if problem := inputs.buttons.unheard or inputs.buttons.problem or buttons.problem(now_ns):
        return Check(STOP, False, problem)
    found = [f"{button.name} {_habit(button)}" for button in buttons.present]
    heard = f"{topic}: {', '.join(found)}" if found else "there is no button"
    return Check(STOP, True, f"{heard}; the service ~/emergency_stop works always")


def _habit(button: Button) -> str:
    """How a button speaks, and when its silence is noticed."""
    if not button.repeats:
        return "was heard and speaks when it moves"
    return f"repeats {button.rate_hz:.0f} times a second: {button.most_age_ns / 1e9:g} s of silence hold the arm"


def _topic(station: Station, name: str) -> str:
    return next(camera.topic for camera in station.config.cameras if camera.name == name)

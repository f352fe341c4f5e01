"""What must hold before an arm is armed: topics, rates, clocks, limits, workspace, gripper, controller, policy."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

import numpy as np

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.buttons import Button
from embodied_rl.real_robot.core.motion import Limit, Motion
from embodied_rl.real_robot.core.states import ArmState
from embodied_rl.real_robot.core.two_arms import DISTANCE, WORKSPACE, TwoArmRobot
from embodied_rl.real_robot.core.views_of_training import compare_views
from embodied_rl.real_robot.ros2.context import BridgeContext
from embodied_rl.real_robot.ros2.inputs import Inputs
from embodied_rl.real_robot.ros2.limits_table import limits_table
from embodied_rl.real_robot.ros2.messages import Many, MessageError, read
from embodied_rl.real_robot.ros2.metadata import unknown_task
from embodied_rl.real_robot.ros2.policy_health import policy_problem

STOP = "emergency stop"
"""The name of the check of the button."""
POLICY = "policy"
"""The name of the check of the server's answers."""
LIMITS = "limits that hold"
"""The name of the table that a person confirms."""
_PLACES = (WORKSPACE, DISTANCE)


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
        items = read(f'{{"checks": {text}}}', {"checks": Many({"name": str, "passed": bool, "detail": str})})["checks"]
    except MessageError as error:
        raise UserError(f"the bridge's checks are not understood ({error}): is it of another version?") from error
    return [Check(one["name"], one["passed"], one["detail"]) for one in items]


def checks(context: BridgeContext, inputs: Inputs) -> list[Check]:
    """Every check, also after one that fails."""
    parts = [*_views(context), _controller(context, inputs), _policy(context), _stop(context, inputs)]
    held = Check(LIMITS, True, limits_table(context.robot, context.config))
    return [*_flows(context, inputs), *_arm(context), *_gripper(context, inputs), *parts, held]


def _flows(context: BridgeContext, inputs: Inputs) -> list[Check]:
    """Rate, age and use of joint states and of each camera."""
    watch, now_ns = context.robot.watchdog, context.clock.now_ns()
    found = []
    for name, flow in inputs.flows.items():
        age_s = watch.joint_state_age_s if name == "joint_states" else watch.camera_age_s
        rate_hz = flow.rate_hz(now_ns)
        topic = context.config.joint_states if name == "joint_states" else _topic(context, name)
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


def _arm(context: BridgeContext) -> list[Check]:
    """Whether the arm stands still within its limits and workspace."""
    robot, measured = context.robot, context.loop.measured(context.clock.now_ns())
    if measured is None:
        return [Check("pose", False, "no joint states yet")]
    moving = context.loop.moving()
    standstill = Check("standstill", not moving, moving or "at rest")
    if isinstance(robot, TwoArmRobot):
        return [*_two_arms(robot, measured.angles), standstill]
    motion = Motion(robot.limits, 1 / robot.rate_hz, robot.workspace.inside)
    broken = motion.allows_rest(measured.angles[None])[0]
    where = np.array2string(robot.chain.position(measured.angles), precision=3)
    outside = [name for name, bits in zip(robot.limits.names, broken, strict=True) if bits & ~Limit.WORKSPACE]
    boxed = bool((broken & Limit.WORKSPACE).any())
    return [
        Check("limits", not outside, f"outside: {', '.join(outside)}; move it by hand" if outside else "within"),
        Check("workspace", not boxed, f"{robot.tool_frame} at {where} m in {robot.base_frame}" + ", outside" * boxed),
        standstill,
    ]


def _two_arms(robot: TwoArmRobot, angles: np.ndarray) -> list[Check]:
    """Whether both arms are within limits and workspaces, and far enough from each other."""
    broken = Motion(robot.limits, 1 / robot.rate_hz).allows_rest(angles[None])[0]
    outside = [name for name, bits in zip(robot.limits.names, broken, strict=True) if bits]
    placed = {kind: [one.detail for one in robot.out_of_place(angles[None]) if one.kind == kind] for kind in _PLACES}
    left, right, apart = robot.clearance.nearest(angles)
    tools = "; ".join(f"{arm.tool_frame} inside" for arm in robot.arms)
    advice = "; move it by hand"
    return [
        Check("limits", not outside, f"outside: {', '.join(outside)}{advice}" if outside else "within"),
        Check(
            "workspace", not placed[WORKSPACE], "; ".join(placed[WORKSPACE]) + advice if placed[WORKSPACE] else tools
        ),
        Check(
            "distance", not placed[DISTANCE], f"{left} and {right} {apart:.3f} m apart" + advice * len(placed[DISTANCE])
        ),
    ]


def _gripper(context: BridgeContext, inputs: Inputs) -> list[Check]:
    """Whether each of the grippers' fingers is heard."""
    config = context.config
    if not config.grippers:
        return [Check("gripper", True, "none in the arm's file: what the policy says to one moves nothing")]
    missing = inputs.missing_fingers()
    return [Check("gripper", not missing, missing or f"{', '.join(config.fingers)} on {config.joint_states}")]


def _views(context: BridgeContext) -> list[Check]:
    """Whether each camera is the one that training looked through; nothing before each has sent a picture."""
    seen = context.observations.newest()
    if not seen:
        return []
    return [Check("views", *compare_views(seen, context.inference.metadata.get("views")))]


def _controller(context: BridgeContext, inputs: Inputs) -> Check:
    """Whether somebody listens to set points, and nobody else sends any."""
    if context.options.mode != "live":
        return Check("controller", True, f"{context.options.mode}: nothing is sent")
    if problem := inputs.command_problem():
        return Check("controller", False, problem)
    return Check("controller", True, "; ".join(f"{arm.adapter} on {arm.topic}" for arm in context.config.arms))


def _policy(context: BridgeContext) -> Check:
    """Whether the server answers, and an arm that moves could use the answers."""
    report, loop = context.inference.report, context.loop
    if not context.observations.instruction:
        return Check(POLICY, False, "there is no instruction yet: publish one to ~/instruction")
    problem = policy_problem(report, loop, context.clock.now_ns())
    if not report.answer_ms:
        return Check(POLICY, False, problem)
    median, length = float(np.median(report.answer_ms)), context.metadata["chunk_len"]
    words = f"{report.policy}; answers in {median:.0f} ms, {loop.delay_steps} of {length} steps after the picture"
    if unknown := unknown_task(context.observations.instruction, context.inference.metadata):
        words += f"; CAUTION: {unknown}"
    return Check(POLICY, not problem, f"{words}; {problem}" if problem else words)


def _stop(context: BridgeContext, inputs: Inputs) -> Check:
    """Whether the button was heard, and the arm is not stopped."""
    topic = context.config.emergency_stop
    if context.loop.state is ArmState.ESTOPPED:
        return Check(STOP, False, "the arm is e-stopped: look at it, then call ~/reset")
    inputs.watch()
    now_ns, buttons = context.clock.now_ns(), context.loop.runtime.buttons
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


def _topic(context: BridgeContext, name: str) -> str:
    return next(camera.topic for camera in context.config.cameras if camera.name == name)

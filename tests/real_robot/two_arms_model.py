"""A robot of two arms as MuJoCo sees it: bodies, joints and capsules straight from the file; no code of the gate's."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import yaml

from embodied_rl.real_robot.core.robot import ROBOTS

CAMERA = '<camera name="top" pos="0 0.5 1.2"/>'


class TwoArmModel:
    """Distances and tools of both arms at poses, by MuJoCo.

    Args:
        content: The robot's file as read by PyYAML; None: the shipped `aloha.yaml`.
    """

    def __init__(self, content: dict[str, Any] | None = None) -> None:
        self.content = content or yaml.safe_load((ROBOTS / "aloha.yaml").read_text())
        self.arms = list(self.content["arms"].values())
        self.model = mujoco.MjModel.from_xml_string(scene_xml(self.content))
        self.data = mujoco.MjData(self.model)
        joints = [joint for arm in self.arms for joint in arm["joints"]]
        self._qpos = [int(self.model.joint(joint).qposadr[0]) for joint in joints]
        last = [list(arm["joints"])[-1] for arm in self.arms]
        self.pairs = [
            (self.model.geom(f"arm0/{one}").id, self.model.geom(f"arm1/{other}").id)
            for one, left in self.arms[0]["capsules"].items()
            for other, right in self.arms[1]["capsules"].items()
            if not (left.get("finger") and right["joint"] == last[1])
            and not (right.get("finger") and left["joint"] == last[0])
        ]

    def distance(self, angles: np.ndarray) -> float:
        """Between the nearest links of the two arms, m; `angles` [n], one arm's after the other's."""
        self._pose(angles)
        return min(mujoco.mj_geomDistance(self.model, self.data, *pair, 3.0, None) for pair in self.pairs)

    def outside(self, angles: np.ndarray) -> float:
        """How far a tool is outside its arm's workspace, m; negative inside."""
        self._pose(angles)
        tools = [self.data.site(f"arm{number}/tool").xpos for number in (0, 1)]
        boxes = [arm["workspace"] for arm in self.arms]
        return max(
            float(np.max([box["lower"] - tool, tool - box["upper"]])) for box, tool in zip(boxes, tools, strict=True)
        )

    def _pose(self, angles: np.ndarray) -> None:
        self.data.qpos[self._qpos] = angles
        mujoco.mj_kinematics(self.model, self.data)


def scene_xml(content: dict[str, Any], start: np.ndarray | None = None) -> str:
    """An MJCF of both arms: position servos on every joint and finger, a camera, and nothing that collides.

    start: joint angles [12] of its keyframe, with fingers half open; None: it has none.
    """
    bodies, motors = "", ""
    for number, (side, arm) in enumerate(content["arms"].items()):
        fingers = content["ros"][side]["gripper"]["fingers"]
        bodies += _arm(f"arm{number}", arm, fingers)
        for joint in (*arm["joints"], *fingers):
            motors += f'<position joint="{joint}" kp="{500 if joint in fingers else 50}"/>'
    key = ""
    if start is not None:
        pose = " ".join(f"{_words(one.tolist())} 0.04 -0.04" for one in np.split(start, 2))
        key = f'<keyframe><key qpos="{pose}"/></keyframe>'
    return (
        f'<mujoco><compiler angle="radian" eulerseq="XYZ"/><option timestep="0.002"/><worldbody>{CAMERA}{bodies}'
        f"</worldbody><actuator>{motors}</actuator>{key}</mujoco>"
    )


def _words(numbers: list[float]) -> str:
    return " ".join(repr(float(number)) for number in numbers)


def _frame(section: dict[str, Any]) -> str:
    return f'pos="{_words(section["xyz"])}" euler="{_words(section["rpy"])}"'


def _arm(name: str, arm: dict[str, Any], fingers: list[str]) -> str:
    def capsules(joint: str) -> str:
        found = ""
        for label, one in arm["capsules"].items():
            if one["joint"] == joint:
                end = [*one["end"][:2], one["end"][2] + 1e-6 * (one["start"] == one["end"])]  # MuJoCo needs a line
                shape = f'type="capsule" fromto="{_words([*one["start"], *end])}" size="{one["radius"]!r}"'
                found += f'<geom name="{name}/{label}" contype="0" conaffinity="0" {shape}/>'
        return found

    inertia = '<inertial pos="0.05 0 0.02" mass="0.5" diaginertia="0.002 0.002 0.002"/>'
    opened = f"<body {_frame(arm['base'])}>{capsules('base')}"
    for joint, section in arm["joints"].items():
        hinge = f'<joint name="{joint}" axis="{_words(section["axis"])}" frictionloss="5" damping="0.1"/>'
        opened += f"<body {_frame(section)}>{inertia}{hinge}{capsules(joint)}"
    for finger, ends in zip(fingers, ("0.018 0.058", "-0.058 -0.018"), strict=True):
        slide = f'<joint name="{finger}" type="slide" axis="0 1 0" range="{ends}" limited="true" damping="2"/>'
        opened += f'<body pos="0.07 0 0"><inertial pos="0 0 0" mass="0.05" diaginertia="1e-5 1e-5 1e-5"/>{slide}</body>'
    return opened + f'<site name="{name}/tool" {_frame(arm["tool"])}/>' + "</body>" * (len(arm["joints"]) + 1)

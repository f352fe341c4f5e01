"""A robot of two arms as MuJoCo sees it: bodies, joints and capsules straight from the file; no code of the gate's."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
import yaml

from embodied_rl.real_robot.core.robot import ROBOTS


class TwoArmModel:
    """Distances and tools of both arms at poses, by MuJoCo.

    Args:
        content: The robot's file as read by PyYAML; None: the shipped `aloha.yaml`.
    """

    def __init__(self, content: dict[str, Any] | None = None) -> None:
        content = content or yaml.safe_load((ROBOTS / "aloha.yaml").read_text())
        self.arms = list(content["arms"].values())
        bodies = "".join(_arm(f"arm{number}", arm) for number, arm in enumerate(self.arms))
        compiler = '<compiler angle="radian" eulerseq="XYZ"/>'
        self.model = mujoco.MjModel.from_xml_string(f"<mujoco>{compiler}<worldbody>{bodies}</worldbody></mujoco>")
        self.data = mujoco.MjData(self.model)
        self.pairs = [
            (self.model.geom(f"arm0/{one}").id, self.model.geom(f"arm1/{other}").id)
            for one, left in self.arms[0]["capsules"].items()
            for other, right in self.arms[1]["capsules"].items()
            if not (left.get("finger") and right["joint"] == list(self.arms[1]["joints"])[-1])
            and not (right.get("finger") and left["joint"] == list(self.arms[0]["joints"])[-1])
        ]

    def distance(self, angles: np.ndarray) -> float:
        """Between the nearest links of the two arms, m; `angles` [n], one arm's after the other's."""
        self.data.qpos[:] = angles
        mujoco.mj_kinematics(self.model, self.data)
        return min(mujoco.mj_geomDistance(self.model, self.data, *pair, 3.0, None) for pair in self.pairs)

    def outside(self, angles: np.ndarray) -> float:
        """How far a tool is outside its arm's workspace, m; negative inside."""
        self.data.qpos[:] = angles
        mujoco.mj_kinematics(self.model, self.data)
        tools = [self.data.site(f"arm{number}/tool").xpos for number in (0, 1)]
        boxes = [arm["workspace"] for arm in self.arms]
        return max(
            float(np.max([box["lower"] - tool, tool - box["upper"]])) for box, tool in zip(boxes, tools, strict=True)
        )


def _words(numbers: list[float]) -> str:
    return " ".join(repr(float(number)) for number in numbers)


def _frame(section: dict[str, Any]) -> str:
    return f'pos="{_words(section["xyz"])}" euler="{_words(section["rpy"])}"'


def _arm(name: str, arm: dict[str, Any]) -> str:
    def capsules(joint: str) -> str:
        found = ""
        for label, one in arm["capsules"].items():
            if one["joint"] == joint:
                end = [*one["end"][:2], one["end"][2] + 1e-6 * (one["start"] == one["end"])]  # MuJoCo needs a line
                line = _words([*one["start"], *end])
                found += f'<geom name="{name}/{label}" type="capsule" fromto="{line}" size="{one["radius"]!r}"/>'
        return found

    opened = f"<body {_frame(arm['base'])}>{capsules('base')}"
    for joint, section in arm["joints"].items():
        hinge = f'<joint name="{joint}" axis="{_words(section["axis"])}"/>'
        opened += (
            f'<body {_frame(section)}><inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/>{hinge}{capsules(joint)}'
        )
    return opened + f'<site name="{name}/tool" {_frame(arm["tool"])}/>' + "</body>" * (len(arm["joints"]) + 1)

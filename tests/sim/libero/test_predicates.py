"""Goal predicates against LIBERO's own code, on states that make_official_predicates.py asked it about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.recorded import goal_of
from embodied_rl.sim.mujoco import kernel
from embodied_rl.sim.mujoco.goal import compile_predicates
from embodied_rl.types import Array

OFFICIAL = json.loads(Path(__file__).with_name("official_predicates.json").read_text())


class _Judge:
    """One goal on a model; `ask` puts the joints somewhere and says which predicates hold."""

    def __init__(self, xml: str, goal_state: list[list[str]], entities: dict[str, Any]) -> None:
        self.model = mujoco.MjModel.from_xml_string(xml)
        self.data = d = mujoco.MjData(self.model)
        self._goal = compile_predicates(goal_of({"goal_state": goal_state, "goal_entities": entities}), self.model)
        self._view = kernel.MjView(
            d.qpos, d.qvel, d.ctrl, d.qfrc_bias, d.M, d.xpos, d.xmat, d.xquat, d.site_xpos, d.site_xmat
        )
        self._held = np.zeros(len(goal_state), np.bool_)

    def ask(self, qpos: list[float]) -> list[bool]:
        self.data.qpos[:] = qpos
        mujoco.mj_forward(self.model, self.data)
        kernel.judge_now(self.data._address, self._view, self._goal, self._held)
        return self._held.tolist()


def _hinges(count: int) -> str:
    bodies = "".join(f'<body><joint name="j{i}"/><geom size=".1"/></body>' for i in range(count))
    return f"<mujoco><worldbody>{bodies}</worldbody></mujoco>"


@pytest.mark.parametrize("case", OFFICIAL["fixtures"], ids=lambda c: f"{c['word']}-{c['cls']}-{len(c['qpos'][0])}")
def test_fixtures(case: dict[str, Any]) -> None:
    """Open, close, turnon, turnoff of every official class, at and beside each bound, with one joint and with two."""
    assert set(case["expected"]) == {True, False}
    joints = [f"j{i}" for i in range(len(case["qpos"][0]))]
    entity = {"type": "object", "root_body": "world", "joints": joints, "articulation": case["articulation"]}
    judge = _Judge(_hinges(len(joints)), [[case["word"], "it"]], {"it": entity})
    assert [judge.ask(qpos)[0] for qpos in case["qpos"]] == case["expected"]


def test_turnoff_is_covered() -> None:
    assert sum(case["word"] == "turnoff" for case in OFFICIAL["fixtures"]) == 2


def _stack_judge() -> _Judge:
    case = OFFICIAL["stack"]
    return _Judge(case["xml"], [["stack", "cube", "pot"], ["up", "cube"], ["up", "pot"]], case["goal_entities"])


def test_stack_and_up() -> None:
    judge, case = _stack_judge(), OFFICIAL["stack"]
    for row, qpos in enumerate(case["qpos"]):
        expected = [case["stack"][row], case["up_cube"][row], case["up_pot"][row]]
        assert judge.ask(qpos) == expected, f"state {row}"
        assert judge.data.ncon == case["ncon"][row]
    for name in ("stack", "up_cube", "up_pot"):
        assert 10 < sum(case[name]) < len(case[name]) - 10


def _seen(judge: _Judge, qpos: list[float]) -> tuple[Array, Array]:
    judge.ask(qpos)
    entities = OFFICIAL["stack"]["goal_entities"]
    return judge.data.body(entities["cube"]["root_body"]).xpos, judge.data.body(entities["pot"]["root_body"]).xpos


def test_each_part_of_stack_decides_a_state() -> None:
    """Of the states, some fail by contact alone, some by the box alone, some by height alone."""
    judge, case = _stack_judge(), OFFICIAL["stack"]
    size = np.array(case["goal_entities"]["pot"]["size"])
    alone = {"contact": 0, "box": 0, "height": 0}
    for qpos in case["qpos"]:
        cube, pot = _seen(judge, qpos)
        gap = cube - pot
        parts = {
            "contact": judge.data.ncon > 0,
            "box": bool((np.abs(gap) < size + np.array([0, 0, 0.01 * (gap[2] < 0)])).all()),
            "height": bool(gap[2] > 0),
        }
        missing = [name for name, true in parts.items() if not true]
        if len(missing) == 1:
            alone[missing[0]] += 1
    assert all(alone.values()), alone


@pytest.mark.parametrize(
    "fact", [["juggle", "it"], ["open", "it"], ["stack", "it", "site"], ["turnon", "stiff"], ["in", "it", "it"]]
)
def test_a_goal_that_nothing_official_knows_is_refused(fact: list[str]) -> None:
    thing = {"type": "object", "root_body": "world", "joints": ["j0"], "articulation": None, "contact_geoms": []}
    stiff = thing | {"joints": [], "articulation": {"default_turnon_ranges": [1.0], "default_turnoff_ranges": [0.0]}}
    site = {"type": "site", "parent_is_object": False, "joints": [], "articulation": None}
    with pytest.raises(UserError, match=fact[0]):
        goal_of({"goal_state": [fact], "goal_entities": {"it": thing, "stiff": stiff, "site": site}})

"""Writes official_predicates.json: what LIBERO's own predicate code says of states that we made up.

Runs in a scratch environment, not in the project's (see docs/libero.md for the packages and their pitfalls):
    pip install --no-deps hf-libero==0.1.4 robosuite==1.4.0 bddl==1.0.1 mujoco==4.0.0 mujoco-core==4.0.0 numpy scipy
    numba llvmlite pillow opencv-python-headless termcolor easydict gymnasium matplotlib pyyaml cloudpickle future
        PyOpenGL packaging pyparsing cycler kiwisolver python-dateutil six contourpy fonttools typing_extensions
        farama-notifications (the articulated objects' XML files come from a checkout of LIBERO, linked as
        libero/libero/assets in that environment) LIBERO_CONFIG_PATH=FOLDER python make_official_predicates.py

Fixtures (open, close, turnon, turnoff): each official class of articulated object with its own joint bounds, asked at,
beside and between all of its bounds, with one joint and with two. Stack and up: a cube, and an open box that is a
robosuite CompositeObject, the only kind of object whose in_box the official Stack can call (no LIBERO object has one).
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mujoco
import numpy as np
from libero.libero.envs.object_states.base_object_states import ObjectState
from libero.libero.envs.objects import articulated_objects as articulated
from libero.libero.envs.predicates.base_predicates import Close, Open, Stack, TurnOff, TurnOn, Up
from robosuite.environments.base import MujocoEnv
from robosuite.models.objects import BoxObject, CompositeObject
from robosuite.models.world import MujocoWorldBase

OUT = Path(__file__).with_name("official_predicates.json")
WORDS = {"open": Open(), "close": Close(), "turnon": TurnOn(), "turnoff": TurnOff()}
FIXTURES = {
    "Microwave": ("open", "close"),
    "ShortCabinet": ("open", "close"),
    "ShortFridge": ("open", "close"),
    "WoodenCabinet": ("open", "close"),
    "WhiteCabinet": ("open", "close"),
    "FlatStove": ("turnon", "turnoff"),
}
_NEAR = 1e-9


class _Thing:
    """A fixture with other joints: all else is the official object."""

    def __init__(self, official: Any, joints: list[str]) -> None:
        self._official, self.joints = official, joints

    def __getattr__(self, name: str) -> Any:
        return getattr(self._official, name)


def fixture_cases() -> list[dict[str, Any]]:
    """[{cls, articulation, word, qpos [S, J], expected [S]}]"""
    cases = []
    for name, words in FIXTURES.items():
        official = getattr(articulated, name)()
        ranges = official.object_properties["articulation"]
        bounds = sorted({x for values in ranges.values() for x in values})
        single = sorted(
            {
                *(b + d for b in bounds for d in (-_NEAR, 0.0, _NEAR)),
                bounds[0] - 1,
                bounds[-1] + 1,
                *((a + b) / 2 for a, b in itertools.pairwise(bounds)),
            }
        )
        few = [bounds[0] - 1, *bounds, bounds[-1] + 1]
        pairs = [list(p) for p in itertools.product(few, few)]
        for word, states in itertools.product(words, ([[x] for x in single], pairs)):
            joints = [f"j{i}" for i in range(len(states[0]))]
            thing = _Thing(official, joints)
            qpos = np.zeros(len(joints))
            env = SimpleNamespace(
                fixtures_dict={"it": thing},
                objects_dict={},
                get_object=lambda _, thing=thing: thing,
                sim=SimpleNamespace(
                    data=SimpleNamespace(qpos=qpos),
                    model=SimpleNamespace(get_joint_qpos_addr=lambda joint: int(joint[1:])),
                ),
            )
            state = ObjectState(env, "it", is_fixture=True)
            expected = []
            for values in states:
                qpos[:] = values
                expected.append(bool(WORDS[word](state)))
            cases.append(
                {
                    "cls": name,
                    "articulation": {k: list(v) for k, v in ranges.items()},
                    "word": word,
                    "qpos": states,
                    "expected": expected,
                }
            )
    return cases


def stack_case() -> dict[str, Any]:
    """The scene's XML, what a goal needs to know of its objects, states [S, 14] and the official answers."""
    walls = [
        ((0, 0, -0.045), (0.07, 0.06, 0.005)),
        ((0.065, 0, 0.005), (0.005, 0.06, 0.045)),
        ((-0.065, 0, 0.005), (0.005, 0.06, 0.045)),
        ((0, 0.055, 0.005), (0.06, 0.005, 0.045)),
        ((0, -0.055, 0.005), (0.06, 0.005, 0.045)),
    ]
    pot = CompositeObject(
        "pot",
        total_size=(0.07, 0.06, 0.05),
        geom_types=["box"] * 5,
        geom_locations=[at for at, _ in walls],
        geom_sizes=[size for _, size in walls],
        locations_relative_to_center=True,
    )
    cube = BoxObject("cube", size=[0.02, 0.02, 0.02])
    world = MujocoWorldBase()
    for thing in (pot, cube):
        world.worldbody.append(thing.get_obj())
        world.merge_assets(thing)
    xml = _without_images(world.get_xml())
    model = mujoco.MjModel.from_xml_string(xml)
    data = mujoco.MjData(model)
    sim = SimpleNamespace(
        data=SimpleNamespace(body_xpos=data.xpos, body_xquat=data.xquat),
        model=SimpleNamespace(geom_id2name=lambda i: model.geom(int(i)).name or None),
    )
    objects = {"pot": pot, "cube": cube}
    env = SimpleNamespace(
        sim=sim,
        fixtures_dict={},
        objects_dict=objects,
        get_object=objects.__getitem__,
        obj_body_id={name: model.body(thing.root_body).id for name, thing in objects.items()},
    )
    env.check_contact = lambda a, b: MujocoEnv.check_contact(env, a, b)
    states = {name: ObjectState(env, name) for name in objects}
    rows: dict[str, list[Any]] = {"qpos": [], "ncon": [], "stack": [], "up_cube": [], "up_pot": []}
    for qpos in _stack_states(pot.total_size):
        data.qpos[:] = qpos
        mujoco.mj_forward(model, data)
        sim.data.contact, sim.data.ncon = data.contact, data.ncon
        rows["qpos"].append(qpos)
        rows["ncon"].append(data.ncon)
        rows["stack"].append(bool(Stack()(states["cube"], states["pot"])))
        rows["up_cube"].append(bool(Up()(states["cube"])))
        rows["up_pot"].append(bool(Up()(states["pot"])))
    entities = {
        name: {
            "type": "object",
            "root_body": thing.root_body,
            "joints": thing.joints,
            "articulation": None,
            "contact_geoms": thing.contact_geoms,
        }
        for name, thing in objects.items()
    }
    entities["pot"]["size"] = [float(x) for x in pot.total_size]
    return {"xml": xml, "goal_entities": entities, **rows}


def _without_images(xml: str) -> str:
    """Drop what refers to robosuite's files; contacts do not depend on it."""
    import xml.etree.ElementTree as ET

    root = ET.fromstring(xml)
    for tag in ("asset", "visual", "statistic"):
        for element in root.findall(tag):
            root.remove(element)
    for element in root.iter("geom"):
        element.attrib.pop("material", None)
    return ET.tostring(root, encoding="unicode")


def _stack_states(size: Any) -> list[list[float]]:
    rng = np.random.default_rng(0)
    floor = -size[2] + 0.02
    spots = [(0, 0, z) for z in (floor, floor - 0.003, 0.0, 1e-9, 0.02, -size[2] - 0.0101, -size[2] - 0.0099, 0.3)]
    spots += [(x, 0, 0.012) for x in (0.03, 0.046, 0.05, size[0] - 1e-6, size[0], size[0] + 1e-6, -size[0], 0.2)]
    spots += [(0, y, 0.012) for y in (0.03, 0.046, size[1] - 1e-6, size[1] + 1e-6, 0.2)]
    spots += [tuple(rng.uniform(-1, 1, 3) * (*np.asarray(size[:2]) * 1.05, size[2])) for _ in range(24)]
    out = []
    for k, spot in enumerate(spots):
        base = np.array([0.1, -0.2, (0.9, 0.98, 1.0, 1.02)[k % 4]])
        turn = rng.normal(size=4)
        turn = turn / np.linalg.norm(turn) if k % 3 == 0 else np.array([1.0, 0, 0, 0])
        out.append([*base, 1.0, 0.0, 0.0, 0.0, *(base + np.asarray(spot, float)), *turn])
    return [[float(x) for x in row] for row in out]


if __name__ == "__main__":
    result = {"fixtures": fixture_cases(), "stack": stack_case()}
    OUT.write_text(json.dumps(result, separators=(",", ":")) + "\n")
    rows = result["stack"]
    counts = {key: (sum(rows[key]), len(rows[key])) for key in ("stack", "up_cube", "up_pot")}
    print(counts, OUT.stat().st_size, "bytes")

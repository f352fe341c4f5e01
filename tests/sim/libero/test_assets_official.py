"""The parts of the exporter that need no official package: goals, physics-only scenes, stand-ins, cuts, the patch."""

# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from embodied_rl.sim.libero.exported import BlobStore, pack_model
from embodied_rl.sim.libero.install.convert import instruction
from embodied_rl.sim.libero.install.official import physics_scene, robosuite_patch, stand_ins
from embodied_rl.sim.libero.install.official.cuts import _find, cuts
from embodied_rl.sim.libero.install.official.goal import describe_goal, find_threshold
from tests.sim.libero.exported_tasks import saved

SCENE = """<mujoco><size njmax="5000" nconmax="5000"/>
<asset>
  <texture name="t" type="2d" builtin="checker" width="300" height="300" rgb1="1 0 0"/>
  <material name="m" texture="t"/>
  <mesh name="seen" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/><mesh name="hit" vertex="0 0 0 1 0 0 0 1 0 0 0 1"/>
</asset>
<worldbody>
  <light pos="0 0 2"/>
  <body name="fixture" pos="0.5 0 0">
    <inertial pos="0 0 0" mass="1" diaginertia="1 1 1"/>
    <geom name="fixture_vis" type="mesh" mesh="seen" contype="0" conaffinity="0" group="1" material="m"/>
    <geom name="fixture_col" type="mesh" mesh="hit" group="0" material="m"/>
    <geom name="bare" type="sphere" size=".1" contype="0" conaffinity="0" group="0"/>
    <site name="s" size=".01" material="m"/>
    <body name="door"><joint name="hinge"/><geom name="door" size=".1" mass="1" friction="0.4 0.1 0.1"/></body>
  </body>
</worldbody></mujoco>"""


def official_model() -> Any:
    """SCENE as robosuite leaves it: a fixture moved after the compile."""
    model = mujoco.MjModel.from_xml_string(SCENE)
    model.body("fixture").pos[:] = 0.3, 0.1, 0.2
    return model


def test_the_physics_scene_has_what_moves_and_collides_and_nothing_else() -> None:
    full = official_model()
    model = physics_scene.build(SCENE, full)
    assert [model.geom(i).name for i in range(model.ngeom)] == ["fixture_col", "bare", "door"]
    assert (model.ntex, model.nmat, model.nlight, model.nmesh) == (0, 0, 0, 1)
    assert np.array_equal(model.body("fixture").pos, (0.3, 0.1, 0.2))
    assert np.array_equal(model.dof_invweight0, full.dof_invweight0)


def test_a_physics_scene_moves_like_the_full_one() -> None:
    full = official_model()
    ends = []
    for model in (full, physics_scene.build(SCENE, full)):
        data = mujoco.MjData(model)
        data.qvel[0] = 3.0
        for _ in range(200):
            mujoco.mj_step(model, data)
        ends.append(data.qpos.copy())
    assert np.array_equal(*ends)


@pytest.mark.parametrize(
    ("before", "after", "field"),
    [
        ('friction="0.4 0.1 0.1"', 'friction="0.5 0.1 0.1"', "geom_friction"),
        ('<joint name="hinge"/>', '<joint name="hinge" damping="1"/>', "dof_damping"),
        ("<mujoco>", '<mujoco><option timestep="0.004"/>', "opt.timestep"),
    ],
)
def test_a_physics_scene_that_would_differ_is_refused(before: str, after: str, field: str) -> None:
    with pytest.raises(ValueError, match=f"differs from the official one in {field}"):
        physics_scene.build(SCENE.replace(before, after), official_model())


def test_the_arena_is_small() -> None:
    model = mujoco.MjModel.from_xml_string(physics_scene.small_arena(SCENE))
    assert model.narena == 64 << 20


@pytest.mark.parametrize(
    ("rule", "bounds", "expected"),
    [
        (lambda q: q < -1.3, [-2.094, -1.3, -0.005, 0.0], (-1.3, False, False)),  # Microwave.is_open
        (lambda q: q > -0.005, [-2.094, -1.3, -0.005, 0.0], (-0.005, True, False)),  # Microwave.is_close
        (lambda q: q >= 0.5, [0.5, 2.1, -0.005, 0.0], (0.5, True, True)),  # FlatStove.turn_on
        (lambda q: q < 0.0, [0.5, 2.1, -0.005, 0.0], (0.0, False, False)),  # FlatStove.turn_off
    ],
)
def test_a_rule_is_found_from_its_answers(rule: Any, bounds: list[float], expected: tuple[float, bool, bool]) -> None:
    assert find_threshold(rule, sorted(bounds)) == expected


@pytest.mark.parametrize("rule", [lambda q: True, lambda q: abs(q) > 1, lambda q: q > 0.77])
def test_a_rule_that_is_no_threshold_is_refused(rule: Any) -> None:
    with pytest.raises(ValueError, match="should change at one of"):
        find_threshold(rule, [-1.0, 0.5, 1.0])


class FakeEnv:
    """The attributes of an official environment that describe_goal reads."""

    def __init__(self, goal: list[list[str]]) -> None:
        stove = types.SimpleNamespace(
            root_body="stove_main",
            contact_geoms=["stove_g0"],
            joints=["stove_knob"],
            turn_on=lambda q: q >= 0.5,
            turn_off=lambda q: q < 0.0,
            object_properties={
                "articulation": {"on": [0.5, 2.1], "off": [-0.005, 0.0]},
                "vis_site_names": {"burner": ("stove_burner", False)},
            },
        )
        bowl = types.SimpleNamespace(
            root_body="bowl_main",
            contact_geoms=["bowl_g0"],
            joints=["bowl_joint0"],
            object_properties={"vis_site_names": {}},
        )
        cook = types.SimpleNamespace(under=None, joints=[])
        zone = types.SimpleNamespace(under=None, joints=None)
        self.parsed_problem = {"goal_state": goal}
        self.fixtures_dict, self.objects_dict = {"stove": stove}, {"bowl": bowl}
        self._all = {"stove": stove, "bowl": bowl, "stove_cook": cook, "table_zone": zone}

        def state(kind: str, parent: str | None = None) -> Any:
            return types.SimpleNamespace(object_state_type=kind, parent_name=parent)

        self.object_states_dict = {
            "stove": state("object"),
            "bowl": state("object"),
            "stove_cook": state("site", "stove"),
            "table_zone": state("site"),
        }

    def get_object(self, name: str | None) -> Any:
        return self._all.get(name or "")


def test_goals_become_predicates() -> None:
    env = FakeEnv(
        [
            ["turnon", "stove"],
            ["on", "bowl", "stove_cook"],
            ["on", "bowl", "table_zone"],
            ["in", "bowl", "stove_cook"],
            ["on", "bowl", "stove"],
            ["turnoff", "stove"],
        ]
    )
    goal, indicators = describe_goal(env)
    knob = {"joints": ["stove_knob"], "threshold": 0.5, "above": True, "need_all": False, "inclusive": True}
    assert goal == [
        {"kind": "JointRange", **knob},
        {
            "kind": "OnSite",
            "body": "bowl_main",
            "site": "stove_cook",
            "body_geoms": ["bowl_g0"],
            "contact_geoms": ["stove_g0"],
        },
        {"kind": "OnSite", "body": "bowl_main", "site": "table_zone", "body_geoms": [], "contact_geoms": []},
        {"kind": "In", "body": "bowl_main", "site": "stove_cook"},
        {
            "kind": "On",
            "body": "bowl_main",
            "other": "stove_main",
            "body_geoms": ["bowl_g0"],
            "other_geoms": ["stove_g0"],
        },
        {
            "kind": "JointRange",
            "joints": ["stove_knob"],
            "threshold": 0.0,
            "above": False,
            "need_all": True,
            "inclusive": False,
        },
    ]
    assert indicators == [{"site": "stove_burner", "when": knob}]


@pytest.mark.parametrize("fact", [["in", "bowl", "stove"], ["stack", "bowl", "stove"], ["turnon", "stove_cook"]])
def test_a_goal_that_no_official_task_has_is_refused(fact: list[str]) -> None:
    with pytest.raises(ValueError, match=f"the goal .{fact[0]} "):
        describe_goal(FakeEnv([fact]))


def test_stand_ins_compile_where_the_files_are_missing(tmp_path: Path) -> None:
    there = tmp_path / "there.png"
    there.write_bytes(stand_ins.make("x.png", tmp_path / "made").read_bytes())
    xml = f"""<mujoco><asset><texture name="a" type="2d" file="{there}"/><texture name="b" type="2d" file="/no/b.png"/>
    <material name="b" texture="b"/><mesh name="c" file="/no/c.msh"/><mesh name="d" file="/no/d.stl" scale="2 2 2"/>
    </asset><worldbody><geom type="mesh" mesh="c" material="b"/><geom type="mesh" mesh="d"/></worldbody></mujoco>"""
    missing = stand_ins.missing_files(xml)
    assert missing == ["/no/b.png", "/no/c.msh", "/no/d.stl"]
    for path in missing:
        xml = xml.replace(path, str(stand_ins.make(path, tmp_path / "made")))
    model = mujoco.MjModel.from_xml_string(xml)
    assert (model.ntex, model.nmesh) == (2, 2)
    assert set(model.tex_data.tolist()) == {128}
    with pytest.raises(ValueError, match="no stand-in can be made for /no/e"):
        stand_ins.make("/no/e.wav", tmp_path)


def test_a_stand_in_is_whole_while_another_process_makes_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two exporting processes share the folder: one that writes must not empty what the other is reading."""
    target = stand_ins.make("x.png", tmp_path)
    whole, seen = target.read_bytes(), []
    write = Path.write_bytes

    def watched(path: Path, data: bytes) -> int:
        path.open("wb").close()  # as between the opening and the writing of a file
        seen.append(target.read_bytes())
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", watched)
    assert stand_ins.make("x.png", tmp_path) == target
    assert seen == [whole]
    assert target.read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == [target.name]  # and no remains


def test_large_parts_of_a_model_are_shared_between_scenes(tmp_path: Path) -> None:
    texture = '<texture name="{0}" type="2d" builtin="checker" width="{1}" height="300" rgb1="{2} 0 0"/>'
    small, big, other = texture.format("s", 8, 1), texture.format("b", 300, 1), texture.format("o", 280, 0.5)
    store, pieces = BlobStore(tmp_path), []
    for assets in (small + big, other + big + small):
        model = mujoco.MjModel.from_xml_string(
            f"<mujoco><asset>{assets}</asset><worldbody><geom size='1'/></worldbody></mujoco>"
        )
        pieces.append(pack_model(store, saved(model), cuts(model, saved(model))))
        tex = model.tex("b")
        first = int(tex.adr[0])
        shared = store.put(model.tex_data[first : first + 300 * 300 * 3].tobytes())
        assert shared in pieces[-1]
    assert len(set(pieces[0]) & set(pieces[1])) >= 1


@pytest.mark.parametrize("plain", [True, False])
def test_an_array_is_found_where_it_stands_first(plain: bool) -> None:
    rng = np.random.default_rng(0)
    values = bytes(70_000) if plain else rng.integers(0, 256, 70_000, np.uint8).tobytes()
    near = values[:-1] + b"x"
    for before in (b"", b"y" * 9, near):
        assert _find(before + values + values, values) == len(before)
    with pytest.raises(ValueError):
        _find(near, values)


@pytest.mark.parametrize(
    ("short", "text"),
    [
        ("KITCHEN_SCENE10_close_the_top_drawer_of_the_cabinet", "close the top drawer of the cabinet"),
        ("LIVING_ROOM_SCENE5_put_the_red_mug_on_the_left_plate", "put the red mug on the left plate"),
        ("STUDY_SCENE1_pick_up_the_book", "pick up the book"),
        ("turn_on_the_stove", "turn on the stove"),
    ],
)
def test_the_instruction_is_the_file_name_without_its_scene(short: str, text: str) -> None:
    assert instruction(short) == text


def _empty_class(name: str) -> Any:
    return type(name, (), {})


def test_the_patch_finds_addresses_and_the_mass_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mujoco, "mj_fullM", mujoco.mj_fullM)  # so that it is put back
    bindings: Any = types.ModuleType("robosuite.utils.binding_utils")
    bindings.MjModel, bindings.MjData = _empty_class("MjModel"), _empty_class("MjData")
    for name in ("robosuite", "robosuite.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, bindings.__name__, bindings)
    robosuite_patch.apply()
    raw = mujoco.MjModel.from_xml_string(
        """<mujoco><worldbody><body><freejoint name="free"/><geom size=".1"/></body>
        <body><joint name="ball" type="ball"/><geom size=".1" pos="1 0 0"/></body>
        <body><joint name="hinge"/><geom size=".1" pos="0 1 0"/></body></worldbody></mujoco>"""
    )
    model: Any = bindings.MjModel()
    model.jnt_type, model.jnt_qposadr, model.jnt_dofadr = raw.jnt_type, raw.jnt_qposadr, raw.jnt_dofadr
    model.joint_name2id = lambda name: raw.joint(name).id
    assert [model.get_joint_qpos_addr(name) for name in ("free", "ball", "hinge")] == [(0, 7), (7, 11), 11]
    assert [model.get_joint_qvel_addr(name) for name in ("free", "ball", "hinge")] == [(0, 6), (6, 9), 9]
    data = mujoco.MjData(raw)
    mujoco.mj_forward(raw, data)
    wrapper: Any = bindings.MjData()
    wrapper._data = data
    full = np.zeros((raw.nv, raw.nv))
    patched: Any = mujoco
    patched.mj_fullM(raw, full, wrapper.qM)  # robosuite's call
    assert np.array_equal(full, full.T)
    assert full[9, 9] > 0

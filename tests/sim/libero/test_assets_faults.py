"""What goes wrong with an installation: half-done cleaning, altered files, full disks, others at work, manifests."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.cli import main
from embodied_rl.errors import UserError
from embodied_rl.sim.libero.exported import BlobStore, exported_path, installed, read_exported
from embodied_rl.sim.libero.install import environment as environment_module
from embodied_rl.sim.libero.install import folder as folder_module
from embodied_rl.sim.libero.install import wheels
from embodied_rl.sim.libero.install.benchmarks import LIBERO, LIBERO_PRO
from embodied_rl.sim.libero.install.environment import READY, Environment
from embodied_rl.sim.libero.install.folder import alone
from embodied_rl.sim.libero.install.judge import judge_states
from embodied_rl.sim.libero.install.official import stand_ins
from embodied_rl.sim.libero.install.sources import altered_files
from embodied_rl.sim.libero.install.state import Problem, remove, verify
from embodied_rl.sim.libero.tasks import load_task
from tests.sim.libero.exported_tasks import NAME, OTHER, install_fake
from tests.sim.libero.stage import SHORT, Silent, Stage

PRO_NAME = "libero_goal_lan/turn_on_the_stove"


def _quiet(done: int, total: int) -> None:
    """Progress that nobody sees."""


@pytest.mark.process
def test_cleaning_that_is_interrupted_leaves_nothing_that_is_taken_for_whole(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = folder_module.shutil.rmtree

    def stop(folder: Path, **options: Any) -> None:
        if Path(folder).name != folder_module.TRASH:
            real(folder, **options)
        elif folder.exists():
            next(folder.iterdir()).rename(folder / "half")
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(folder_module.shutil, "rmtree", stop)
        with pytest.raises(KeyboardInterrupt):
            stage.install()
    assert len(installed(stage.root)) == 2
    assert not (stage.root / "work").exists()
    assert stage.install() == 0
    assert not (stage.root / "work-trash").exists()


def _official(monkeypatch: pytest.MonkeyPatch, assets: Path, files: dict[str, bytes]) -> None:
    """Files of the repository, and in `assets` as well."""
    for path, data in files.items():
        (assets / path).write_bytes(data)
    blobs = {path: wheels.blob_id(data) for path, data in files.items()}
    monkeypatch.setattr(wheels, "official_files", lambda: {**blobs, "scenes/not_there.png": "0" * 40})


@pytest.mark.process
def test_an_altered_picture_in_a_folder_counts_as_missing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    _official(monkeypatch, stage.assets, {"scenes/a.png": b"a", "scenes/b.png": b"b", "scenes/c.xml": b"c"})
    assert altered_files(stage.assets) == ()
    (stage.assets / "scenes" / "b.png").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    assert altered_files(stage.assets) == ("scenes/b.png",)
    with pytest.raises(UserError, match=r"2 of 2 tasks were left out because .* lacks 1 files: scenes/b.png"):
        stage.install()
    assert stage.install(fill_missing=True) == 2
    (stage.assets / "scenes" / "c.xml").write_bytes(b"c\r\n")
    with pytest.raises(UserError, match=r"1 file in .* differ from LIBERO's repository, the first is scenes/c.xml"):
        altered_files(stage.assets)


def test_a_file_that_counts_as_missing_is_named_as_the_scene_spells_it(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    (tmp_path / "b.png").touch()
    files = "".join(f'<texture file="{tmp_path}/x/../{name}.png"/>' for name in "ab")
    xml = f"<mujoco><asset>{files}</asset></mujoco>"
    (tmp_path / "x").mkdir()
    assert stand_ins.missing_files(xml) == []
    assert stand_ins.missing_files(xml, {str((tmp_path / "b.png").resolve())}) == [f"{tmp_path}/x/../b.png"]


@pytest.mark.process
def test_where_the_assets_are_from_is_said_in_full(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(stage.assets.parent)
    stage.install(source=Path("assets"))
    assert json.loads((stage.root / "manifest.json").read_text())["assets"] == str(stage.assets)


@pytest.mark.process
def test_a_full_disk_of_the_exporter_stops_everything_in_one_line(stage: Stage) -> None:
    stage.plan({short: {"answer": {"errno": errno.ENOSPC}} for short in SHORT})
    with pytest.raises(UserError, match=r"the disk of .* is full: installing needs 5 GB") as error:
        stage.install()
    assert "\n" not in str(error.value)
    assert len(stage.asked()) == 1, "the next task would not fit either"


def test_a_full_disk_is_not_taken_for_a_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = environment_module.subprocess.CalledProcessError(1, "ensurepip")

    def create(self: object, folder: Path) -> None:
        raise failed

    monkeypatch.setattr(environment_module.venv.EnvBuilder, "create", create)
    with pytest.raises(UserError, match="python3-venv"):
        Environment(tmp_path / "environment").build()
    monkeypatch.setattr(environment_module, "_LITTLE", 1e18)
    with pytest.raises(OSError, match="No space left") as error:
        Environment(tmp_path / "environment").build()
    assert error.value.errno == errno.ENOSPC


@pytest.mark.process
def test_what_was_fetched_stays_until_all_tasks_are_there(stage: Stage) -> None:
    other = stage.root / "work" / "environment-1"
    half = stage.root / "work" / "environment-2"
    for folder in (other, half):
        folder.mkdir(parents=True)
    (other / READY).write_text("{}")  # another benchmark's
    stage.plan({SHORT[0]: {"answer": {"error": "ValueError: odd"}}})
    with pytest.raises(UserError, match="1 of 2 tasks failed"):
        stage.install()
    assert other.is_dir()
    assert not half.exists()
    assert len(list((stage.root / "work").glob("environment-*"))) == 2
    stage.plan({})
    assert stage.install() == 1
    assert not (stage.root / "work").exists()


@pytest.mark.process
def test_the_old_library_comes_with_the_isolated_pip_and_after_the_plan(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Silent()
    monkeypatch.setattr(report, "say", lambda text: stage.fetched.append(()))
    stage.install(report=report)
    assert stage.fetched[0] == ()
    assert len(stage.fetched[1]) == 2
    stage.install()
    assert len(stage.fetched[2]) == 1, "nothing to do: no isolated environment"


@pytest.mark.process
def test_a_suite_that_is_partly_there_is_known_before_the_first_installation_ends(stage: Stage) -> None:
    stage.plan({SHORT[1]: {"die": True}})
    with pytest.raises(UserError):
        stage.install()
    stage.plan({})
    names = json.loads((stage.root / "manifest.json").read_text())["suites"]["libero_goal"]
    assert sorted(names) == sorted([NAME, OTHER])


@pytest.mark.process
def test_nothing_is_removed_beside_a_running_installation(stage: Stage) -> None:
    stage.install()
    blob = next(BlobStore(stage.root).folder.glob("*/*"))
    blob.write_bytes(b"x")
    with alone(stage.root):
        for act in (lambda: remove(stage.root, LIBERO), lambda: verify(stage.root, LIBERO, _quiet)):
            with pytest.raises(UserError, match="another installation is working in"):
                act()
    assert len(installed(stage.root)) == 2
    assert blob.exists()


@pytest.mark.process
def test_removing_what_is_not_installed_is_refused(stage: Stage) -> None:
    stage.install()
    with pytest.raises(UserError, match="LIBERO-PRO is not installed in"):
        remove(stage.root, LIBERO_PRO)
    assert len(installed(stage.root)) == 2


@pytest.mark.process
def test_a_linked_folder_is_removed_with_its_link(stage: Stage, tmp_path: Path) -> None:
    stage.install()
    disk = tmp_path / "disk"
    stage.root.rename(disk)
    stage.root.symlink_to(disk)
    remove(stage.root, LIBERO)
    assert not disk.exists()
    assert not stage.root.is_symlink()


def test_premises_of_removed_tasks_go_and_others_stay(tmp_path: Path) -> None:
    install_fake(tmp_path, (NAME, PRO_NAME))
    for name in ("manifest.json", "manifest-pro.json"):
        (tmp_path / name).write_text("{}")
    kept, gone = (
        tmp_path / "premises" / "current" / f"{load_task(tmp_path, name).fingerprint}.json" for name in (NAME, PRO_NAME)
    )
    kept.parent.mkdir(parents=True)
    kept.touch()
    gone.touch()
    remove(tmp_path, LIBERO_PRO)
    assert installed(tmp_path) == [NAME]
    assert kept.exists()
    assert not gone.exists()


def test_bundles_of_the_other_benchmark_or_another_mujoco_are_not_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_fake(tmp_path, (NAME, OTHER, PRO_NAME))
    old = exported_path(tmp_path, OTHER)
    old.write_text(json.dumps({**json.loads(old.read_text()), "mujoco": "3.9.9"}))
    judged: list[str] = []

    def find(root: Path, tasks: list[object], *_: object) -> tuple[dict[str, object], str]:
        judged.extend(str(getattr(task, "name", "")) for task in tasks)
        return {}, ""

    monkeypatch.setattr("embodied_rl.sim.libero.install.judge.find_premises", find)
    report = Silent()
    judge_states(tmp_path, LIBERO, report)
    assert judged == [NAME]
    assert not report.said + report.steps  # nothing is left to do


def test_settling_is_announced_with_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """130 tasks of 1 to 5 s each on two cores."""
    install_fake(tmp_path, (NAME,))

    def find(root: Path, tasks: object, jobs: int, tell: Any) -> tuple[dict[str, object], str]:
        tell(0, 65 * jobs)
        tell(65 * jobs, 65 * jobs)
        return {}, ""

    monkeypatch.setattr("embodied_rl.sim.libero.install.judge.find_premises", find)
    monkeypatch.setattr("embodied_rl.sim.libero.install.judge.count_jobs", lambda: 2)
    report = Silent()
    judge_states(tmp_path, LIBERO, report)
    (line,) = report.said
    assert line.startswith("All tasks can be used now.")
    assert "the initial states of 130 tasks settle" in line
    assert "2 to 6 minutes. Interrupted, what is left is done where a task is first used." in line
    assert (report.steps, report.seen) == (["settling initial states"], [(0, 130), (130, 130)])


@pytest.mark.process
def test_an_altered_bundle_is_noticed_and_made_again(stage: Stage) -> None:
    stage.install()
    path = exported_path(stage.root, NAME)
    path.write_text(json.dumps({**json.loads(path.read_text()), "instruction": "turn off the stove"}))
    assert verify(stage.root, LIBERO, _quiet) == [Problem(path, "altered, deleted")]
    assert stage.install() == 1
    assert verify(stage.root, LIBERO, _quiet) == []


@pytest.mark.process
def test_another_installation_does_not_bless_an_altered_bundle(stage: Stage) -> None:
    stage.install()
    path = exported_path(stage.root, NAME)
    path.write_text(json.dumps({**json.loads(path.read_text()), "instruction": "turn off the stove"}))
    exported_path(stage.root, OTHER).unlink()
    assert stage.install() == 1
    assert verify(stage.root, LIBERO, _quiet) == [Problem(path, "altered, deleted")]


@pytest.mark.process
def test_a_bundle_that_lacks_a_field_is_damaged(stage: Stage) -> None:
    stage.install()
    path = exported_path(stage.root, NAME)
    exported = json.loads(path.read_text())
    del exported["visual"]
    path.write_text(json.dumps(exported))
    assert verify(stage.root, LIBERO, _quiet) == [Problem(path, "damaged, deleted")]


def test_a_damaged_blob_names_the_benchmark_that_has_it(tmp_path: Path) -> None:
    install_fake(tmp_path, (NAME, PRO_NAME))
    for name, benchmark in ((NAME, "libero"), (PRO_NAME, "libero-pro")):
        for blob in read_exported(tmp_path, name)["physics"]:
            BlobStore(tmp_path).path(blob).write_bytes(b"x")
        with pytest.raises(UserError, match=rf"is damaged; run: embodied-rl assets verify {benchmark}, then"):
            load_task(tmp_path, name).build_physics()
        for blob in read_exported(tmp_path, name)["physics"]:
            BlobStore(tmp_path).path(blob).unlink()
        with pytest.raises(UserError, match=rf"is missing; run: embodied-rl assets install {benchmark}"):
            load_task(tmp_path, name).build_physics()
        install_fake(tmp_path, (NAME, PRO_NAME))


def test_an_odd_manifest_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path))
    install_fake(tmp_path / "libero")
    for text in ("{}", "[]", "3"):
        (tmp_path / "libero" / "manifest.json").write_text(text)
        assert main(["assets", "status", "libero"]) == 2
        said = capsys.readouterr().err
        assert "remove it and run: embodied-rl assets install libero" in said
        assert said.count("\n") == 1


def test_a_misspelt_era_is_refused(tmp_path: Path) -> None:
    install_fake(tmp_path, (NAME,))
    with pytest.raises(UserError, match=r"unknown era 'publised'\. Did you mean 'published'"):
        load_task(tmp_path, NAME, "publised")  # pyright: ignore[reportArgumentType]

"""Envs and policies of one's own, registered from a package of one's own: every command takes them by their names."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

import embodied_rl as erl
from embodied_rl.cli import main
from embodied_rl.cli.select import select
from embodied_rl.config import policies
from embodied_rl.config.train import load_yaml
from embodied_rl.errors import UserError
from embodied_rl.jobs.run_folder import existing_run
from embodied_rl.utils import plugins
from embodied_rl.vec_env import EnvInfo
from tests.registered import modules_of

PACKAGE = Path(__file__).parent / "plugin_package"
MODULE = "point_robot.register"
SMALL = (
    *("--iterations", "1", "--rollout.episodes-per-iteration", "8", "--evaluation.states-per-task", "2"),
    *("--videos", "0", "--env.num-envs", "4"),
)


@pytest.fixture(scope="module")
def _package() -> Iterator[None]:
    with modules_of(PACKAGE):
        yield


@pytest.fixture(scope="module")
def run(_package: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the package's policy in its env. Tests must not change it."""
    folder = tmp_path_factory.mktemp("plugin") / "run"
    words = ["train", "point", "--import", MODULE, "--policy", "linear", "--policy.std", "0.4", "--env.radius", "0.4"]
    assert main([*words, *SMALL, "--output", str(folder)]) == 0
    return folder


@pytest.fixture(autouse=True)
def _here(_package: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def line(capsys: pytest.CaptureFixture[str]) -> str:
    """What a refused command says: one line."""
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1, said
    return said[0].removeprefix("embodied-rl: error: ")


def test_a_run_says_what_it_imported_and_which_options_it_had(run: Path) -> None:
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["imports"] == [MODULE]
    assert (config["suite"], config["env"]["name"], config["env"]["radius"]) == ("point", "point", 0.4)
    assert config["policy"] == {"name": "linear", "checkpoint": "", "std": 0.4}
    (stamp,) = json.loads((run / "run.json").read_text())
    assert stamp["imports"] == [MODULE]
    assert f"--import {MODULE}" in stamp["command"]


def test_a_resumed_run_imports_them_again(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    monkeypatch.setattr(plugins, "_named", [])
    with existing_run(copy, None):
        assert plugins.imported() == (MODULE,)
    assert main(["train", "--resume", str(copy), "--iterations", "2"]) == 0
    assert load_yaml(copy / "config.yaml").iterations == 2


def test_a_run_whose_module_is_gone_is_refused_by_its_name(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    config = copy / "config.yaml"
    config.write_text(config.read_text().replace(MODULE, "point_robot.gone"))
    assert main(["train", "--resume", str(copy)]) == 2
    assert re.fullmatch(
        r".*config.yaml: module 'point_robot.gone' fails to import: ModuleNotFoundError.*", line(capsys)
    )


def test_the_checkpoint_makes_its_policy_again(run: Path) -> None:
    policy = erl.load_policy(run)
    assert type(policy).__name__ == "LinearPolicy"
    assert policy.log_std.exp()[0].item() == pytest.approx(0.4, abs=0.05)
    with erl.make_vec_env("point", 2, tasks="near", radius=1.0) as opened:
        assert erl.evaluate(opened, policy, episodes=4).overall.episodes == 4


def test_evaluation_by_the_checkpoint_alone_has_the_options_of_its_training(run: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    assert main(["eval", "--checkpoint", str(run), "--states-per-task", "1", "--json", str(report)]) == 0
    said = json.loads(report.read_text())
    assert "radius 0.4" in said["fingerprint"]["simulator"]
    assert [spec["result"]["spec"]["task"] for spec in said["episodes"]] == ["point/near", "point/far"]


def test_a_stopped_evaluation_goes_on(run: Path) -> None:
    words = ["eval", "point", "--checkpoint", str(run), "--states-per-task", "1", "--videos", "0", "--output", "e"]
    assert main(words) == 0
    assert main(["eval", "--resume", "e"]) == 0


def test_a_policy_for_pictures_trains_where_there_are_pictures() -> None:
    words = ["train", "point_pictures", "--import", MODULE, "--policy", "openvla", "--task", "near", *SMALL]
    assert main([*words, "--rollout.episodes-per-iteration", "2", "--output", "vla"]) == 0


def test_the_state_policy_trains_on_one_task_of_several() -> None:
    words = ["train", "point", "--import", MODULE, "--policy", "mlp", "--task", "far", *SMALL, "--output", "mlp"]
    assert main(words) == 0
    assert main(["eval", "--checkpoint", "mlp", "--states-per-task", "1"]) == 0


def test_demo_films_it_by_the_checkpoint_alone(run: Path) -> None:
    assert main(["demo", "--checkpoint", str(run), "--episodes", "1", "--out", "a.mp4"]) == 0
    assert Path("a.mp4").stat().st_size > 0


def test_a_leaderboard_has_its_suite(run: Path) -> None:
    board = {"checkpoints": {"a": str(run)}, "suites": ["point"], "states_per_task": 1, "looks": 1, "videos": 0}
    Path("board.yaml").write_text(yaml.safe_dump(board))
    assert main(["leaderboard", "board.yaml"]) == 0
    assert Path("runs/leaderboard-board/index.html").is_file()


def test_explain_compares_its_options(run: Path) -> None:
    for name, radius in (("near", 0.1), ("wide", 0.9)):
        side = {"checkpoint": str(run), "suite": "point", "env": {"name": "point", "radius": radius}}
        Path(f"{name}.yaml").write_text(yaml.safe_dump(side))
    assert main(["explain", "near.yaml", "wide.yaml", "--episodes", "4"]) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("collect point --out demos", "suite 'point' has no scripted expert, which collect records"),
        ("collect point --expert RUN --out demos", "suite 'point' shows no images, which collect records."),
        ("plan point --policy linear", "plan is for policies that see images"),
        ("serve RUN --port 0", "serve answers with the built-in policies, and "),
        ("export --checkpoint RUN --out exported", "a custom policy has no published layout"),
    ],
)
def test_what_a_command_lacks_is_said_by_name(
    run: Path, words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words.replace("RUN", str(run)).split(), "--import", MODULE]) == 2
    assert line(capsys).startswith(said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train pont --policy mlp --import point_robot.register", "unknown benchmark 'pont'. Did you mean 'point'?"),
        ("train point --policy liner --import point_robot.register", "unknown policy 'liner'. Did you mean 'linear'?"),
        ("eval pont --checkpoint x --import point_robot.register", "unknown benchmark 'pont'. Did you mean 'point'?"),
        ("train point --import point_robot.register", "train point needs a policy for your suite: --policy openvla, "),
        ("train point --import", "--import needs the name of a module"),
        ("train point --import point_robot.nowhere", "--import: module 'point_robot.nowhere' fails to import: "),
        ("train point --import broken", "--import: module 'broken' fails to import: ZeroDivisionError: division by z"),
        ("train point --policy mlp --task wide --import point_robot.register", "suite 'point' has no task 'wide'."),
        (
            "train point --policy openvla --import point_robot.register",
            "policy openvla reads images, and suite 'point' shows a state",
        ),
        ("train point --policy mlp --algorithm grpo --import point_robot.register", "--algorithm grpo is not offered"),
        ("train point --policy linear --protocol libero --import point_robot.register", "--protocol libero is one of"),
        (
            "train point --policy linear --env.control-mode x --import point_robot.register",
            "--env.control-mode does not apply to point (it belongs to maniskill).",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.py").write_text("1 / 0")
    assert main(words.split()) == 2
    assert line(capsys).startswith(said)


def test_an_unknown_name_without_any_module_says_how_to_bring_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plugins, "_named", [])
    assert main(["train", "my_suite"]) == 2
    assert line(capsys).endswith("One of your own: name the module that registers it with --import.")


def test_names_and_options_of_a_registration_are_checked() -> None:
    with pytest.raises(UserError, match="'tabletop_goal' is the name of something that embodied-rl has"):
        erl.register_env("tabletop_goal", lambda num_envs: num_envs)
    with pytest.raises(UserError, match="'openvla' is the name of something"):
        erl.register_policy("openvla", lambda info: info)
    with pytest.raises(UserError, match="can't be a name"):
        erl.register_env("my suite", lambda num_envs: num_envs)
    with pytest.raises(UserError, match="options must be a dataclass, a subclass of CustomEnvConfig"):
        erl.register_env("other", lambda num_envs: num_envs, options=EnvInfo)  # type: ignore[arg-type]


def test_an_option_may_have_the_earlier_name_of_a_built_in_one(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "steered", "--policy", "mlp", "--env.control", "2.0"]
    assert main(words) == 2
    assert line(capsys) == "--env.control is --env.control-mode now."

    @dataclass(frozen=True, kw_only=True)
    class Steered(erl.CustomEnvConfig):
        control: float = 1.0

    erl.register_env("steered", lambda num_envs, options: object(), options=Steered)
    config = select(words[1:]).config
    assert config is not None
    assert config.env == Steered(control=2.0, num_envs=config.env.num_envs)


def test_an_env_without_states_is_refused_by_what_it_lacks() -> None:
    erl.register_env("stateless", lambda num_envs: object())
    with pytest.raises(UserError, match="suite 'stateless': the simulator that was registered has no info"):
        erl.make_vec_env("stateless", 1)


def test_runs_of_earlier_versions_are_read(tmp_path: Path, run: Path) -> None:
    """They said 'own' in place of 'custom', and did not say what they imported."""
    data = yaml.safe_load((run / "config.yaml").read_text())
    del data["imports"]
    data["policy"] = {"name": "own", "class_name": "linear"}
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(data))
    found = load_yaml(path)
    assert (type(found.policy).__name__, found.imports) == ("LinearOptions", ())
    data["policy"] = {"name": "own", "class_name": "__main__.Mine"}
    path.write_text(yaml.safe_dump(data))
    assert load_yaml(path).policy == policies.PolicyObjectConfig(class_name="__main__.Mine")


def test_help_lists_what_is_registered(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "point", "--policy", "linear", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Registered by modules of your own: point, point_pictures" in said
    assert "--env.radius NUMBER How near the corner counts as success. [0.3]" in said
    assert "--policy.std NUMBER Standard deviation of sampled actions. [0.5]" in said


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as pip installs it, with its entry point."""
    folder = tmp_path_factory.mktemp("site")
    source = shutil.copytree(PACKAGE, folder / "source")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--target", str(folder / "site"), str(source)], check=True)
    return folder / "site"


@pytest.mark.process
def test_an_installed_package_is_simply_there_also_in_ranks_and_watched_processes(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{installed}:{Path(__file__).parents[2]}")
    words = [sys.executable, "-m", "embodied_rl", "train", "point", "--policy", "linear", *SMALL, "--output", "run"]
    ranks = ["--learner.num-processes", "2", "--env.processes", "2"]
    done = subprocess.run([*words, *ranks], check=False, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    config = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (config["imports"], config["learner"]["num_processes"]) == ([], 2)

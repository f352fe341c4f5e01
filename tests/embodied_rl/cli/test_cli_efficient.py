"""`embodied-rl eval --efficient.*`: what is left out, and that a score says so."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.cli import main
from embodied_rl.config.policies import OpenVLAConfig
from embodied_rl.factory.policies import prepare_policy, save_policy
from embodied_rl.jobs.efficient_inference import EfficientConfig, first_observations, make_efficient
from embodied_rl.policies.openvla.config import nano
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.policies.pi0 import config as pi0
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.rng import DecisionRng
from embodied_rl.sim.tabletop import load_suite
from embodied_rl.types import EpisodeSpec, Observation
from tests.embodied_rl.stand_in import StandIn

TASKS = [task.name for task in load_suite("tabletop_object")]
SPECS = [EpisodeSpec(10 * row + task, name, row, 0) for row in range(4) for task, name in enumerate(TASKS[:2])]


class World(StandIn):
    """Collects the episodes that any of them began."""

    started: list[EpisodeSpec] = []  # noqa: RUF012

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        super().reset(env_ids, episodes)
        World.started += episodes


def _simulated(*_: Any) -> World:
    return World(3, 64, 2)


def _open() -> contextlib.closing[World]:
    return contextlib.closing(World(3, 64, 2))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> type[World]:
    monkeypatch.setattr("embodied_rl.factory.scenes._simulated", _simulated)
    World.started = []
    return World


@pytest.fixture(scope="module")
def pi0_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pi0") / "policy"
    words = [task.instruction for task in load_suite("tabletop_object")]
    save_policy(Pi0Policy.fresh(pi0.nano(), words), folder, {})
    return folder


def words(folder: Path, *more: str) -> list[str]:
    tasks = [name.partition("/")[2] for name in TASKS[:2]]
    start = ["eval", "tabletop", "--suite", "object", "--states-per-task", "2", "--videos", "0", "--tasks", *tasks]
    return [*start, "--output", str(folder), *more]


def figures(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text())


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished evaluation that leaves nothing out. Tests copy it."""
    folder = tmp_path_factory.mktemp("evaluated") / "e"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embodied_rl.factory.scenes._simulated", _simulated)
        assert main(words(folder)) == 0
    return folder


def test_a_score_says_what_was_left_out_and_resumes(
    world: type[World], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "e"
    assert main(words(folder, "--efficient.drop-layers", "1", "--efficient.visual-tokens", "16")) == 0
    found = figures(folder)
    (dropped,) = found["fingerprint"]["efficient"]["dropped_layers"]
    assert found["fingerprint"]["efficient"] == {"dropped_layers": [dropped], "visual_tokens": 16, "denoise_reuse": 1}
    assert found["efficient"]["dropped_layers"] == [dropped]
    assert found["efficient"]["visual_tokens_in_all"] == 32
    said = " ".join(capsys.readouterr().out.split())
    assert f"layers left out: {dropped} of 0 to 1 (importance 0: 0." in said
    assert "visual tokens: 16 of 32" in said
    assert "visual tokens: 16 of 32" in (folder / "report.html").read_text()
    # four episodes are there to look at, then each runs once
    assert [spec.episode_id for spec in world.started[:4]] == [spec.episode_id for spec in world.started[4:]]
    assert found["overall"]["once"]["episodes"] == 4
    lines = (folder / "episodes.jsonl").read_text().splitlines(keepends=True)
    (folder / "episodes.jsonl").write_text(lines[0])
    assert main(["eval", "--resume", str(folder)]) == 0
    assert figures(folder) | {"command": ""} == found | {"command": ""}


def test_a_ledger_refuses_other_options(
    world: type[World],
    evaluated: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = shutil.copytree(evaluated, tmp_path / "e")
    assert figures(folder)["efficient"] == {
        "dropped_layers": [],
        "layers": 2,
        "importance": [],
        "denoise_reuse": 1,
        "compiled": False,
        "visual_tokens": 32,
        "visual_tokens_in_all": 32,
    }
    for option in (["--efficient.drop-layers", "1"], ["--efficient.visual-tokens", "31"]):
        capsys.readouterr()
        assert main(words(folder, *option)) == 2
        assert "holds another evaluation" in capsys.readouterr().err
    # the same request that comes out at other layers is not continued either
    other = tmp_path / "o"
    assert main(words(other, "--efficient.drop-layers", "1")) == 0
    (dropped,) = figures(other)["fingerprint"]["efficient"]["dropped_layers"]
    monkeypatch.setattr("embodied_rl.policies.efficient.least_important", lambda importance, count: [1 - dropped])
    capsys.readouterr()
    assert main(["eval", "--resume", str(other)]) == 2
    said = capsys.readouterr().err
    assert "was begun with efficient" in said
    assert said.count("\n") == 1


def test_a_quick_look_says_it_too(
    world: type[World], tmp_path: Path, pi0_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "f.json"
    command = [
        "eval",
        "--suite",
        "tabletop_object",
        "--tasks",
        TASKS[0].partition("/")[2],
        "--states-per-task",
        "2",
        "--checkpoint",
        str(pi0_folder),
        "--json",
        str(file),
    ]
    assert main([*command, "--efficient.denoise-reuse", "3", "--efficient.drop-layers", "1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "action expert: in one of 3 denoising steps (10 in all)" in said
    assert "of 0 to 2 (importance 0: " in said
    assert json.loads(file.read_text())["efficient"]["denoise_reuse"] == 3
    assert main(command) == 0
    assert "efficient" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--efficient.drop-layers 2", "--efficient.drop-layers 2: the policy has 2 layers; one must stay."),
        ("--efficient.drop-layers -1", "--efficient.drop-layers must be at least 0, got -1."),
        ("--efficient.visual-tokens 33", "--efficient.visual-tokens 33: the policy has 32 of them."),
        ("--efficient.visual-tokens 0", "--efficient.visual-tokens must be at least 1, got 0."),
        ("--efficient.denoise-reuse 2", "--efficient.denoise-reuse does not apply to openvla, which does not denoise."),
        ("--efficient.denoise-reuse 0", "--efficient.denoise-reuse must be at least 1, got 0."),
        (
            "--efficient.denoise-reuse 11 --checkpoint PI0",
            "--efficient.denoise-reuse 11: the policy has 10 denoising steps.",
        ),
        (
            "--efficient.denoise-reuse 2 --efficient.compile --checkpoint PI0",
            "--efficient.compile compiles one denoising step",
        ),
        (
            "--efficient.drop-layer 1",
            "unknown option '--efficient.drop-layer'. Did you mean '--efficient.drop-layers'?",
        ),
    ],
)
def test_what_does_not_apply_is_one_line(
    words: str, message: str, world: type[World], tmp_path: Path, pi0_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = words.replace("PI0", str(pi0_folder)).split()
    for start in (["eval", "tabletop", "--output", str(tmp_path / "e")], ["eval"]):
        assert main([*start, *more]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert said.count("\n") == 1
    assert not world.started
    assert not (tmp_path / "e").exists()


def test_a_score_says_that_the_policy_was_compiled(
    world: type[World],
    evaluated: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts: list[Any] = []

    def run(part: Any, device: str) -> Any:
        parts.append(part)
        return part

    monkeypatch.setattr("embodied_rl.policies.compile._compile", run)
    monkeypatch.setattr("embodied_rl.policies.openvla.compile._PREFILL._run", {})
    monkeypatch.setattr("embodied_rl.policies.openvla.compile._PATCHES._run", {})
    assert main(words(tmp_path / "e", "--efficient.compile")) == 0
    assert len(parts) == 2
    found = figures(tmp_path / "e")
    assert found["fingerprint"]["efficient"]["compiled"] is True
    assert found["policy"]["compiled"] is True
    shutil.copytree(evaluated, tmp_path / "o")
    assert figures(tmp_path / "o")["policy"]["compiled"] is False
    assert "compiled" not in figures(tmp_path / "o")["fingerprint"]["efficient"]
    assert main(words(tmp_path / "o", "--efficient.compile")) == 2
    assert "holds another evaluation" in capsys.readouterr().err
    assert len(parts) == 2


def test_without_a_compiler_nothing_begins(
    world: type[World], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    train = ["train", "tabletop", "--policy.compile", "--output", str(tmp_path / "e")]
    for command in (train, words(tmp_path / "e", "--efficient.compile")):
        assert main(command) == 2
        said = capsys.readouterr().err
        assert "compiling needs a C++ compiler" in said
        assert said.count("\n") == 1
    assert main([*train, "--autotune"]) == 2
    assert "--autotune would take the compiler's time" in capsys.readouterr().err
    assert not (tmp_path / "e").exists()


def test_training_acts_compiled_if_asked() -> None:
    for config in (OpenVLAConfig(compile=True), OpenVLAConfig()):
        policy = OpenVLAPolicy.fresh(nano(), ["a b"])
        prepare_policy(policy, config, Path())
        assert policy.compiled is config.compile


def test_training_has_no_such_option(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--policy.drop-layers", "--policy.speed.drop-layers"):
        assert main(["train", "tabletop", "--policy", "openvla", option, "1"]) == 2
        assert "unknown option" in capsys.readouterr().err
    for option in ("--efficient.drop-layers", "--efficient.compile"):
        assert main(["train", "tabletop", option, "1"]) == 2
        said = capsys.readouterr().err
        assert f"{option} is an option of embodied-rl eval, and not of train." in said
        assert len(said) < 200
        assert ("--policy.compile" in said) == (option == "--efficient.compile")


def test_the_first_observations_do_not_depend_on_the_order_and_are_few() -> None:
    seen = first_observations(_open, SPECS)
    assert len(seen) == len(SPECS) <= 16
    assert [obs.instruction for obs in seen[:2]] != [seen[0].instruction] * 2  # tasks take turns
    again = first_observations(_open, [*SPECS[::2], *SPECS[1::2]])  # task by task
    for one, two in zip(seen, again, strict=True):
        np.testing.assert_array_equal(one.images, two.images)
    many = [EpisodeSpec(row, TASKS[0], row, 0) for row in range(40)]
    assert len(first_observations(_open, many)) == 16


def _decided(policy: Any, obs: Observation) -> Any:
    return policy.act(obs, DecisionRng(np.zeros(1, int), np.zeros(1, int)), "greedy").actions


@pytest.mark.parametrize(
    "make", [lambda: OpenVLAPolicy.fresh(nano(layers=4), ["a b"]), lambda: Pi0Policy.fresh(pi0.nano(layers=4), ["a b"])]
)
def test_what_is_left_out_is_always_the_same(make: Any) -> None:
    config = EfficientConfig(drop_layers=2, visual_tokens=9)
    one, two, whole = make(), make(), make()
    first, second = (make_efficient(policy, config, _open, SPECS) for policy in (one, two))
    assert first == second
    assert first is not None
    assert len(first.dropped_layers) == 2
    (obs,) = first_observations(_open, SPECS[:1])
    np.testing.assert_array_equal(_decided(one, obs), _decided(two, obs))
    assert not np.array_equal(_decided(one, obs), _decided(whole, obs))
    before = _decided(whole, obs)
    make_efficient(whole, EfficientConfig(visual_tokens=32), _open, SPECS)
    np.testing.assert_array_equal(_decided(whole, obs), before)


def test_a_request_from_before_these_options_is_one_line(
    world: type[World], evaluated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(evaluated, tmp_path / "old")
    path = tmp_path / "old" / "evaluation.json"
    head = json.loads(path.read_text())
    del head["request"]["options"]["efficient"]
    path.write_text(json.dumps(head))
    capsys.readouterr()
    assert main(["eval", "--resume", str(tmp_path / "old")]) == 2
    assert "was begun by another version" in capsys.readouterr().err

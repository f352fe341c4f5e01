"""`doctor --policy` passes the shipped checkpoint and names what is wrong with copies that were broken on purpose."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file, save_file

from embodied_rl.cli.doctor import main
from embodied_rl.data.lerobot import Demonstrations
from embodied_rl.errors import UserError
from embodied_rl.factory.policies import load_policy, policy_folder
from embodied_rl.jobs import check_policy
from embodied_rl.jobs.check_policy import Case
from embodied_rl.jobs.checks import CheckResult, DoctorConfig
from embodied_rl.rng import DecisionRng
from embodied_rl.types import Array, EvalOutput, Observation
from tests.embodied_rl.data.by_hand import make

SHIPPED = policy_folder("shipped")


@pytest.fixture(scope="module")
def seen() -> Observation:
    """What the real simulator shows first."""
    return check_policy._look(load_policy(SHIPPED), DoctorConfig(policy="shipped"))


@pytest.fixture(autouse=True)
def _seen_once(seen: Observation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_policy, "_look", lambda policy, config: seen)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(SHIPPED, tmp_path / "copy"))


def _edit(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def _weights(folder: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    state = load_file(folder / "model.safetensors")
    state[name] = change(state[name])
    save_file(state, folder / "model.safetensors")


def _problems(folder: Path, **options: Any) -> set[str]:
    results = check_policy.check_policy(DoctorConfig(policy=str(folder), **options))
    assert all(result.advice for result in results if result.state == "problem")
    return {result.name for result in results if result.state == "problem"}


def test_the_shipped_policy_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--policy", "shipped", "--json"]) == 0
    rows = {row["name"]: row["state"] for row in json.loads(capsys.readouterr().out)}
    assert rows.pop("action statistics") == "note"  # no demonstrations were named
    assert set(rows.values()) == {"ok"}
    assert len(rows) == 8


def test_a_broken_one_fails_and_the_table_says_which(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _weights(copy, "projector.fc1.weight", lambda weight: weight * torch.nan)
    assert main(["--policy", str(copy)]) == 1
    assert "cannot run yet: checkpoint" in " ".join(capsys.readouterr().out.split())


def test_a_missing_file_is_a_problem(copy: Path) -> None:
    (copy / "tokenizer.json").unlink()
    assert _problems(copy) == {"checkpoint"}


def test_statistics_of_another_suite(copy: Path) -> None:
    def other(data: dict[str, Any]) -> None:
        data["tabletop_goal"] = data["tabletop_spatial"]

    _edit(copy / "dataset_statistics.json", other)
    assert _problems(copy) == set()
    assert _problems(copy, unnorm_key="tabletop_goal") == {"unnorm key"}
    assert _problems(copy, unnorm_key="tabletop_goal", suite="tabletop_goal") == set()
    assert _problems(copy, unnorm_key="tabletop") == {"checkpoint"}


def test_gripper_of_the_other_convention(copy: Path) -> None:
    _edit(copy / "config.json", lambda data: data["model"].update(gripper_zero_one=True))
    assert _problems(copy) == {"gripper range", "gripper sign"}


def test_gripper_statistics_of_the_other_convention(copy: Path) -> None:
    def zero_one(data: dict[str, Any]) -> None:
        data["tabletop_spatial"]["action"]["q01"][-1] = 0.0

    _edit(copy / "dataset_statistics.json", zero_one)
    assert _problems(copy) == {"gripper range"}


def test_pictures_that_it_was_not_trained_on() -> None:
    assert _problems(SHIPPED, protocol="openvla") == {"image pipeline"}


def test_vision_that_does_not_reach_the_decoder(copy: Path) -> None:
    _weights(copy, "projector.fc3.weight", torch.zeros_like)
    assert "image use" in _problems(copy)


@pytest.mark.parametrize("wrong", [1.02, float("nan")])
def test_ratios_that_are_not_one(seen: Observation, wrong: float, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = load_policy(SHIPPED)
    kept = policy.evaluate

    def drifted(*arguments: Any) -> EvalOutput:
        out = kept(*arguments)
        return EvalOutput(out.log_prob * wrong, out.entropy, out.value)

    monkeypatch.setattr(policy, "evaluate", drifted)
    case = Case(policy, SHIPPED, DoctorConfig(), seen)
    assert _states(check_policy.first_update(case)) == {"first update": "problem"}


def test_ranges_beyond_the_simulator(copy: Path) -> None:
    def wide(data: dict[str, Any]) -> None:
        data["tabletop_spatial"]["action"]["q99"][2] = 3.0

    _edit(copy / "dataset_statistics.json", wide)
    assert _problems(copy) == {"action range"}


def _case(images: Array | None = None, sign: float = 1.0, scale: float = 1.0, folder: Path = SHIPPED) -> Case:
    """Demonstrations that are what the shipped policy does, changed."""
    policy = load_policy(SHIPPED)
    seen = check_policy._look(policy, DoctorConfig())
    rows = np.arange(len(seen.instruction))
    action = policy.act(seen, DecisionRng(rows, rows), "greedy").actions[:, 0].numpy().copy()
    action[:, :-1] *= scale
    action[:, -1] *= sign
    data = Demonstrations(
        seen.images.numpy() if images is None else images,
        seen.proprio.numpy(),
        action,
        np.zeros(len(rows), bool),
        np.arange(len(rows) + 1),
        np.ones(len(rows), bool),
        seen.instruction,
        ("agentview", "robot0_eye_in_hand"),
        {},
        Path(),
    )
    return Case(load_policy(folder), folder, DoctorConfig(policy="shipped"), seen, data)


def _states(results: Any) -> dict[str, str]:
    return {result.name: result.state for result in results if isinstance(result, CheckResult)}


def test_demonstrations_of_its_own_tasks_agree() -> None:
    case = _case()
    found = _states([*check_policy.gripper(case), *check_policy.images(case), *check_policy.statistics(case)])
    assert set(found.values()) == {"ok"}
    assert {"gripper in demonstrations", "mirrored images", "action statistics"} <= found.keys()


def test_demonstrations_with_an_inverted_gripper() -> None:
    assert _states(check_policy.gripper(_case(sign=-1.0)))["gripper in demonstrations"] == "problem"


def test_demonstrations_with_mirrored_pictures(seen: Observation) -> None:
    mirrored = seen.images.flip(3).numpy()
    assert _states(check_policy.images(_case(images=mirrored)))["mirrored images"] == "problem"


def test_demonstrations_in_other_units(copy: Path) -> None:
    def narrow(data: dict[str, Any]) -> None:
        action = data["tabletop_spatial"]["action"]
        action["q01"], action["q99"] = [-0.5] * 6 + [-1.0], [0.5] * 6 + [1.0]

    assert _states(check_policy.statistics(_case(scale=20.0)))["action statistics"] == "problem"
    _edit(copy / "dataset_statistics.json", narrow)
    case = _case(folder=copy)
    assert case.data is not None
    wide = np.random.default_rng(0).uniform(-1, 1, (200, 7)).astype(np.float32)
    fits = wide * np.array([0.51] * 6 + [1], np.float32)
    for action, state in ((wide, "problem"), (fits, "ok")):
        changed = replace(case, data=replace(case.data, action=action))
        assert _states(check_policy.statistics(changed))["action statistics"] == state


def test_a_dataset_with_other_vectors_is_refused(tmp_path: Path) -> None:
    sizes = {"agentview": (64, 64), "robot0_eye_in_hand": (64, 64)}
    root = make(tmp_path / "d", sizes=sizes, columns={"observation.state": pa.array([[0.0] * 7] * 24)})
    info = json.loads((root / "meta/info.json").read_text())
    info["features"]["observation.state"]["shape"] = [7]
    (root / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(UserError, match="states of 7 numbers, the policy takes"):
        check_policy.check_policy(DoctorConfig(policy="shipped", dataset=str(root)))


def test_options_of_a_policy_need_one() -> None:
    with pytest.raises(UserError, match="--unnorm-key describes a policy: name it with --policy"):
        main(["--unnorm-key", "libero"])

"""What a checkpoint says that it was made for, and what commands make of it."""

from __future__ import annotations

import dataclasses
import json
from contextlib import nullcontext
from pathlib import Path

import pytest

from embodied_rl.cli.eval import EVALUATED, QUICK, _on_its_suite
from embodied_rl.cli.select import select
from embodied_rl.config.env import CustomEnvConfig, EnvConfig, GymnasiumConfig, ManiSkillConfig, MujocoConfig
from embodied_rl.errors import UserError
from embodied_rl.factory.made_for import (
    as_learned,
    is_published_format,
    learned_in,
    need_as_learned,
    suite_of,
    trained_env,
)
from tests.env_info import env_info
from tests.hub import opened
from tests.sim.libero.exported_tasks import NAME, OTHER, install_fake


def _policy(folder: Path, suite: str | None, **config: str) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config or {"architecture": "openvla"}))
    if suite is not None:
        (folder / "provenance.json").write_text(json.dumps({"suite": suite}))
    return folder


def _run(folder: Path, suite: str) -> Path:
    """A run whose newest checkpoint was trained on `suite`."""
    _policy(folder / "checkpoints" / "iter-000002" / "policy", suite)
    for name in ("trainer.pt", "state.json"):
        (folder / "checkpoints" / "iter-000002" / name).write_text("{}")
    (folder / "checkpoints" / "latest").write_text("iter-000002")
    return folder


def test_the_suite_stands_in_the_provenance(tmp_path: Path) -> None:
    assert suite_of(str(_policy(tmp_path / "policy", "libero_object"))) == "libero_object"
    assert suite_of(str(_run(tmp_path / "run", "libero_goal"))) == "libero_goal"
    assert suite_of(str(_policy(tmp_path / "silent", None))) is None
    assert suite_of("shipped") is None
    assert suite_of("shipped:libero_object") == "libero_object"
    assert suite_of(str(tmp_path / "no such")) is None


def _learned(folder: Path, suite: str, *envs: dict[str, object]) -> str:
    """A policy that imitates a data set of each of `envs`."""
    stamps = [{"env": env, "tasks": [f"{suite}/Task-v{k}"]} for k, env in enumerate(envs)]
    sets = [{"collected": stamp} for stamp in stamps]
    about = {"dataset": sets[0], **({"datasets": sets} if len(sets) > 1 else {})}
    path = _policy(folder, suite)
    (path / "provenance.json").write_text(json.dumps({"suite": suite, "config": {"steps": 2000}, **about}))
    return str(path)


def test_imitation_learned_where_its_demonstrations_were_recorded(tmp_path: Path) -> None:
    tops = {"name": "gymnasium", "cameras": ["top"]}
    one = _learned(tmp_path / "one", "gymnasium", tops)
    assert trained_env(one, "gymnasium") == GymnasiumConfig(cameras=("top",))
    assert trained_env(one, "maniskill") is None
    both = json.loads(Path(_learned(tmp_path / "both", "gymnasium", tops, tops), "provenance.json").read_text())
    assert learned_in(both, "gymnasium")["tasks"] == ("Task-v0", "Task-v1")
    assert trained_env(_learned(tmp_path / "two", "gymnasium", tops, {"name": "gymnasium"}), "gymnasium") is None
    before = _learned(tmp_path / "before", "metaworld", {"renderer": "raster"})
    assert type(trained_env(before, "metaworld")).__name__ == "MetaWorldConfig"


SEEN: dict[str, object] = {"name": "gymnasium", "cameras": ["top"], "instruction": "lift", "control_hz": 25.0}


@pytest.mark.parametrize(
    ("suite", "learned", "given", "found"),
    [
        ("maniskill", {"control_mode": "pd_ee_delta_pos"}, ManiSkillConfig(), {"control_mode": "pd_ee_delta_pos"}),
        ("maniskill", {"control_mode": "auto"}, ManiSkillConfig(control_mode="libero"), {}),
        ("gymnasium", SEEN, GymnasiumConfig(), {"cameras": ("top",), "instruction": "lift", "control_hz": 25.0}),
        (
            "gymnasium",
            SEEN,
            GymnasiumConfig(cameras=("front",), control_hz=50.0),
            {"cameras": ("front",), "instruction": "lift", "control_hz": 50.0},
        ),
    ],
)
def test_what_a_command_leaves_open_is_as_it_was_learned(
    tmp_path: Path, suite: str, learned: dict[str, object], given: EnvConfig, found: dict[str, object]
) -> None:
    checkpoint = _learned(tmp_path / "p", suite, {"name": suite, **learned})
    assert as_learned(given, ("Task-v0",), checkpoint, suite) == dataclasses.replace(given, **found)
    if suite == "gymnasium":  # another task shows and says something else
        assert as_learned(given, ("Task-v1",), checkpoint, suite) == given


def test_another_controller_than_the_learned_one_is_refused(tmp_path: Path) -> None:
    checkpoint = _learned(tmp_path / "p", "maniskill", {"name": "maniskill", "control_mode": "pd_ee_delta_pos"})
    with pytest.raises(UserError, match=r"learned actions of the controller pd_ee_delta_pos, and --env"):
        as_learned(ManiSkillConfig(control_mode="libero"), (), checkpoint, "maniskill")


def _looks(folder: Path, *cameras: str, **about: object) -> str:
    """A policy that imitates data of no known suite."""
    path = _policy(folder, None)
    (path / "provenance.json").write_text(json.dumps({"suite": None, "cameras": cameras, **about}))
    return str(path)


def test_cameras_are_as_they_were_learned_also_where_the_data_came_from_elsewhere(tmp_path: Path) -> None:
    swapped = _looks(tmp_path / "p", "wrist", "top", robots={"one": {"cameras": ["front"]}})
    both, front = GymnasiumConfig(cameras=("wrist", "top")), GymnasiumConfig(cameras=("front",))
    assert as_learned(GymnasiumConfig(), ("Task-v0",), swapped, "gymnasium") == both
    assert as_learned(GymnasiumConfig(), ("Task-v0",), swapped, "gymnasium", "one") == front
    named = GymnasiumConfig(cameras=("side",))
    assert as_learned(named, ("Task-v0",), swapped, "gymnasium") == named
    env = {"name": "gymnasium", "cameras": ["top", "wrist"], "instruction": "lift"}
    stamp = {"collected": {"env": env, "tasks": ["gymnasium/Task-v0"]}}
    fewer = _looks(tmp_path / "fewer", "wrist", suite="gymnasium", dataset=stamp)  # sft --cameras wrist
    seen = GymnasiumConfig(cameras=("wrist",), instruction="lift")
    assert trained_env(fewer, "gymnasium") == as_learned(GymnasiumConfig(), ("Task-v0",), fewer, "gymnasium") == seen


NAMED = GymnasiumConfig(cameras=("given",))


@pytest.mark.parametrize(
    ("env", "shown", "refused"),
    [
        (NAMED, ("wrist", "top"), ""),
        (NAMED, ("top", "wrist"), "say by --env.cameras which they are, in this order"),
        (NAMED, ("side", "wrist"), "say by --env.cameras"),
        (NAMED, ("side", "top"), ""),
        (GymnasiumConfig(), ("side", "front"), "say by --env.cameras"),
        (CustomEnvConfig(), ("top", "wrist"), "a simulator must show them by these names, in this order"),
        (CustomEnvConfig(), ("side", "front"), "a simulator must show them by these names"),
        (ManiSkillConfig(), ("top", "wrist"), "a simulator must show them"),
        (ManiSkillConfig(), ("side", "front"), ""),
        (MujocoConfig(), ("top", "wrist"), ""),
    ],
)
def test_a_camera_in_anothers_place_is_refused(env: EnvConfig, shown: tuple[str, ...], refused: str) -> None:
    said = {"cameras": ["wrist", "top"], "control_hz": 20}
    info = env_info("arm", 1, cameras=shown)
    need_as_learned({}, env, info, "start")
    with (
        pytest.raises(UserError, match=f"start learned from the cameras wrist, top, .* {refused}")
        if refused
        else (nullcontext())
    ):
        need_as_learned(said, env, info, "start")
    with pytest.raises(UserError, match="start learned from 20 actions a second, the simulator takes 50"):
        need_as_learned(said, env, dataclasses.replace(info, control_hz=50), "start")


@pytest.mark.parametrize(
    ("words", "benchmarks", "suite"),
    [
        ([], EVALUATED, "libero_object"),
        (["libero"], ("libero",), "libero_object"),
        (["tabletop"], ("tabletop",), QUICK.suite),
        (["--suite", "tabletop_spatial"], EVALUATED, QUICK.suite),
    ],
)
def test_eval_takes_the_suite_that_a_run_was_trained_on(
    tmp_path: Path, words: list[str], benchmarks: tuple[str, ...], suite: str
) -> None:
    command = QUICK.__class__(suite=QUICK.suite, checkpoint=str(_run(tmp_path / "run", "libero_object")))
    assert _on_its_suite(command, words, benchmarks).suite == suite


def test_eval_keeps_its_own_suite_for_a_policy_of_another_kind_of_world(tmp_path: Path) -> None:
    command = QUICK.__class__(suite=QUICK.suite, checkpoint=str(_policy(tmp_path / "policy", "metaworld")))
    assert _on_its_suite(command, [], EVALUATED).suite == QUICK.suite


def test_a_published_folder_is_known_by_its_config(tmp_path: Path) -> None:
    published = _policy(tmp_path / "hf", None, model_type="openvla")
    assert is_published_format(str(published))
    with opened(tmp_path / "cache") as hub:
        hub.add("models/openvla/openvla-7b", published)
        assert is_published_format("openvla/openvla-7b")
    assert not is_published_format(str(_policy(tmp_path / "ours", None)))
    assert not is_published_format("shipped:libero_spatial")
    assert not is_published_format(str(tmp_path / "no such"))


@pytest.fixture
def libero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with bundles of LIBERO."""
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path / "cache"))
    install_fake(tmp_path / "cache" / "libero", (NAME, OTHER))
    return tmp_path


def test_a_published_folder_is_trained_by_the_recipe_for_published_weights(libero: Path) -> None:
    folder = str(_policy(libero / "weights", None, model_type="openvla"))
    chosen = select(["libero", "--policy.checkpoint", folder]).config
    with opened(libero / "hub") as hub:
        hub.add("models/openvla/spatial", libero / "weights")
        from_hub = select(["libero", "--policy.checkpoint", "openvla/spatial"]).config
    small = select(["libero", "--policy.checkpoint", str(_policy(libero / "small", None))]).config
    assert chosen is not None
    assert from_hub is not None
    assert small is not None
    assert (chosen.protocol, chosen.learner, chosen.env) == (from_hub.protocol, from_hub.learner, from_hub.env)
    assert small.learner != chosen.learner


def test_a_shipped_policy_is_trained_on_its_own_suite(libero: Path) -> None:
    config = select(["libero", "--policy.checkpoint", "shipped:libero_object"]).config
    assert config is not None
    assert config.suite == "libero_object"


def test_a_suite_without_a_start_asks_for_one(libero: Path) -> None:
    with pytest.raises(UserError, match=r"no policy for libero_10 ships .* \(--policy.checkpoint\), or make one"):
        select(["libero", "--suite", "10"])
    config = select(["libero", "--suite", "10", "--policy.checkpoint", "shipped"]).config
    assert config is not None
    assert config.suite == "libero_10"


def test_a_tabletop_suite_has_one_recipe_whether_libero_is_installed_or_not(
    libero: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_libero = select(["libero", "--suite", "tabletop_goal"]).config
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(libero / "nothing"))
    assert with_libero == select(["libero", "--suite", "tabletop_goal"]).config

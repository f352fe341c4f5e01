"""A policy acts in a gymnasium env or in one of the user's, and what it did is data that others imitate there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from embodied_rl.cli import main
from embodied_rl.config.env import GymnasiumConfig
from embodied_rl.config.policies import MLPConfig
from embodied_rl.config.suites import SUITES
from embodied_rl.data.collect import Attempt, record
from embodied_rl.data.lerobot import load
from embodied_rl.factory.experts import Stage, open_stage, stage_of
from embodied_rl.factory.policies import save_policy
from embodied_rl.policies.checkpoints.folder import read_json, read_provenance
from embodied_rl.policies.mlp.checkpoint import fresh
from embodied_rl.policies.preprocessing.resize import bilinear_pillow
from embodied_rl.sim.gymnasium.spaces import ReadOptions
from embodied_rl.sim.gymnasium.vec_env import GymnasiumVecEnv
from embodied_rl.types import Array, EpisodeSpec
from tests.embodied_rl.plugin_package.point_robot import env as point
from tests.registered import modules_of
from tests.sim.gymnasium.faulty_envs import Constant, make_id
from tests.sim.gymnasium.test_reading import ARMS, LEROBOT, PACKAGES

TASK = f"gymnasium/{ARMS}"
PLUGIN = Path(__file__).parents[1] / "plugin_package"
SFT = [
    *("--steps", "12", "--batch-size", "8", "--chunk-len", "4", "--warmup", "2", "--lr", "3e-3", "--threads", "1"),
    *("--val-every", "6", "--val-samples", "8", "--save-every", "6", "--shift", "0"),
]
SMALL = [
    *("--videos", "0", "--num-threads", "1", "--env.num-envs", "2", "--rollout.episodes-per-iteration", "2"),
    *("--evaluation.states-per-task", "1", "--evaluation.every", "0", "--checkpoint.every", "1", "--iterations", "1"),
]


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment's package can be imported, as if it were installed; its ids are unknown until then."""
    monkeypatch.syspath_prepend(str(PACKAGES / "gym_two_arms"))
    yield
    gymnasium.registry.pop(ARMS, None)
    sys.modules.pop("gym_two_arms", None)


def expert(folder: Path, reads: int, acts: Array, **about: Any) -> str:
    """A state policy that reads so many numbers and always does the same, in [-1, 1]; about: its training."""
    policy = fresh(MLPConfig(), reads, len(acts), seed=0)
    with torch.no_grad():
        last = [module for module in policy.model.actor if isinstance(module, torch.nn.Linear)][-1]
        last.weight.zero_()
        last.bias.copy_(torch.from_numpy(np.tile(acts, policy.chunk_len)))
    save_policy(policy, folder, {"suite": "gymnasium", **about})
    return str(folder)


def to_the_right(folder: Path, **env: Any) -> str:
    """Moves both hands of the two arms to 1.5 rad: a mark is there in half of the episodes, for each hand."""
    acts = np.zeros(14, np.float32)
    acts[[0, 7]] = 1.5 / 3.14
    return expert(folder, 14, acts, config={"tasks": [ARMS], "env": {"name": "gymnasium", **env}})


def said(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    """What a command that is refused says, in one line."""
    assert main(words) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1, shown
    return shown


@pytest.mark.process
def test_from_a_state_policy_to_one_that_sees_by_the_id_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, teacher = tmp_path / "demos", to_the_right(tmp_path / "teacher")
    words = ["collect", "gymnasium", "--task", ARMS, "--expert", teacher, "--out", str(out), "--workers", "1"]
    assert main([*words, "--episodes-per-task", "12", "--video"]) == 0
    data, info = load(out), read_json(out / "meta/info.json")
    assert (info["fps"], info["robot_type"], data.camera_names) == (50, "unknown", ["top"])
    assert info["features"]["observation.images.top"]["shape"] == [96, 96, 3]
    assert set(data.instruction) == {"Move both hands to the marks"}
    assert 0 < len(data) < 12
    assert not data.pushed.any()
    _is_what_the_env_showed(out)
    stats = read_json(out / "meta/stats.json")["action"]
    np.testing.assert_allclose(stats["mean"], data.action.astype(np.float64).mean(0), rtol=1e-6)
    np.testing.assert_allclose(stats["max"][0], 1.5, rtol=1e-6)
    np.testing.assert_allclose(stats["mean"][6], 0.5, rtol=1e-6)
    capsys.readouterr()

    start = tmp_path / "start"
    assert main(["sft", str(out), "--policy", "openvla", "--out", str(start), *SFT, "--validation", "0.34"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "14 actions in the robot's own units, 14 states" in told
    assert "50 actions a second, as gymnasium" in told
    losses = [row["loss"] for row in read_provenance(start)["history"]]
    assert losses[-1] < losses[0]
    evaluate = ["eval", "gymnasium", "--checkpoint", str(start), "--states-per-task", "1", "--videos", "0"]
    assert main([*evaluate, "--output", str(tmp_path / "evaluation")]) == 0
    assert list(read_json(tmp_path / "evaluation/report.json")["tasks"]) == [TASK]
    train = ["train", "gymnasium", "--task", ARMS, "--policy", "openvla", "--policy.checkpoint", str(start)]
    assert main([*train, *SMALL, "--output", str(tmp_path / "run")]) == 0


def _is_what_the_env_showed(out: Path) -> None:
    """Each episode's actions, done again from its start, show its images and proprio, to the last bit."""
    data = load(out)
    rows = pq.read_table(next((out / "meta/episodes").rglob("*.parquet"))).to_pydict()
    with closing(GymnasiumVecEnv([ARMS], 1, ReadOptions(own_units=True))) as env:
        obs = env.new_observation(1)
        for episode in range(len(data)):
            start, seed = (rows[f"embodied_rl/{name}"][episode] for name in ("init_state", "seed"))
            env.reset([0], [EpisodeSpec(0, TASK, start, seed)])
            frames = range(data.starts[episode], data.starts[episode + 1])
            for frame in frames:
                env.observe([0], obs)
                assert np.array_equal(obs.images.numpy(), data.images[frame : frame + 1])
                assert np.array_equal(obs.proprio[0].numpy(), data.state[frame])
                result = env.step([0], torch.from_numpy(data.action[frame][None, None]))
            assert result.success[0]


def test_a_state_policys_actions_are_stretched_as_in_its_training(tmp_path: Path) -> None:
    teacher = to_the_right(tmp_path / "teacher")
    stage = stage_of(SUITES["gymnasium"], (), None, teacher)
    assert stage.tasks == (ARMS,)
    with open_stage(stage) as bench, closing(GymnasiumVecEnv([ARMS], 1)) as env:
        episode, _ = record(bench, Attempt(0, 0, TASK, 3, 7), 0.0)
        env.reset([0], [EpisodeSpec(0, TASK, 3, 7)])
        obs = env.new_observation(1)
        acts = np.zeros(14, np.float32)
        acts[[0, 7]] = 1.5 / 3.14
        for images, state in zip(episode.images, episode.state, strict=True):
            env.observe([0], obs)
            assert np.array_equal(obs.images[0].numpy(), images)
            assert np.array_equal(obs.proprio[0].numpy(), state)
            env.step([0], torch.from_numpy(acts[None, None]))


def test_a_policy_of_images_sees_them_in_its_own_size_and_the_data_in_the_envs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    assert main(["train", "gymnasium", "--task", ARMS, "--policy", "openvla", *SMALL, "--output", str(run)]) == 0
    from embodied_rl.policies.openvla.policy import OpenVLAPolicy

    original, seen = OpenVLAPolicy.act, []

    def act(self: OpenVLAPolicy, obs: Any, *rest: Any) -> Any:
        seen.append(obs.images.numpy().copy())
        return original(self, obs, *rest)

    monkeypatch.setattr(OpenVLAPolicy, "act", act)
    with open_stage(stage_of(SUITES["gymnasium"], (), None, str(run))) as bench:
        episode, failure = record(bench, Attempt(0, 0, TASK, 3, 7), 0.0)
    assert failure == "no success in 20 steps"
    assert episode.images.shape == (20, 1, 96, 96, 3)
    assert len(seen) == 5, "a decision every four steps"
    assert np.array_equal(seen[1][0, 0], bilinear_pillow(episode.images[4, 0], 64))
    assert np.abs(episode.action).max() > 1, "in the env's own units"


class NoWords(Constant):
    """Images and joints in LeRobot's form, and nothing of what is to be done or of success."""

    def __init__(self) -> None:
        super().__init__(space=LEROBOT)

    def step(self, action: Array) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return (*super().step(action)[:4], {})


class NoImages(Constant):
    """A state."""

    def __init__(self) -> None:
        super().__init__(space=gymnasium.spaces.Box(-1, 1, (14,), np.float32))


class NoProprio(Constant):
    """An image."""

    def __init__(self) -> None:
        super().__init__(space=LEROBOT["pixels"])


def still(folder: Path, task: str, reads: int = 14) -> str:
    """A state policy of a task with one number to decide."""
    return expert(folder, reads, np.zeros(1, np.float32), config={"tasks": [task], "env": {"name": "gymnasium"}})


@pytest.mark.parametrize(
    ("entry", "words", "expected"),
    [
        (NoWords, (), "suite 'gymnasium' says no instruction, which collect records: give one by --instruction TEXT."),
        (NoWords, ("--cameras", "front"), "the observation has no such image; it has top, wrist"),
        (NoWords, ("--image-size", "64"), "shows images of its own size, which stay so: leave --image-size out."),
        (NoWords, ("--split", "fresh"), "gymnasium has no fresh initial states"),
        (NoImages, (), "suite 'gymnasium' shows no images, which collect records."),
        (
            NoProprio,
            (),
            "no proprio beside its images, which collect records: train the expert with --env.proprio KEY.",
        ),
    ],
)
def test_what_an_env_does_not_show_is_refused_by_name(
    entry: type, words: tuple[str, ...], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = make_id(entry.__name__, entry)
    given = ["collect", "gymnasium", "--out", str(tmp_path / "demos"), "--expert", still(tmp_path / "expert", task)]
    assert expected in said(capsys, [*given, *words])
    assert not list(tmp_path.glob("demos*"))


def test_pushes_are_for_a_hand(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["collect", "gymnasium", "--out", str(tmp_path / "demos"), "--expert", to_the_right(tmp_path / "expert")]
    assert "pushes are for actions in [-1, 1]" in said(capsys, [*words, "--dart-noise-rate", "0.1"])


def test_a_policy_that_learned_at_another_rate_is_no_expert(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    teacher = expert(tmp_path / "expert", 14, np.zeros(14, np.float32), control_hz=10)
    words = ["collect", "gymnasium", "--task", ARMS, "--out", str(tmp_path / "demos"), "--expert", teacher]
    assert "learned from 10 actions a second, the simulator takes 50" in said(capsys, words)


def test_an_env_without_success_is_recorded_to_its_end(tmp_path: Path) -> None:
    """What it shows is chosen, and what is to be done said, as in training; nothing says that it succeeds."""
    task = make_id("NoWords", NoWords)
    env = GymnasiumConfig(num_envs=1, cameras=("wrist",), instruction="lift the cube")
    stage = Stage("gymnasium", (task,), env, None, still(tmp_path / "expert", task))
    with open_stage(stage) as bench:
        assert bench.env.info.cameras == ("wrist",)
        episode, failure = record(bench, Attempt(0, 0, f"gymnasium/{task}", 3, 7), 0.0)
    assert (failure, episode.instruction, episode.extra["ends_in_success"]) == ("", "lift the cube", 0)
    assert len(episode.images) == bench.env.info.max_episode_steps


def test_words_of_another_task_are_not_taken_over(tmp_path: Path) -> None:
    teacher = to_the_right(tmp_path / "teacher", instruction="reach", cameras=["top"])
    same, other = (stage_of(SUITES["gymnasium"], tasks, None, teacher).env for tasks in ((ARMS,), ("Other-v0",)))
    assert same == GymnasiumConfig(num_envs=1, instruction="reach", cameras=("top",))
    assert other == GymnasiumConfig(num_envs=1, cameras=("top",))


def to_the_corner(folder: Path) -> str:
    """A registered policy that goes straight to the goal that it reads."""
    from embodied_rl.config.register import CUSTOM_POLICIES
    from embodied_rl.factory.custom import MadeFor, save_custom

    info = point.PointEnv(1, cameras=("top", "hand"), size=64, proprio=8, action=7).info
    policy: Any = MadeFor("linear", CUSTOM_POLICIES["linear"].options(), info, ("point_robot.register",)).make()
    with torch.no_grad():
        weight = torch.zeros(policy.chunk_len, 7, 8)
        weight[:, 0, 2] = weight[:, 1, 3] = 2
        weight[:, 0, 0] = weight[:, 1, 1] = -2
        policy.mean.weight.copy_(weight.flatten(0, 1))
        policy.mean.bias.zero_()
    save_custom(policy, folder, {"suite": "point_pictures", "config": {"imports": ["point_robot.register"]}})
    return str(folder)


@pytest.mark.process
def test_in_a_registered_env_by_a_registered_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Another process than this one knows the env by what the expert's checkpoint says."""
    out, start = tmp_path / "demos", tmp_path / "start"
    with modules_of(PLUGIN):
        from embodied_rl.utils.plugins import import_modules

        import_modules(["point_robot.register"])
        teacher = to_the_corner(tmp_path / "teacher")
    with modules_of(PLUGIN):
        words = ["collect", "point_pictures", "--task", "far", "--expert", teacher, "--out", str(out)]
        assert main([*words, "--workers", "1", "--episodes-per-task", "4"]) == 0
        data, stamp = load(out), read_json(out / "meta/info.json")["embodied_rl"]
        assert (len(data), data.camera_names) == (4, ["top", "hand"])
        assert (stamp["tasks"], stamp["dart_noise_rate"]) == (["point_pictures/far"], 0)
        assert (stamp["env"], stamp["imports"]) == ({"name": "custom"}, ["point_robot.register"])
        assert set(data.instruction) == {"reach the far corner"}
        assert main(["sft", str(out), "--policy", "openvla", "--out", str(start), *SFT]) == 0
        assert "20 actions a second, as point_pictures" in " ".join(capsys.readouterr().out.split())
    with modules_of(PLUGIN):
        assert main(["eval", "--checkpoint", str(start), "--states-per-task", "1"]) == 0
        train = ["train", "point_pictures", "--task", "far", "--policy", "openvla", "--policy.checkpoint", str(start)]
        assert main([*train, "--import", "point_robot.register", *SMALL, "--output", str(tmp_path / "run")]) == 0

"""Demonstrations that begin where a policy left the task, through the command."""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.console import Console

from embodied_rl.cli import collect as command
from embodied_rl.cli import main
from embodied_rl.data import collect, progress, writer
from embodied_rl.data.layout import NAMESPACE, DatasetSpec
from embodied_rl.data.lerobot import load
from embodied_rl.data.metadata import load_info
from embodied_rl.data.roll_in import SOLVED
from embodied_rl.errors import UserError
from embodied_rl.factory import roll_in
from embodied_rl.policies.checkpoints.shipped import shipped_folder
from embodied_rl.sim.libero.protocol import NATIVE
from embodied_rl.types import Observation
from embodied_rl.vec_env import EnvInfo

TASK = "pick_up_the_black_bowl_next_to_the_plate_and_place_it_on_the_plate"
COMMAND = ["collect", "tabletop_spatial", "--task", TASK, "--episodes-per-task", "2", "--workers", "1"]
INFO = EnvInfo(
    backend="mujoco",
    suite="tabletop_spatial",
    simulator="",
    renderer="",
    cameras=("agentview", "robot0_eye_in_hand"),
    image_shape=(16, 16),
    proprio_dim=8,
    action_dim=7,
    action_low=(-1.0,) * 7,
    action_high=(1.0,) * 7,
    control_hz=20.0,
    max_episode_steps=300,
)
SHORT = SimpleNamespace(name="tabletop_spatial/a", suite="tabletop_spatial", max_episode_steps=40)
LONG = SimpleNamespace(name="tabletop_long/b", suite="tabletop_long", max_episode_steps=300)


def test_the_shipped_policy_begins_and_the_expert_ends(tmp_path: Path) -> None:
    out = tmp_path / "mended"
    assert main([*COMMAND, "--roll-in", "shipped", "--out", str(out)]) == 0
    made = load_info(out)[NAMESPACE]
    assert "half of the task's" in made["roll_in"]
    assert "sha256" in made["roll_in"]
    assert len(load(out)) + json.dumps(made["failures"]).count("by itself") == 2


def test_a_policy_that_sees_other_images_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*COMMAND, "--roll-in", "shipped", "--image-size", "32", "--out", str(tmp_path / "d")]
    assert main(words) == 2
    assert "add --image-size 64" in capsys.readouterr().err


class FakePolicy:
    """Answers NaN and notes the images that it saw."""

    architecture = "fake"

    def __init__(self, cameras: int, center_crop: float | None = None) -> None:
        self.center_crop = center_crop
        self.config = SimpleNamespace(image_size=16, num_cameras=cameras)
        self.seen: list[torch.Tensor] = []

    def act(self, obs: Observation, rng: object, mode: str) -> SimpleNamespace:
        self.seen.append(obs.images)
        return SimpleNamespace(actions=torch.full((1, 4, 7), torch.nan))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch):
    """Opens a roll-in by a fake policy."""

    def opened(
        cameras: int, images: str = NATIVE.images, center_crop: float | None = None
    ) -> tuple[roll_in.RollIn, FakePolicy]:
        policy = FakePolicy(cameras, center_crop)
        monkeypatch.setattr(roll_in, "open_policy", lambda *_: policy)
        monkeypatch.setattr(roll_in, "describe_policy", lambda *_: {"weights": "fake"})
        chosen = replace(NATIVE, horizons={"10": 100}, images=images)
        return roll_in.open_roll_in("fake", [SHORT, LONG], chosen, INFO)[0], policy  # type: ignore[list-item]

    return opened


def test_each_task_has_half_of_its_own_time_under_the_protocol(opened) -> None:
    assert opened(2)[0].max_steps == {SHORT.name: 20, LONG.name: 50}


def test_the_policy_sees_the_first_cameras_and_answers_as_it_does(opened) -> None:
    begun, policy = opened(1)
    obs = INFO.new_observation(1)
    obs.images[:, 1] = 9
    assert np.isnan(begun.decide(obs, 3, 0)).all(), "whether it is finite is for the roll-in to say"
    assert policy.seen[0].shape == (1, 1, 16, 16, 3)
    assert not policy.seen[0].any()
    with pytest.raises(UserError, match="name a policy of at most 2"):
        opened(3)


def test_pictures_are_cut_once(opened) -> None:
    opened(2, "openvla")
    opened(2, center_crop=0.9)
    with pytest.raises(UserError, match="choose a protocol whose pictures are whole"):
        opened(2, "openvla", center_crop=0.9)


def test_a_run_that_goes_on_training_does_not_change_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def checkpoint(name: str) -> Path:
        folder = tmp_path / "run" / "checkpoints" / name
        shutil.copytree(shipped_folder("shipped"), folder / "policy")
        (folder / "state.json").write_text("{}")
        return folder / "policy"

    first = checkpoint("iter-000001")
    workers: list[str | None] = []

    def run(build: partial[collect.Bench], *_: object) -> None:
        checkpoint("iter-000002")
        workers.append(build.args[0].roll_in)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_run", run)
    assert main([*COMMAND, "--roll-in", str(tmp_path / "run"), "--out", str(tmp_path / "d")]) == 130
    assert workers == [str(first)]
    assert json.loads((tmp_path / "d.partial/plan.json").read_text())["roll_in"].startswith(str(first))
    assert roll_in.fixed_checkpoint("shipped") == "shipped", "and not where this machine installed it"


def test_nothing_for_the_expert_to_show_is_said_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(build: object, job: collect.Job, attempts: list[collect.Attempt], *_: object) -> None:
        for attempt in attempts:
            writer.add_failure(job.partial, attempt.key, f"{attempt.task} from state 0: {SOLVED}")

    monkeypatch.setattr(command, "_run", run)
    assert main([*COMMAND, "--roll-in", "shipped", "--out", str(tmp_path / "d")]) == 2
    said = capsys.readouterr()
    assert "the policy solved every attempt by itself" in said.err
    assert "leave --roll-in out" in said.err
    assert "solved all 2" in " ".join(said.out.split())


def test_the_report_counts_only_what_was_left_to_the_expert(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"task": "easy", "attempts": 3, "successes": 0, "solved": 3},
        {"task": "half", "attempts": 4, "successes": 1, "solved": 2},
        {"task": "good", "attempts": 4, "successes": 3, "solved": 1},
    ]
    failed = {0: f"easy from state 0: {SOLVED}", 5: "half from state 1: no success in 9 steps"}
    command._report(rows, failed, Console(width=120))
    lines = capsys.readouterr().out.splitlines()
    easy, half, good = (next(line for line in lines if name in line) for name in ("easy", "half", "good"))
    assert "%" not in easy
    assert "0/0" not in easy
    assert "the policy solved all 3 by itself" in easy
    assert "1/2" in half
    assert "50%  (below 95%); the policy solved 2 more by itself" in half
    assert "3/3" in good
    assert "100%; the policy solved 1 more by itself" in good
    assert [line for line in lines if line.startswith("failed")] == ["failed: half from state 1: no success in 9 steps"]


def test_the_progress_counts_no_solved_attempt_as_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    bar = SimpleNamespace(add_task=lambda *_, **__: 0, update=lambda _, advance, note: notes.append(note))
    monkeypatch.setattr(progress, "progress_bar", lambda *_: nullcontext(bar))
    attempts = collect.plan({"a": range(5)}, 5, seed=1)

    def results(*_: object):
        yield from ((attempts[key], reason, 1) for key, reason in ((2, SOLVED), (3, "no success"), (4, "")))

    monkeypatch.setattr(collect, "run", results)
    partial_folder = writer.begin(tmp_path / "d", {})
    writer.add_failure(partial_folder, 0, f"a from state 0: {SOLVED}")
    writer.add_failure(partial_folder, 1, "a from state 1: no success in 9 steps")
    job = collect.Job(partial_folder, DatasetSpec(("front",), 16, ("x",), ("dx",)), 0.0, None)
    command._run(partial(lambda: pytest.fail("no worker starts")), job, attempts, 1, Console(quiet=True))
    assert [note.partition(" failed")[0] for note in notes] == ["1", "2", "2"]

"""The `sft` and `collect` commands: bad input in one line, a whole small SFT run, Ctrl-C and the same command again."""

from __future__ import annotations

import json
import os
import signal
import stat
from pathlib import Path

import numpy as np
import pytest
import torch

from embodied_rl.cli import collect as collect_command
from embodied_rl.cli import sft as sft_command
from embodied_rl.data import writer
from embodied_rl.data.layout import ACTION_NAMES, PROPRIO_NAMES, DatasetSpec, Episode
from embodied_rl.data.lerobot import fingerprint, load
from embodied_rl.errors import UserError
from embodied_rl.jobs.sft import state_path
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.policies.openvla.checkpoint import load_policy
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.real_robot.core.views_of_training import small_view
from embodied_rl.utils.lock import locked

FAST = [
    "--steps",
    "8",
    "--batch-size",
    "4",
    "--val-samples",
    "8",
    "--val-every",
    "4",
    "--save-every",
    "3",
    "--warmup",
    "2",
    "--threads",
    "1",
    "--chunk-len",
    "2",
    "--validation",
    "0.34",
]


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """Three episodes with the images and vectors that the nano preset needs."""
    return _dataset(tmp_path / "demo64", 64, "train")


def _dataset(out: Path, size: int, split: str) -> Path:
    spec = DatasetSpec(("agentview", "wrist"), size, PROPRIO_NAMES, ACTION_NAMES)
    partial = writer.begin(out, {})
    rng = np.random.default_rng(0)
    for key in range(3):
        action = rng.uniform(-1, 1, (6, 7)).astype(np.float32)
        action[:, 6] = np.sign(action[:, 6])
        images = rng.integers(0, 256, (6, 2, size, size, 3), dtype=np.uint8)
        state = rng.normal(size=(6, 8)).astype(np.float32)
        writer.add_episode(partial, spec, Episode(key, "lift the cube", images, state, action, action))
    writer.finalize(out, spec, {"suite": "tabletop_object", "renderer": "raycast", "split": split})
    return out


def test_sft_writes_a_checkpoint_with_provenance(demo: Path, tmp_path: Path) -> None:
    out = tmp_path / "ck"
    assert sft_command.main([str(demo), "--out", str(out), "--seed", "3", *FAST]) == 0
    policy = load_policy(out)
    assert (policy.chunk_len, policy.unnorm_key) == (2, "tabletop_object")
    provenance = read_provenance(out)
    assert provenance["command"].startswith(f"embodied-rl sft {demo} --out")
    assert provenance["views"] == [small_view(picture) for picture in load(demo).images[np.array([0])][0]]
    assert (provenance["seed"], provenance["suite"], provenance["renderer"]) == (3, "tabletop_object", "raycast")
    assert provenance["dataset"]["sha256"] == fingerprint(demo)
    assert [row["step"] for row in provenance["history"]] == [4, 8]
    assert {"loss", "val_loss", "val_token_accuracy", "val_action_error"} <= set(provenance["history"][0])
    assert not state_path(out).exists()
    statistics = json.loads((out / "dataset_statistics.json").read_text())["tabletop_object"]
    assert statistics["action"]["mask"] == [True] * 6 + [False]
    data = load(demo)
    np.testing.assert_array_equal(statistics["action"]["q01"], -np.ones(7))  # our own suites' commands fill [-1, 1]
    np.testing.assert_array_equal(statistics["action"]["q99"], np.ones(7))
    np.testing.assert_allclose(statistics["proprio"]["mean"], data.state.mean(0), atol=1e-5)
    np.testing.assert_allclose(statistics["proprio"]["std"], data.state.std(0), atol=1e-5)


def test_ctrl_c_and_the_same_command_again_give_the_undisturbed_weights(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert sft_command.main([str(demo), "--out", str(whole), *FAST]) == 0
    original, calls = OpenVLAPolicy.sft_loss, []

    def interrupted(self: OpenVLAPolicy, *args: object) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, *args)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(OpenVLAPolicy, "sft_loss", interrupted)
        assert sft_command.main([str(demo), "--out", str(part), *FAST]) == 130
    assert not part.exists()
    assert "The same command goes on" in capsys.readouterr().out
    assert sft_command.main([str(demo), "--out", str(part), *FAST]) == 0
    assert (part / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert read_provenance(part)["history"] == read_provenance(whole)["history"]


def test_the_same_command_after_a_kill_at_the_end_says_that_it_is_done(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill comes after the checkpoint was written and before its training state is removed."""

    class Killed(BaseException):
        pass

    def killed(path: Path, **options: bool) -> None:
        raise Killed

    out = tmp_path / "ck"
    command = [str(demo), "--out", str(out), *FAST]
    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", killed)
        with pytest.raises(Killed):
            sft_command.main(command)
    assert state_path(out).is_file()
    wrote = (out / "model.safetensors").read_bytes()
    for _ in range(2):
        assert sft_command.main(command) == 0
        assert f"{out} is done" in capsys.readouterr().out
    assert (out / "model.safetensors").read_bytes() == wrote
    assert list(tmp_path.glob("ck*")) == [out]
    with pytest.raises(UserError, match="already exists"):
        sft_command.main([*command, "--seed", "5"])
    monkeypatch.setattr("embodied_rl.data.lerobot.fingerprint", lambda folder: "other")  # other data of the old name
    with pytest.raises(UserError, match="already exists"):
        sft_command.main(command)


def test_two_sft_of_one_output_do_not_run_at_once(demo: Path, tmp_path: Path) -> None:
    with locked(tmp_path / "ck.sft.lock", "x"), pytest.raises(UserError, match=r"process \d+ is training .*ck already"):
        sft_command.main([str(demo), "--out", str(tmp_path / "ck"), *FAST])


def test_every_file_of_a_checkpoint_has_the_mode_that_the_umask_allows(demo: Path, tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        assert sft_command.main([str(demo), "--out", str(tmp_path / "ck"), *FAST]) == 0
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "ck").iterdir()} == {0o640}
    assert stat.S_IMODE((tmp_path / "ck").stat().st_mode) == 0o750


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--policy", "openvlaa"], "Did you mean 'openvla'"),
        (["--preset", "nanoo"], "Did you mean 'nano'"),
        (["--stepz", "3"], "Did you mean '--steps'"),
        (["--validation", "1.5"], "must be in"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--chunk-len", "0"], "--chunk-len must be from 1"),
        (["--lr", "nan"], "--lr must be a finite number above 0"),
        (["--lr", "inf"], "--lr must be a finite number"),
        (["--grad-clip", "nan"], "--grad-clip must be a finite number"),
        (["--threads", "0"], "--threads must be at least 1"),
        (["--weight-decay", "-1"], "--weight-decay must be a finite number"),
        (["--validation", "nan"], "must be in"),
        (["--seed", "-1"], "--seed must be at least 0"),
        (["--seed", str(2**64)], "--seed must be at least 0"),
        (["--image-cache-gib", "nan"], "--image-cache-gib must be"),
        (["--cameras", "agentvew"], "Did you mean 'agentview'"),
        (["--lora-rank", "4"], "--lora-rank is for the weights of a checkpoint"),
        (["--cameras", "wrist/agentview"], "has both, so they are not one camera"),
    ],
)
def test_sft_refuses_bad_input(demo: Path, tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        sft_command.main([str(demo), "--out", str(tmp_path / "ck"), *words])


def test_sft_refuses_datasets_that_do_not_fit(demo: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="already exists"):
        sft_command.main([str(demo), "--out", str(demo)])
    with pytest.raises(UserError, match="no LeRobot dataset"):
        sft_command.main([str(tmp_path / "nowhere"), "--out", str(tmp_path / "ck")])
    with pytest.raises(UserError, match="held-out"):
        sft_command.main([str(_dataset(tmp_path / "unseen", 64, "heldout")), "--out", str(tmp_path / "ck")])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tabletop_objekt"], "Did you mean 'tabletop_object'"),
        (["tabletop_object", "--dart-noise-rate", "-1"], "must lie in"),
        (["tabletop_object", "--workers", "0"], "at least 1"),
        (["tabletop_object", "--seed", str(2**64)], "--seed must be at least 0"),
        (["tabletop_object", "--image-size", "100000"], "--image-size must be at least 1 and at most 2048"),
        (["tabletop_object", "--dart-noise-rate", "nan"], "must lie in"),
        (["tabletop_object", "--tasks", "nothing"], "has no task 'nothing'"),
        (["tabletop_object", "--episodes", "3"], "--episodes-per-task"),
        (["tabletop_object", "--protocol", "openvlo"], "Did you mean 'openvla'"),
        (["libero_spatiel"], "Did you mean 'libero_spatial'"),
        (["libero"], "name one: collect libero_spatial, or collect libero --suite spatial"),
        (
            ["tabletop_object", "--physics-version", "published"],
            r"^era 'published': only LIBERO's .* so give no era\.$",
        ),
        (["libero_spatial", "--split", "fresh"], "LIBERO has no fresh initial states"),
    ],
)
def test_collect_refuses_bad_input(tmp_path: Path, words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        collect_command.main([*words, "--out", str(tmp_path / "d")])


@pytest.mark.parametrize("name", ["x" * 245, "x" * 300, "file/below", "", "/", "a\0b"])
def test_an_output_that_cannot_be_written_is_refused_before_the_work(demo: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    out = str(tmp_path / name) if len(name) > 1 else name
    for main, what in ((sft_command.main, str(demo)), (collect_command.main, "x")):
        with pytest.raises(UserError, match="--out") as caught:
            main([what, "--out", out])
        assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demo64", "file"]


def test_sft_says_that_nothing_is_held_out_and_which_cameras_it_took(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sft_command.main([str(demo), "--out", str(tmp_path / "ck"), *FAST, "--validation", "0.1"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "no validation: --validation 0.1" in said
    assert "cameras agentview, wrist" in said
    assert read_provenance(tmp_path / "ck")["cameras"] == ["agentview", "wrist"]

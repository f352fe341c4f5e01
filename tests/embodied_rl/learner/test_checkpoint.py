"""Checkpoints: whole or absent, verified, pruned; a full disk or a kill leaves the previous one."""

from __future__ import annotations

import builtins
import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.learner.checkpoint import POLICY, Checkpoints, Loaded, load, restore_rng, rng_state, verify


def write_policy(folder: Path) -> None:
    folder.mkdir()
    (folder / "model.bin").write_bytes(b"weights" * 100)


def save(checkpoints: Checkpoints, iteration: int) -> Path:
    trainer = {"tensor": torch.arange(5) * iteration, "version": iteration}
    return checkpoints.save(iteration, write_policy, trainer, {"note": f"n{iteration}"})


def load_latest(checkpoints: Checkpoints) -> Loaded:
    path = checkpoints.find()
    assert path is not None
    return load(path)


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    return Checkpoints(tmp_path / "checkpoints", keep=2)


def test_what_is_saved_is_what_is_read(checkpoints: Checkpoints) -> None:
    path = save(checkpoints, 3)
    loaded = load_latest(checkpoints)
    assert loaded.path == path
    assert loaded.state == {"note": "n3"}
    assert loaded.trainer["tensor"].tolist() == [0, 3, 6, 9, 12]
    assert (loaded.policy / "model.bin").read_bytes() == b"weights" * 100


def test_the_newest_are_kept(checkpoints: Checkpoints) -> None:
    for iteration in (1, 2, 10, 11):
        save(checkpoints, iteration)
    assert checkpoints.names() == ["iter-000010", "iter-000011"]
    assert load_latest(checkpoints).iteration == 11
    assert sorted(p.name for p in checkpoints.folder.iterdir()) == ["iter-000010", "iter-000011", "latest"]


def test_going_on_from_an_older_one_drops_the_newer(checkpoints: Checkpoints) -> None:
    older, _ = save(checkpoints, 4), save(checkpoints, 6)
    checkpoints.continue_from(load(older))
    assert checkpoints.names() == ["iter-000004"]
    save(checkpoints, 6)
    assert load_latest(checkpoints).iteration == 6


@pytest.mark.parametrize("name", ["policy/model.bin", "trainer.pt"])
@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
def test_damage_is_found_and_others_are_named(checkpoints: Checkpoints, name: str, damage: str) -> None:
    save(checkpoints, 1)
    file = save(checkpoints, 2) / name
    data = bytearray(file.read_bytes())
    if damage == "delete":
        file.unlink()
    else:
        data[len(data) // 2] ^= 1
        file.write_bytes(data if damage == "flip" else data[:-3])
    with pytest.raises(UserError, match=r"iter-000002 .*iter-000001") as error:
        load_latest(checkpoints)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"sha256": {}}'])
def test_a_damaged_state_file_is_one_clear_line(checkpoints: Checkpoints, content: str) -> None:
    (save(checkpoints, 2) / "state.json").write_text(content)
    with pytest.raises(UserError, match="there is no other one"):
        load_latest(checkpoints)


def test_a_run_without_checkpoints_has_none(checkpoints: Checkpoints) -> None:
    assert checkpoints.find() is None
    with pytest.raises(UserError, match=r"no checkpoint .*iter-000004; there is no other one"):
        checkpoints.find("iter-000004")


def test_without_a_pointer_the_newest_complete_one_counts(checkpoints: Checkpoints) -> None:
    """A kill may come between a checkpoint's rename and the writing of `latest`."""
    save(checkpoints, 9)
    save(checkpoints, 10)
    (checkpoints.folder / "iter-000011").mkdir()  # deleted by halves
    (checkpoints.folder / "latest").unlink()
    assert load_latest(checkpoints).iteration == 10


@pytest.mark.parametrize("name", ["", "../../other/iter-000001", "/tmp/iter-000001", "policy", "iter-000001/policy"])
def test_a_pointer_to_elsewhere_is_refused(checkpoints: Checkpoints, name: str) -> None:
    save(checkpoints, 1)
    (checkpoints.folder / "latest").write_text(name)
    with pytest.raises(UserError, match=r"latest must name a checkpoint beside it.* --from iter-000001"):
        checkpoints.find()
    assert checkpoints.find("iter-000001") == checkpoints.folder / "iter-000001"


def test_the_advice_for_a_missing_one_can_be_followed(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1)
    (checkpoints.folder / "latest").write_text("iter-000002\n")
    with pytest.raises(UserError, match=r"--resume \S+ --from iter-000001 \(there is iter-000001\)"):
        checkpoints.find()
    older = checkpoints.find("iter-000001")
    assert older is not None
    checkpoints.continue_from(load(older))
    assert checkpoints.find() == older


def test_a_garbage_trainer_file_is_one_line_without_torchs_advice(checkpoints: Checkpoints) -> None:
    path = save(checkpoints, 1)
    garbage = b"\x80\x02cposix\nsystem\nq\x00X\x01\x00\x00\x00xq\x01\x85q\x02Rq\x03."
    for content in (b"", b"garbage", garbage, (path / "trainer.pt").read_bytes()[:-9]):
        (path / "trainer.pt").write_bytes(content)
        state = json.loads((path / "state.json").read_text())
        state["sha256"]["trainer.pt"] = hashlib.sha256(content).hexdigest()
        del state["own_sha256"]
        own = hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
        (path / "state.json").write_text(json.dumps(state | {"own_sha256": own}))
        with pytest.raises(UserError, match=r"cannot read checkpoint .*\(trainer.pt: ") as error:
            load(path)
        assert "\n" not in str(error.value)
        assert "weights_only" not in str(error.value)


def test_an_edited_state_is_noticed(checkpoints: Checkpoints) -> None:
    state = save(checkpoints, 1) / "state.json"
    state.write_text(state.read_text().replace("n1", "n2"))
    with pytest.raises(UserError, match=r"corrupt \(state.json changed\)"):
        load_latest(checkpoints)


def test_a_part_is_verified_without_reading_the_rest(checkpoints: Checkpoints) -> None:
    path = save(checkpoints, 1)
    (path / "trainer.pt").unlink()
    assert verify(path, POLICY)["iteration"] == 1
    with pytest.raises(UserError, match="No such file"):
        verify(path)
    (path / "policy" / "model.bin").write_bytes(b"other")
    with pytest.raises(UserError, match=r"policy/model.bin changed"):
        verify(path, POLICY)


def full_disk(*arguments: Any, **options: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def refuse_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.open

    class Full:
        def __enter__(self) -> Full:
            return self

        def __exit__(self, *arguments: object) -> None:
            pass

        write = flush = full_disk

    def opening(path: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if str(path).endswith("trainer.pt") and "w" in mode:
            return Full()
        return original(path, mode, *arguments, **options)

    monkeypatch.setattr(builtins, "open", opening)


@pytest.mark.parametrize("stage", ["policy", "trainer", "state", "fsync", "rename"])
def test_a_full_disk_leaves_the_previous_one_intact(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    save(checkpoints, 1)
    before = {p: p.read_bytes() for p in checkpoints.folder.rglob("*") if p.is_file()}
    with monkeypatch.context() as patch:
        if stage == "trainer":
            refuse_trainer(patch)
        elif stage == "state":
            patch.setattr(Path, "write_text", full_disk)
        elif stage == "fsync":
            patch.setattr(os, "fsync", full_disk)
        elif stage == "rename":
            patch.setattr(Path, "rename", full_disk)
        write = full_disk if stage == "policy" else write_policy
        with pytest.raises(
            UserError, match=r"No space left on device\): free .*; checkpoint iter-000001 is intact"
        ) as error:
            checkpoints.save(2, write, {"x": torch.zeros(1000)}, {})
    assert "\n" not in str(error.value)
    assert {p: p.read_bytes() for p in checkpoints.folder.rglob("*") if p.is_file()} == before
    assert load_latest(checkpoints).iteration == 1
    save(checkpoints, 2)  # with space again, the run goes on
    assert load_latest(checkpoints).iteration == 2


def test_a_policy_writer_that_reports_the_full_disk_itself_gives_the_same_line(checkpoints: Checkpoints) -> None:
    def writer(folder: Path) -> None:
        try:
            full_disk()
        except OSError as error:
            raise UserError("cannot write the policy") from error

    with pytest.raises(UserError, match=r"\(No space left on device\): free .* begins anew"):
        checkpoints.save(1, writer, {}, {})


def test_a_killed_save_leaves_no_trace(checkpoints: Checkpoints) -> None:
    save(checkpoints, 1)

    def killed(folder: Path) -> None:
        write_policy(folder)
        raise KeyboardInterrupt  # like SIGKILL, it reaches no clean-up of ours

    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(2, killed, {}, {})
    assert load_latest(checkpoints).iteration == 1
    save(checkpoints, 2)
    assert sorted(p.name for p in checkpoints.folder.iterdir()) == ["iter-000001", "iter-000002", "latest"]


def test_generators_continue() -> None:
    state = rng_state()
    first = torch.rand(4)
    restore_rng(state)
    assert torch.equal(torch.rand(4), first)


def test_the_hashes_cover_every_file(checkpoints: Checkpoints) -> None:
    path = save(checkpoints, 1)
    listed = set(json.loads((path / "state.json").read_text())["sha256"])
    assert listed == {"policy/model.bin", "trainer.pt"}

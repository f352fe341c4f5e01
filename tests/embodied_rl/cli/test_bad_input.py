"""What goes wrong once a run has begun to open things: one clear line, exit code 2, and nothing lost."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.cli import main
from embodied_rl.sim.render import Probe
from tests.embodied_rl.stand_in import untimed, words


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that the command prints when it refuses."""
    capsys.readouterr()
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.startswith("embodied-rl: error: ")
    assert said.count("\n") == 1
    return said


def truncated(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])


def of_another_size(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["model"]["decoder"]["layers"] += 1
    (folder / "config.json").write_text(json.dumps(config))


def of_another_kind(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "hidden_size": 4096}))


def no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def of_another_rate(folder: Path) -> None:
    (folder / "provenance.json").write_text(json.dumps({"control_hz": 10}))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (of_another_rate, "learned from 10 actions a second, the simulator takes 20"),
        (truncated, "is corrupt"),
        (of_another_size, "does not fit the model in config.json"),
        (of_another_kind, "choose the matching --policy"),
        (no_json, "is not valid JSON"),
    ],
)
@pytest.mark.parametrize("command", ["train", "eval"])
def test_an_unfit_checkpoint(
    command: str, spoil: Any, message: str, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoilt = tmp_path / "spoilt"
    shutil.copytree(checkpoint, spoilt)
    (spoilt / "checksums.json").unlink()  # as in a folder of somebody else's: the checks behind it must hold too
    spoil(spoilt)
    run = tmp_path / "run"
    line = words(spoilt, run) if command == "train" else ["eval", "--checkpoint", str(spoilt)]
    said = refused(line, capsys)
    assert message in said
    assert str(spoilt) in said
    assert not run.exists()


def test_no_renderer(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = Probe("missing", "library not found")
    monkeypatch.setattr(sys.modules["embodied_rl.sim.render.choose"], "probe", lambda backend: absent)
    said = refused(words(checkpoint, tmp_path / "run", "--env.renderer", "osmesa"), capsys)
    assert "renderer 'osmesa' does not work here (library not found)" in said
    assert "apt-get install libosmesa6" in said


@pytest.mark.usefixtures("stand_in")
def test_a_full_disk_during_a_checkpoint_leaves_the_one_before(
    checkpoint: Path,
    finished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = tmp_path / "broken"

    import torch

    saved, calls = torch.save, []

    def fill(*arguments: Any, **options: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        saved(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", fill)
        said = refused(words(checkpoint, broken, "--videos", "0"), capsys)
    assert "No space left on device" in said
    assert [path.name for path in (broken / "checkpoints").iterdir() if path.is_dir()] == ["iter-000001"]

    assert main(["train", "--resume", str(broken)]) == 0
    assert untimed(broken) == untimed(finished)


def test_a_folder_that_cannot_be_written(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    said = refused(words(checkpoint, tmp_path / "file" / "run"), capsys)
    assert f"cannot write into {tmp_path / 'file' / 'run'}: Not a directory; choose another --output." in said

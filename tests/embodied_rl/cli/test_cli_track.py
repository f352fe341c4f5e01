"""`train --track`: a tracker that fails changes nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from embodied_rl.cli import main
from tests.embodied_rl.stand_in import untimed, words
from tests.embodied_rl.telemetry.stand_in_tracker import StandIn as StandInTracker


@pytest.mark.usefixtures("stand_in")
def test_a_run_outlives_its_tracker(
    checkpoint: Path,
    finished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", StandInTracker("wandb", fails="log"))
    assert main(words(checkpoint, tmp_path / "run", "--track", "wandb", "--videos", "0")) == 0
    assert untimed(tmp_path / "run") == untimed(finished)
    assert capsys.readouterr().out.count("--track wandb failed") == 1

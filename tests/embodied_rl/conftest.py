"""Lets tests import `tests.toy` however pytest is started, keeps torch to one thread; fixtures of whole commands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.append(ROOT)  # last: a bare `sim` or `policies` must not shadow anything


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tensors here are tiny: threads would only wait for each other, and other tests run beside.

    Before each test: a command that runs in this process leaves its own number behind.
    """
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """`train` and `eval` run on a stand-in for the simulator."""
    from tests.embodied_rl.stand_in import open_stand_in

    monkeypatch.setattr("embodied_rl.factory.scenes._simulated", open_stand_in)


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fresh weights of the nano preset. Tests must not change it."""
    from embodied_rl.policies.openvla.checkpoint import save_policy
    from embodied_rl.policies.openvla.config import nano
    from embodied_rl.policies.openvla.policy import OpenVLAPolicy

    folder = tmp_path_factory.mktemp("weights") / "start"
    save_policy(OpenVLAPolicy.fresh(nano(), ["pick up the mug and place it in the basket"]), folder, {"seed": 0})
    return folder


@pytest.fixture(scope="session")
def finished(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two updates on the stand-in, from a relative checkpoint, without videos. Tests copy it."""
    from embodied_rl.cli import main
    from tests.embodied_rl.stand_in import open_stand_in, words

    run = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embodied_rl.factory.scenes._simulated", open_stand_in)
        patch.chdir(checkpoint.parent)
        assert main(words(Path(checkpoint.name), run, "--videos", "0")) == 0
    return run

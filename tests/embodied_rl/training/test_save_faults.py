"""Whatever file operation of a save is the last one, or fails: a resume ends with the undisturbed run's weights."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.evaluation.config import EvalConfig
from embodied_rl.learner.checkpoint import Checkpoints
from embodied_rl.learner.config import CheckpointConfig
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.training.on_policy import train
from embodied_rl.training.settings import RunOptions, TaskSplit
from tests.embodied_rl.toy_run import ALGORITHMS, JsonObserver, files_of, settings_of
from tests.toy import HELDOUT, TASKS, ToyEnv, ToyPolicy

OPERATIONS = ("mkdir", "rename", "unlink", "rmdir", "fsync", "open")


class Killed(BaseException):
    """In place of SIGKILL: from then on no file operation has an effect."""


class Fault:
    """Counts the file operations of saving and continuing; the one after `left` others fails or is the last."""

    def __init__(self, left: int, how: Callable[[], BaseException]) -> None:
        self.left = left
        self.how = how
        self.hit = False

    def __call__(self) -> None:
        self.left -= 1
        if self.left < 0 and (not self.hit or self.how is Killed):
            self.hit = True
            raise self.how()

    @contextmanager
    def installed(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:

            def counted(original: Callable[..., Any]) -> Callable[..., Any]:
                def call(*args: Any, **options: Any) -> Any:
                    self()
                    return original(*args, **options)

                return call

            def armed(original: Callable[..., Any]) -> Callable[..., Any]:
                def call(*args: Any, **options: Any) -> Any:
                    with pytest.MonkeyPatch.context() as inner:
                        for name in OPERATIONS:
                            inner.setattr(os, name, counted(getattr(os, name)))
                        inner.setattr(io, "open", counted(io.open))
                        return original(*args, **options)

                return call

            patch.setattr(Checkpoints, "save", armed(Checkpoints.save))
            patch.setattr(Checkpoints, "continue_from", armed(Checkpoints.continue_from))
            yield


def disk_full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class DiesAtOnce(JsonObserver):
    """Is killed when its file has been cut back to where the run goes on."""

    def begin(self, position: int) -> None:
        super().begin(position)
        raise Killed


def run(
    folder: Path, *, keep: int = 1, start: str | None = None, observer: type[JsonObserver] = JsonObserver
) -> dict[str, torch.Tensor]:
    """Begin or resume two tiny iterations; the weights at the end, as the last checkpoint has them."""
    settings = replace(
        settings_of(ALGORITHMS["grpo"], 2),
        rollout=RolloutConfig(episodes_per_iteration=16),
        evaluation=EvalConfig(every=0, states_per_task=1),
        checkpoint=CheckpointConfig(every=1, keep=keep),
    )
    policy = ToyPolicy(with_value=False)
    outcome = train(
        folder,
        ToyEnv(8),
        policy,
        files_of(policy),
        settings,
        TaskSplit(TASKS, HELDOUT),
        observer(folder / "metrics.jsonl"),
        RunOptions(resume=Checkpoints(folder / "checkpoints", keep).find(start), resume_command="x"),
    )
    saved = ToyPolicy(with_value=False)
    files_of(saved).load(outcome.checkpoint / "policy")
    return saved.state_dict()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, torch.Tensor], str]:
    """The undisturbed run's weights and metrics."""
    folder = tmp_path_factory.mktemp("whole")
    return run(folder), (folder / "metrics.jsonl").read_text()


def assert_same(
    folder: Path, weights: dict[str, torch.Tensor], whole: tuple[dict[str, torch.Tensor], str], keep: int = 1
) -> None:
    assert all(torch.equal(weights[name], tensor) for name, tensor in whole[0].items())
    assert (folder / "metrics.jsonl").read_text() == whole[1]
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    assert [name for name in names if name != "iter-000001" or keep == 1] == ["iter-000002", "latest"]


@pytest.mark.parametrize(("how", "step"), [(Killed, 1), (disk_full, 3)])
def test_each_operation_of_a_whole_run(
    tmp_path: Path, whole: tuple[dict[str, torch.Tensor], str], how: Callable[[], BaseException], step: int
) -> None:
    """From the first one, before there is any checkpoint, to the deletion of the last but one."""
    number = 0
    while True:
        folder, fault = tmp_path / str(number), Fault(number, how)
        try:
            with fault.installed():
                run(folder)
        except (Killed, UserError):
            pass
        assert_same(folder, run(folder), whole)
        if not fault.hit:
            break
        number += step
    assert number > 40


def test_each_operation_after_latest_was_edited(tmp_path: Path, whole: tuple[dict[str, torch.Tensor], str]) -> None:
    """The newer checkpoints are deleted, and a kill may come any time."""
    number = 0
    while True:
        folder, fault = tmp_path / str(number), Fault(number, Killed)
        run(folder, keep=2)
        (folder / "checkpoints" / "latest").write_text("iter-000001\n")
        try:
            with fault.installed():
                run(folder, keep=2)
        except Killed:
            pass
        assert_same(folder, run(folder, keep=2), whole, 2)
        if not fault.hit:
            break
        number += 3  # neighbours are alike
    assert number > 30


def test_a_kill_while_going_back_to_an_older_one(tmp_path: Path, whole: tuple[dict[str, torch.Tensor], str]) -> None:
    run(tmp_path, keep=2)
    with pytest.raises(Killed):
        run(tmp_path, keep=2, start="iter-000001", observer=DiesAtOnce)
    assert_same(tmp_path, run(tmp_path, keep=2), whole, 2)

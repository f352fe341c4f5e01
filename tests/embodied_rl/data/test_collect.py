"""Collection: clean labels beside noisy actions, one dataset for any number of workers, failures, resumption."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.data import collect, writer
from embodied_rl.data.layout import DatasetSpec
from embodied_rl.data.lerobot import fingerprint, load
from embodied_rl.errors import UserError

SPEC = DatasetSpec(("front",), 16, ("x",), ("dx", "gripper"))

# A point on a line: the expert drives x to 0; state 7 is out of reach, state 9 kills the process.
FAKE_SIMULATOR = """
import os
from types import SimpleNamespace
import numpy as np
import torch
from embodied_rl.data.collect import Bench
from embodied_rl.types import ChunkResult, Observation

class Line:
    num_envs = 1
    info = SimpleNamespace(action_low=(-1.0, -1.0), action_high=(1.0, 1.0), has_success=True)
    def reset(self, envs, episodes):
        if episodes[0].init_state == 9 and not os.environ.get("FAKE_HEALED"):
            os._exit(1)
        self.x, self.t, self.far = 0.5 + 0.01 * episodes[0].init_state, 0, episodes[0].init_state == 7
    def step(self, envs, actions):
        assert actions.shape == (1, 1, 2) and actions.dtype == torch.float32
        self.last = actions[0, 0].numpy()
        self.x += 0.1 * float(actions[0, 0, 0])
        self.t += 1
        done, late = abs(self.x) < 0.05 and not self.far, self.t == 40
        flag = lambda value: torch.tensor([value])
        return ChunkResult(torch.zeros(1, 1), flag(done), flag(late and not done), flag(done),
                           torch.tensor([1], dtype=torch.int32), flag(False))
    def observe(self, envs, out):
        out.images[0] = int(255 * min(abs(self.x), 1))
        out.proprio[0] = self.x
        out.instruction[0] = "go home"
    def new_observation(self, rows):
        return Observation.from_numpy(np.zeros((1, 1, 16, 16, 3), np.uint8), np.zeros((1, 1), np.float32), [""])
    def close(self):
        pass

class Expert:
    def __init__(self, line):
        self.line = line
    def act(self):
        return np.array([np.clip(-8 * self.line.x, -1, 1), 1.0], np.float32)

def build():
    line = Line()
    return Bench(line, lambda task, seed: Expert(line))
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The fake simulator as a module that spawned workers can import too."""
    (tmp_path / "fake_line_simulator.py").write_text(FAKE_SIMULATOR)
    monkeypatch.syspath_prepend(str(tmp_path))
    import fake_line_simulator  # pyright: ignore[reportMissingImports]

    return fake_line_simulator


def _collect(build: object, out: Path, states: range, workers: int, video: Path | None = None) -> dict[int, str]:
    attempts = collect.plan({"line/home": states, "line/home2": states}, 3, seed=4)
    partial = writer.begin(out, {})
    kept, failed = writer.stored(partial)
    todo = [attempt for attempt in attempts if attempt.key not in kept and attempt.key not in failed]
    job = collect.Job(partial, SPEC, 0.2, video)
    assert {a.key for a, _, _ in collect.run(build, job, todo, workers)} == {a.key for a in todo}  # type: ignore[arg-type]
    failed = writer.stored(partial)[1]
    writer.finalize(out, SPEC, {})
    return failed


def test_labels_are_clean_and_executed_actions_are_pushed(fake) -> None:
    attempt = collect.Attempt(0, 0, "line/home", 3, 77)
    episode, reason = collect.record(fake.build(), attempt, dart_noise_rate=0.3)
    assert reason == ""
    np.testing.assert_allclose(episode.state[0, 0], 0.53)
    np.testing.assert_allclose(episode.action[:, 0], np.clip(-8 * episode.state[:, 0], -1, 1), rtol=1e-5)
    np.testing.assert_array_equal(episode.action[:, 1], 1.0)
    np.testing.assert_array_equal(episode.executed[:, 1], 1.0)  # the gripper is left alone
    assert np.abs(episode.executed - episode.action)[:, 0].max() > 0.03
    assert np.abs(episode.executed).max() <= 1.0
    # What was executed is what moved the arm: each state follows from the one before.
    np.testing.assert_allclose(np.diff(episode.state[:, 0]), 0.1 * episode.executed[:-1, 0], atol=1e-6)
    again, _ = collect.record(fake.build(), attempt, dart_noise_rate=0.3)
    np.testing.assert_array_equal(again.executed, episode.executed)
    calm, _ = collect.record(fake.build(), attempt, dart_noise_rate=0.0)
    np.testing.assert_array_equal(calm.executed, calm.action)


def test_pushes_come_in_runs_of_one_constant_and_leave_gaps() -> None:
    action = np.array([0.1, 0.0, 0.0, 0.2, 0.0, 0.0, 1.0], np.float32)
    pushes = collect.Pushes(0.05, np.random.default_rng(3))
    done = np.stack([pushes.apply(action) for _ in range(2000)])
    np.testing.assert_array_equal(done[:, 3:], np.tile(action[3:], (2000, 1)))  # rotation and gripper are left alone
    pushed = (done != action).any(axis=1)
    assert 0.1 < pushed.mean() < 0.5
    edges = np.flatnonzero(np.diff(pushed.astype(int)))
    assert len(edges) > 50  # pushes and undisturbed stretches alternate
    start = edges[10] + 1 if pushed[edges[10] + 1] else edges[11] + 1
    np.testing.assert_array_equal(done[start], done[start + 2])  # at least 3 steps of one and the same push


def test_plan_takes_states_in_turn_with_distinct_seeds() -> None:
    attempts = collect.plan({"a": range(10, 13), "b": [5]}, 4, seed=1)
    assert [(a.key, a.index, a.task, a.init_state) for a in attempts] == [
        (0, 0, "a", 10),
        (1, 1, "a", 11),
        (2, 2, "a", 12),
        (3, 3, "a", 10),
        (4, 0, "b", 5),
        (5, 1, "b", 5),
        (6, 2, "b", 5),
        (7, 3, "b", 5),
    ]
    assert len({a.seed for a in attempts}) == 8
    assert attempts == collect.plan({"a": range(10, 13), "b": [5]}, 4, seed=1)


@pytest.mark.process
def test_workers_do_not_change_the_dataset_and_failures_are_left_out(fake, tmp_path: Path) -> None:
    states = range(6, 9)
    one = _collect(fake.build, tmp_path / "one", states, 1)
    (tmp_path / "v").mkdir()
    two = _collect(fake.build, tmp_path / "two", states, 2, tmp_path / "v")
    assert one == two
    assert set(one) == {1, 4}
    assert one[1] == "line/home from state 7: no success in 40 steps"
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "two")
    data = load(tmp_path / "two")
    assert len(data) == 4
    assert (len(data), set(data.instruction)) == (4, {"go home"})
    assert sorted(p.name for p in (tmp_path / "v").iterdir()) == ["line_home2_success.mp4", "line_home_success.mp4"]
    attempts = collect.plan({"line/home": states, "line/home2": states}, 3, seed=4)
    assert collect.summary(attempts, one) == [
        {"task": "line/home", "attempts": 3, "successes": 2},
        {"task": "line/home2", "attempts": 3, "successes": 2},
    ]


@pytest.mark.process
def test_dead_worker_is_an_error_and_the_next_run_goes_on(
    fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "d"
    with pytest.raises(UserError, match="goes on where it stopped"):
        _collect(fake.build, out, range(8, 11), 1)
    assert not out.exists()
    partial = writer.begin(out, {})
    assert writer.stored(partial)[0] == {0}
    before = os.stat(partial / "episodes/000000.parquet").st_mtime_ns
    first = (partial / "episodes/000000.parquet").read_bytes()
    monkeypatch.setenv("FAKE_HEALED", "1")
    todo = [a for a in collect.plan({"line/home": range(8, 11)}, 3, seed=4) if a.key != 0]
    list(collect.run(fake.build, collect.Job(partial, SPEC, 0.2, None), todo, 1))
    assert os.stat(partial / "episodes/000000.parquet").st_mtime_ns == before
    assert (partial / "episodes/000000.parquet").read_bytes() == first
    writer.finalize(out, SPEC, {"suite": "line"})
    assert len(load(out)) == 3
    assert json.loads((out / "meta/info.json").read_text())["embodied_rl"] == {"suite": "line"}


_RUN_UNTIL_KILLED = """
import os, sys
from pathlib import Path
import fake_line_simulator
from embodied_rl.data import collect, writer
from embodied_rl.data.layout import DatasetSpec

def build():
    print(os.getpid(), flush=True)
    return fake_line_simulator.build()

if __name__ == "__main__":
    spec = DatasetSpec(("front",), 16, ("x",), ("dx", "gripper"))
    attempts = collect.plan({"line/home": range(6)}, 100_000, 0)
    list(collect.run(build, collect.Job(Path(sys.argv[1]), spec, 0.2, None), attempts, 2))
"""


@pytest.mark.process
def test_workers_leave_when_the_parent_is_killed(fake, tmp_path: Path) -> None:
    script = tmp_path / "run_until_killed.py"
    script.write_text(_RUN_UNTIL_KILLED)
    partial = writer.begin(tmp_path / "d", {})
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, str(script), str(partial)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert process.stdout is not None
    workers = [int(process.stdout.readline()) for _ in range(2)]
    assert all(Path(f"/proc/{pid}").exists() for pid in workers)
    process.kill()
    try:
        # End of file: nobody holds the pipe any more, so both workers are gone. The timeout is for a broken variant.
        assert process.communicate(timeout=900)[0] == ""
    finally:
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_preview_places_cameras_side_by_side() -> None:
    images = np.zeros((2, 2, 3, 3, 3), np.uint8)
    images[:, 1] = 9
    shown = collect.preview(images)
    assert shown.shape == (2, 258, 516, 3)  # 86 times larger: at least 256 pixels, and even
    assert shown[:, :, :258].max() == 0
    assert shown[:, :, 258:].min() == 9

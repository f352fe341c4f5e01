"""Whole runs under the pipelined scheduler: the serial run's figures, evaluations in between, stop and resume."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from embodied_rl.algorithms.config import GRPOConfig, PPOConfig
from embodied_rl.config.train import OpenVLAConfig, TrainConfig, from_dict, to_dict
from embodied_rl.errors import UserError
from embodied_rl.evaluation.config import EvalConfig
from embodied_rl.evaluation.evaluate import run_once
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.learner.types import RatioError
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.rollout.lookahead import Lookahead
from embodied_rl.scheduler.config import PipelinedConfig, SchedulerConfig, SerialConfig
from embodied_rl.training import ranked
from embodied_rl.training.on_policy import train
from embodied_rl.training.settings import RunOptions, TaskSplit, TrainSettings
from embodied_rl.types import EpisodeResult
from embodied_rl.utils.profiler import Profiler
from embodied_rl.utils.signals import Interrupted
from tests.embodied_rl.scheduler.toys import RoundingPolicy
from tests.embodied_rl.toy_run import JsonObserver, files_of, newest, settings_of
from tests.toy import HELDOUT, TASKS, ToyEnv, ToyPolicy

STREAM = PipelinedConfig(env_groups=3)
ASYNC = PipelinedConfig(env_groups=3, mode="async", max_staleness=2)
ALGORITHM = GRPOConfig(group_size=4, success_rate_range=None, entropy_coef=0.01)


def settings(scheduler: SchedulerConfig, minibatch_groups: int = 2, sampler: Any = "uniform") -> TrainSettings:
    learner = LearnerConfig(lr=1e-2, minibatch_size=None, minibatch_groups=minibatch_groups, microbatch_size=24)
    return replace(
        settings_of(ALGORITHM if sampler == "uniform" else PPOConfig(gamma=0.9), iterations=5),
        scheduler=scheduler,
        learner=learner,
        workers=2,
        rollout=RolloutConfig(episodes_per_iteration=24, sampler=sampler),
    )


class Stopping(JsonObserver):
    """Interrupts the run when the n-th episode of training has ended."""

    def __init__(self, path: Path, after: int) -> None:
        super().__init__(path)
        self._left = after
        self._training = False

    def phase(self, name: str, iteration: int, episodes: int) -> None:
        self._training = name == "rollout"

    def episode(self, result: EpisodeResult) -> None:
        super().episode(result)
        self._left -= self._training
        if self._left == 0 and self._training:
            os.kill(os.getpid(), signal.SIGINT)


class Shares(JsonObserver):
    """Keeps the seconds of which the learner's busy time is a share, and those of the iteration; writes them slowly."""

    def __init__(self, path: Path, late: list[float]) -> None:
        super().__init__(path)
        self.elapsed: list[tuple[float, float]] = []
        self._late = late

    def metrics(self, iteration: int, values: dict[str, float]) -> None:
        super().metrics(iteration, values)
        busy = sum(values.get(f"time/{stage}", 0.0) for stage in ("gather", "learn", "update"))
        self.elapsed.append((busy / values["busy/learner"], values["time/iteration"]))
        self._late[0] += 1000.0


def run(folder: Path, what: TrainSettings, *, resume: bool = False, stop: int = -1) -> ToyPolicy:
    torch.set_num_threads(1)
    policy = ToyPolicy(with_value=isinstance(what.algorithm, PPOConfig))
    observer = Stopping(folder / "metrics.jsonl", stop)
    train(
        folder,
        ToyEnv(6),
        policy,
        files_of(policy),
        what,
        TaskSplit(TASKS, HELDOUT),
        observer,
        RunOptions(resume=newest(folder) if resume else None, resume_command="x"),
    )
    return policy


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "rollout/stopped"} for line in lines]


@pytest.mark.parametrize(("minibatch_groups", "sampler"), [(2, "uniform"), (6, "uniform"), (2, "adaptive")])
def test_stream_gives_the_figures_of_serial(tmp_path: Path, minibatch_groups: int, sampler: str) -> None:
    """With six groups a minibatch, policy and learner share their weights."""
    one = run(tmp_path / "serial", settings(SerialConfig(), minibatch_groups, sampler))
    two = run(tmp_path / "stream", settings(STREAM, minibatch_groups, sampler))
    for left, right in zip(metrics(tmp_path / "serial"), metrics(tmp_path / "stream"), strict=True):
        assert right == pytest.approx(left, rel=1e-4, abs=1e-6)
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(two.state_dict()[name], tensor, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("scheduler", [STREAM, ASYNC], ids=["stream", "async"])
def test_evaluations_are_nobodys_idle_time(
    tmp_path: Path, scheduler: PipelinedConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the clock each takes a million seconds, and so does what comes before the run. What else is done between two
    iterations (here a log of 1000 s) counts for the second."""
    late, real = [0.0], time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: real() + late[0])

    def slow(*args: Any, **options: Any) -> dict[int, EpisodeResult]:
        late[0] += 1e6
        return run_once(*args, **options)

    monkeypatch.setattr(ranked, "run_once", slow)
    observer, policy, clock = (
        Shares(tmp_path / "metrics.jsonl", late),
        ToyPolicy(with_value=False),
        Profiler(concurrent=True),
    )
    late[0] += 1e6
    what = replace(settings(scheduler), evaluation=EvalConfig(every=1, states_per_task=12))
    train(
        tmp_path,
        ToyEnv(6),
        policy,
        files_of(policy),
        what,
        TaskSplit(TASKS, HELDOUT),
        observer,
        RunOptions(resume_command="x", profiler=clock),
    )
    assert late[0] == 1e6 * (2 + what.iterations) + 1000.0 * what.iterations
    assert len(observer.elapsed) == what.iterations
    for seconds in zip(*observer.elapsed, strict=True):
        assert seconds[0] < 500.0
        assert all(1000.0 <= later < 1500.0 for later in seconds[1:])


@pytest.mark.parametrize("stop", [70, 92])
@pytest.mark.parametrize(
    ("scheduler", "sampler"),
    [(STREAM, "uniform"), (STREAM, "adaptive"), (ASYNC, "adaptive")],
    ids=["stream", "stream, adaptive", "async"],
)
def test_stopped_and_resumed(tmp_path: Path, scheduler: PipelinedConfig, sampler: str, stop: int) -> None:
    """In the third or fourth iteration, or with async perhaps later. The last boundary has a checkpoint already in the
    third only; a stream has taken steps by then, which must not be in one."""
    with pytest.raises(Interrupted):
        run(tmp_path / "run", settings(scheduler, sampler=sampler), stop=stop)
    resumed = run(tmp_path / "run", settings(scheduler, sampler=sampler), resume=True)
    lines = [line for line in metrics(tmp_path / "run") if "rollout/episodes" in line]
    assert [line["iteration"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["rollout/episodes"] for line in lines] == [24] * 5
    if scheduler is STREAM:
        whole = run(tmp_path / "whole", settings(scheduler, sampler=sampler))
        for left, right in zip(metrics(tmp_path / "run"), metrics(tmp_path / "whole"), strict=True):
            assert left == pytest.approx(right, rel=1e-4, abs=1e-6)
        for name, tensor in whole.state_dict().items():
            torch.testing.assert_close(resumed.state_dict()[name], tensor, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"env_groups": 0}, "--scheduler.env-groups must be at least 1"),
        ({"max_staleness": 1}, "--scheduler.max-staleness does not apply to mode on_policy"),
        ({"mode": "async", "max_staleness": 0}, "--scheduler.max-staleness must be at least 1"),
        ({"max_lookahead": 4}, "--scheduler.max-lookahead does not apply to mode on_policy"),
        ({"mode": "async", "max_lookahead": 0}, "--scheduler.max-lookahead must be at least 1"),
    ],
)
def test_options_that_do_nothing_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        PipelinedConfig(**options)


def test_parts_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match=r"--scheduler.mode on_policy needs .*learner.minibatch-groups"):
        TrainConfig(scheduler=STREAM).check()
    with pytest.raises(UserError, match=r"--scheduler.env-groups is 99, but there are 32 envs"):
        TrainConfig(scheduler=PipelinedConfig(env_groups=99, mode="async")).check()
    TrainConfig(scheduler=ASYNC).check()
    with pytest.raises(UserError, match=r"learner.minibatch-size or --learner.minibatch-groups"):
        LearnerConfig(minibatch_groups=4)
    with pytest.raises(UserError, match=r"learner.minibatch-size or --learner.minibatch-groups"):
        LearnerConfig(minibatch_size=None)


@pytest.mark.parametrize(
    ("options", "streams", "expected"),
    [
        ({}, True, Lookahead(1, 4)),
        ({"max_lookahead": 7}, True, Lookahead(1, 7)),
        ({"max_staleness": 3}, True, Lookahead(3, 24)),
        ({}, False, Lookahead(1, None)),
        ({"max_lookahead": 7}, False, Lookahead(1, 7)),
    ],
)
def test_how_far_the_rollout_runs_ahead(options: dict[str, Any], streams: bool, expected: Lookahead) -> None:
    """13 envs are filled by four groups of four; a batch has ten."""
    assert PipelinedConfig(mode="async", **options).lookahead(13, 10, 4, streams=streams) == expected
    assert PipelinedConfig().lookahead(13, 10, 4, streams=True) == Lookahead(0, None)


def test_half_a_batch_ahead_is_the_most_by_default() -> None:
    for groups, ahead in ((1, 1), (2, 1), (7, 3), (100, 25)):
        assert PipelinedConfig(mode="async").lookahead(100, groups, 4, streams=True).groups == ahead


@pytest.mark.parametrize("groups", [2, 6])
def test_a_run_computes_log_probs_again(tmp_path: Path, groups: int) -> None:
    """Rounded ones start off 1, which a run refuses; again by the policy that acts they are the update's."""

    def rounded(folder: Path, what: TrainSettings) -> None:
        torch.set_num_threads(1)
        policy = RoundingPolicy()
        train(
            folder,
            ToyEnv(6),
            policy,
            files_of(policy),
            what,
            TaskSplit(TASKS, HELDOUT),
            Stopping(folder / "metrics.jsonl", -1),
            RunOptions(resume_command="x"),
        )

    strict = settings(STREAM, groups)
    strict = replace(strict, learner=replace(strict.learner, ratio_tolerance=1e-4))
    with pytest.raises(RatioError):
        rounded(tmp_path / "refused", strict)
    for name, scheduler in (("stream", STREAM), ("async", ASYNC)):
        again = replace(strict, scheduler=scheduler, learner=replace(strict.learner, recompute_old_log_probs=True))
        rounded(tmp_path / name, again)
        lines = [line for line in metrics(tmp_path / name) if "rollout/episodes" in line]
        drifts = [line["train/log_prob_drift"] for line in lines]
        assert len(drifts) == 5
        assert max(drifts) > 1e-4, drifts


def test_the_scheduler_is_written_and_read_with_its_name() -> None:
    config = TrainConfig(scheduler=ASYNC, policy=OpenVLAConfig(temperature=0.5))
    assert to_dict(config)["scheduler"] == {
        "name": "pipelined",
        "env_groups": 3,
        "mode": "async",
        "max_staleness": 2,
        "max_lookahead": None,
        "act_device": None,
    }
    assert from_dict(to_dict(config)) == config
    assert from_dict({"scheduler": {"name": "serial"}}, config).scheduler == SerialConfig()
    with pytest.raises(UserError, match=r"'scheduler.env_groups' does not apply to serial \(it belongs to pipelined\)"):
        from_dict({"scheduler": {"env_groups": 2}})

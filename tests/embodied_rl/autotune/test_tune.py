"""What is tried, what a choice does to a run's config, and `plan BENCHMARK` and `--autotune` from end to end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from embodied_rl.autotune import tune as tune_module
from embodied_rl.autotune.trials import Round, Trial
from embodied_rl.autotune.tune import candidates, fill_in, tune
from embodied_rl.cli import main
from embodied_rl.config.env import EnvConfig, MujocoConfig
from embodied_rl.config.train import TrainConfig, load_yaml
from embodied_rl.errors import UserError
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.scheduler.config import PipelinedConfig, RayConfig, SerialConfig
from embodied_rl.types import EpisodeSpec
from embodied_rl.utils.signals import Interrupted
from tests.embodied_rl.autotune.test_trials import CONFIG, same_threads, trial
from tests.toy import TASKS, ToyEnv, ToyPolicy

__all__ = ["same_threads"]
ROWS = replace(CONFIG, learner=LearnerConfig(minibatch_size=48, microbatch_size=32), autotune=True)


@pytest.mark.parametrize("num_envs", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("scheduler", [SerialConfig(), PipelinedConfig(env_groups=1), PipelinedConfig(mode="async")])
def test_six_to_twelve_valid_candidates_as_on_policy_as_the_run(
    num_envs: int, scheduler: SerialConfig | PipelinedConfig
) -> None:
    config = replace(ROWS, env=MujocoConfig(num_envs=num_envs, processes=num_envs), scheduler=scheduler)
    for others in ((), ("cuda:1", "cuda:2")):
        found = candidates(config, 16.0, others)
        assert 6 <= len(set(found)) == len(found) <= 12
        assert found[0].scheduler == SerialConfig()
        for one in found:
            one.check()
            assert not one.autotune
            assert one.env.num_envs in (num_envs, num_envs // 2)
            assert one.learner.microbatch_size in (16, 32, 64)
            if isinstance(one.scheduler, PipelinedConfig):
                assert one.scheduler.mode == (scheduler.mode if isinstance(scheduler, PipelinedConfig) else "on_policy")
        acts = [one.scheduler.act_device for one in found if isinstance(one.scheduler, PipelinedConfig)]
        assert ("cuda:1" in acts) == bool(others)


def test_what_is_not_chosen_stays_as_given() -> None:
    given = PipelinedConfig(mode="async", env_groups=3, max_staleness=2, max_lookahead=4, act_device="cuda:3")
    pipelined = [
        one.scheduler
        for one in candidates(replace(ROWS, scheduler=given), 16.0, ["cuda:1"])
        if isinstance(one.scheduler, PipelinedConfig)
    ]
    assert {replace(one, env_groups=None) for one in pipelined} == {replace(given, env_groups=None)}
    assert {one.env_groups for one in pipelined} == {1, 2, 3}


def test_a_choice_fills_in_the_config() -> None:
    """96 rows in minibatches of 48 were two steps: two groups each."""
    stream = PipelinedConfig(env_groups=3)
    config = fill_in(ROWS, stream, 16, 64, rows_per_group=24)
    assert (config.scheduler, config.env.num_envs, config.learner.microbatch_size) == (stream, 16, 64)
    assert (config.learner.minibatch_size, config.learner.minibatch_groups) == (None, 2)
    assert fill_in(ROWS, SerialConfig(), 16, 64, 24).learner.minibatch_size == 48
    assert fill_in(CONFIG, stream, 16, 64, 24).learner.minibatch_groups == 2
    watched = replace(ROWS, env=replace(ROWS.env, num_envs=64, processes=64))
    assert fill_in(watched, stream, 16, 64, 24).env.watched == 16


class ReplacingEnv(ToyEnv):
    """A reset may replace an episode that has not ended: trials stop while others run."""

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        for env_id in env_ids:
            self._spec[env_id] = None
        super().reset(env_ids, episodes)


class Simulators:
    """Opens toy worlds and counts those that are open."""

    def __init__(self) -> None:
        self.open = 0
        self.seen: list[int] = []

    @contextmanager
    def __call__(self, config: EnvConfig) -> Iterator[ToyEnv]:
        self.open += 1
        self.seen.append(config.num_envs)
        assert self.open == 1, "one after the other"
        try:
            yield ReplacingEnv(config.num_envs)
        finally:
            self.open -= 1


def quiet() -> Console:
    return Console(file=StringIO(), width=80)


def test_a_real_tuning_on_the_toy_world() -> None:
    simulators, policy, console = Simulators(), ToyPolicy(), quiet()
    weights = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    tuning = tune(ROWS, simulators, policy, TASKS, console)
    tuning.config.check()
    assert tuning.best.candidate == tuning.config
    assert tuning.best in tuning.outcomes
    assert all(outcome.error is None for outcome in tuning.outcomes)
    assert simulators.open == 0
    assert set(simulators.seen) == {8, 4}
    assert all(torch.equal(policy.state_dict()[name], tensor) for name, tensor in weights.items())
    console.print(tuning.table())
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "trying 10 schedules in up to 19 short iterations" in said
    assert said.count("serial") == 4
    assert " *" in said
    assert tuning.config.scheduler.describe() in tuning.describe()


def test_the_fastest_trial_is_chosen_and_a_failing_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator is opened anew after an error; trials are of whole groups, and of no more than an iteration."""
    episodes: list[int] = []

    def made_up(config: TrainConfig, env: ToyEnv, *_: object) -> Trial:
        episodes.append(config.rollout.episodes_per_iteration)
        assert env.num_envs == config.env.num_envs
        if config.learner.microbatch_size == 64:
            raise torch.OutOfMemoryError("no room")
        fast = config.scheduler == PipelinedConfig(env_groups=2)
        return trial(200.0 if fast else 100.0 - config.env.num_envs)

    monkeypatch.setattr(tune_module, "run_trial", made_up)
    simulators, console = Simulators(), quiet()
    tuning = tune(
        replace(ROWS, rollout=RolloutConfig(episodes_per_iteration=24)), simulators, ToyPolicy(), TASKS, console
    )
    assert tuning.config.scheduler == PipelinedConfig(env_groups=2)
    errors = [outcome.error for outcome in tuning.outcomes if outcome.candidate.learner.microbatch_size == 64]
    assert errors == ["OutOfMemoryError: no room"] * 2
    assert simulators.open == 0
    assert set(episodes) == {8, 16, 24}
    console.print(tuning.table())
    assert "no room" in " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]


def test_what_does_not_fit_is_not_tried_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def made_up(config: TrainConfig, *_: object) -> Trial:
        tried.append(config.learner.microbatch_size)
        return trial(100.0)

    monkeypatch.setattr(tune_module, "run_trial", made_up)
    monkeypatch.setattr(
        tune_module,
        "host_shortage",
        lambda config, *_: None if config.learner.microbatch_size < limit else "needs 9 GiB of cpu, 1 are free",
    )
    limit = 33
    tuning = tune(ROWS, Simulators(), ToyPolicy(), TASKS, quiet())
    assert set(tried) == {16, 32}
    refused = [outcome for outcome in tuning.outcomes if outcome.error]
    assert [outcome.candidate.learner.microbatch_size for outcome in refused] == [64, 64]
    assert tuning.describe().startswith(f"chosen of {len(tuning.outcomes)}: ")
    limit = 0
    with pytest.raises(UserError, match=r"no schedule's rows fit into memory \(needs 9 GiB of cpu.*lower --rollout"):
        tune(ROWS, Simulators(), ToyPolicy(), TASKS, quiet())


def test_what_cannot_be_tried_from_here_is_refused() -> None:
    ranks = replace(ROWS, learner=replace(ROWS.learner, num_processes=2))
    for config, message in ((replace(ROWS, scheduler=RayConfig()), "this machine only"), (ranks, "of one process")):
        with pytest.raises(UserError, match=message):
            tune(config, Simulators(), ToyPolicy(), TASKS, quiet())


@pytest.mark.parametrize("at", [0, 3])
def test_neither_ctrl_c_nor_an_error_leaves_a_simulator_open(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0

    def made_up(config: TrainConfig, *_: object) -> Trial:
        nonlocal made
        made += 1
        if made > at:
            raise KeyboardInterrupt
        return trial(100.0)

    monkeypatch.setattr(tune_module, "run_trial", made_up)
    simulators = Simulators()
    with pytest.raises(Interrupted, match="nothing was trained or written"):
        tune(ROWS, simulators, ToyPolicy(), TASKS, quiet())
    assert simulators.open == 0

    def broken(config: TrainConfig, env: ToyEnv, *_: object) -> Trial:
        if config.rollout.episodes_per_iteration == 8 and isinstance(config.scheduler, SerialConfig):
            return trial(100.0)  # the first look
        raise OSError("no worlds")

    monkeypatch.setattr(tune_module, "run_trial", broken)
    monkeypatch.setattr(
        tune_module, "candidates", lambda *_: [replace(CONFIG, scheduler=PipelinedConfig(env_groups=1))]
    )
    with pytest.raises(UserError, match="none of 1 schedules runs; the first one: OSError: no worlds"):
        tune(ROWS, simulators, ToyPolicy(), TASKS, quiet())
    assert simulators.open == 0


def test_rounds_are_cheap() -> None:
    """Twelve candidates cost at most as much as 80 episodes a world."""
    from embodied_rl.autotune.trials import ROUNDS, halve

    waves = 0

    def made_up(name: int, round_: Round) -> Trial:
        nonlocal waves
        waves += round_.waves
        return trial(100.0 + name)

    halve(range(12), made_up)
    assert waves <= 12 * ROUNDS[0].waves + 6 * ROUNDS[1].waves + 2 * 2 * ROUNDS[2].waves <= 80


@pytest.mark.usefixtures("stand_in")
def test_plan_with_a_benchmark(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, chart = tmp_path / "tuned.yaml", tmp_path / "chart.svg"
    words = ["--env.num-envs", "2", "--rollout.episodes-per-iteration", "4", "--num-threads", "1"]
    words += ["--policy.checkpoint", str(checkpoint), "--suite", "tabletop_object"]
    assert main(["plan", "tabletop", *words, "--write", str(file), "--chart", str(chart)]) == 0
    said = capsys.readouterr().out
    for text in ("chosen of", "decisions/s", "micro-batch", f"--config {file}"):
        assert text in said
    config = load_yaml(file)
    config.check()
    assert config.env.num_envs <= 2
    assert chart.read_text().startswith("<svg")
    assert main(["plan", "tabletop", "--write"]) == 2
    assert main(["plan", "tabletop", "--chart", str(tmp_path / "no" / "chart.svg")]) == 2
    assert main(["plan", "tabletop", "--chart", str(tmp_path / "chart.png")]) == 2
    assert "name it chart.svg" in capsys.readouterr().err

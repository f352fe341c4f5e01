"""Which training episodes are perturbed: by seed and group alone, alike under every schedule."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.config.train import Perturbation, TrainConfig, from_dict, to_dict
from embodied_rl.errors import UserError
from embodied_rl.jobs.describe import perturbed_words
from embodied_rl.jobs.run_folder import check_unchanged
from embodied_rl.rng import philox
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.config import PipelinedConfig, SchedulerConfig, SerialConfig
from embodied_rl.sim.perturb import KINDS
from embodied_rl.training.on_policy import train
from embodied_rl.training.settings import RunOptions, TaskSplit, TrainSettings
from embodied_rl.types import EpisodeSpec
from tests.embodied_rl.scheduler.test_training import Stopping
from tests.embodied_rl.scheduler.test_training import settings as scheduled
from tests.embodied_rl.toy_run import files_of, newest
from tests.toy import HELDOUT, TASKS, ToyEnv, ToyPolicy

SHARE = 0.6
STATES = {name: list(rows) for name, rows in TASKS.items()}


class ChangedEnv(ToyEnv):
    """The toy, whose perturbed episodes begin elsewhere."""

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        super().reset(env_ids, episodes)
        for env_id, spec in zip(env_ids, episodes, strict=True):
            if spec.perturb_seed is not None:
                self._position[env_id] = philox(spec.perturb_seed).uniform(-0.6, 0.6, 2)


def run(
    folder: Path, what: TrainSettings, *, envs: int = 6, resume: bool = False, stop: int = -1
) -> tuple[ToyPolicy, list[EpisodeSpec]]:
    torch.set_num_threads(1)
    policy, env = ToyPolicy(with_value=False), ChangedEnv(envs)
    observer = Stopping(folder / "metrics.jsonl", stop)
    options = RunOptions(resume=newest(folder) if resume else None, resume_command="x")
    try:
        train(folder, env, policy, files_of(policy), what, TaskSplit(TASKS, HELDOUT), observer, options)
    except KeyboardInterrupt:
        assert stop >= 0
    return policy, env.started


def mixed(scheduler: SchedulerConfig, share: float = SHARE) -> TrainSettings:
    return replace(scheduled(scheduler), perturb_share=share, iterations=4)


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "rollout/stopped"} for line in lines]


def same_weights(one: ToyPolicy, two: ToyPolicy) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


@pytest.fixture(scope="module")
def serial(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ToyPolicy, list[EpisodeSpec]]:
    folder = tmp_path_factory.mktemp("serial")
    return folder, *run(folder, mixed(SerialConfig()))


@given(st.integers(0, 2**40), st.integers(1, 5), st.floats(0.1, 1.0))
@settings(deadline=None, max_examples=30)
def test_the_share_changes_nothing_else_of_an_episode(seed: int, group_size: int, share: float) -> None:
    plain = EpisodeSampler(seed, STATES, group_size)
    sampler = EpisodeSampler(seed, STATES, group_size, perturb_share=share)
    for index in (0, 3, 41):
        found = sampler.group(index)
        assert [replace(spec, perturb_seed=None) for spec in found] == plain.group(index)
        assert len({spec.perturb_seed for spec in found}) == 1
        assert found == EpisodeSampler(seed, STATES, group_size, perturb_share=share).group(index)


def test_the_share_is_kept_and_every_perturbation_is_another() -> None:
    sampler = EpisodeSampler(0, STATES, 1, perturb_share=SHARE)
    specs = [sampler.group(index)[0] for index in range(2000)]
    drawn = [spec.perturb_seed for spec in specs if spec.perturb_seed is not None]
    assert 0.55 < len(drawn) / len(specs) < 0.65
    assert len(set(drawn)) == len(drawn)


def test_a_run_again_is_perturbed_alike() -> None:
    sampler = EpisodeSampler(0, STATES, 1, perturb_share=1.0)
    (spec,) = sampler.next_group()
    second = sampler.requeue(spec)
    assert second is not None
    third = sampler.requeue(second)
    assert third is not None
    assert (third.seed != spec.seed, third.perturb_seed) == (True, spec.perturb_seed)


def test_pipelined_gives_what_serial_gives(serial: tuple[Path, ToyPolicy, list[EpisodeSpec]], tmp_path: Path) -> None:
    folder, policy, _ = serial
    other, _ = run(tmp_path, mixed(PipelinedConfig(env_groups=3)), envs=9)
    assert same_weights(policy, other)
    assert metrics(tmp_path) == metrics(folder)


def test_stopped_and_resumed_gives_what_serial_gives(
    serial: tuple[Path, ToyPolicy, list[EpisodeSpec]], tmp_path: Path
) -> None:
    folder, policy, _ = serial
    run(tmp_path, mixed(SerialConfig()), stop=60)
    assert len(metrics(tmp_path)) < len(metrics(folder))
    other, _ = run(tmp_path, mixed(SerialConfig()), resume=True)
    assert same_weights(policy, other)
    assert metrics(tmp_path) == metrics(folder)


def test_only_training_is_perturbed_and_its_success_is_told_apart(
    serial: tuple[Path, ToyPolicy, list[EpisodeSpec]],
) -> None:
    folder, _, started = serial
    heldout = [spec for spec in started if spec.init_state in HELDOUT[spec.task]]
    training = [spec for spec in started if spec not in heldout]
    assert all(spec.perturb_seed is None for spec in heldout)
    shares = {spec.group: spec.perturb_seed is not None for spec in training}
    assert 0 < sum(shares.values()) < len(shares)
    row = metrics(folder)[1]
    low, high = sorted((row["rollout/success_perturbed"], row["rollout/success_unperturbed"]))
    assert low <= row["rollout/success"] <= high


def test_without_a_share_a_run_is_what_it_was(
    serial: tuple[Path, ToyPolicy, list[EpisodeSpec]], tmp_path: Path
) -> None:
    policy, started = run(tmp_path, mixed(SerialConfig(), 0.0))
    assert all(spec.perturb_seed is None for spec in started)
    assert not any("perturbed" in name for row in metrics(tmp_path) for name in row)
    assert not same_weights(policy, serial[1])


def test_a_draw_that_is_not_the_episodes_own_is_noticed(
    serial: tuple[Path, ToyPolicy, list[EpisodeSpec]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken variant: a generator that goes on from episode to episode, whichever is issued first."""
    draws = philox(3)
    monkeypatch.setattr(EpisodeSampler, "_perturb_seed", lambda self, group: int(draws.integers(2**60)))
    run(tmp_path, mixed(SerialConfig()), stop=60)
    other, _ = run(tmp_path, mixed(SerialConfig()), resume=True)
    assert not same_weights(serial[1], other)


def test_the_kinds_are_those_of_eval() -> None:
    assert get_args(Perturbation) == KINDS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"perturb": ["camra"]}, "must be a list of names"),
        ({"perturb": ["light", "light"]}, "'light' is named twice"),
        ({"perturb": ["light"], "perturb_level": -1.0}, "--perturb-level must be a finite number and not negative"),
        ({"perturb": ["light"], "perturb_share": 0.0}, "--perturb-share must lie above 0"),
        ({"perturb": ["light"], "env": {"simulator": "warp"}}, "--perturb light does not go with MuJoCo Warp"),
        ({"perturb": ["light"], "env": {"renderer": "warp"}}, "--perturb light does not go with MuJoCo Warp"),
        ({"perturb_level": 1.0}, "--perturb-level goes with --perturb"),
        ({"perturb_share": 0.75}, "--perturb-share goes with --perturb"),
    ],
)
def test_what_cannot_be_perturbed_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        from_dict(options).check()


@pytest.mark.parametrize(("name", "value"), [("perturb", ("light",)), ("perturb_level", 0.5), ("perturb_share", 0.5)])
def test_a_run_is_resumed_with_its_own_perturbations(name: str, value: Any) -> None:
    before = to_dict(TrainConfig(perturb=("camera",)))
    check_unchanged(TrainConfig(perturb=("camera",)), before)
    changed: dict[str, Any] = {"perturb": ("camera",)} | {name: value}
    with pytest.raises(UserError, match=f"edited since the checkpoint: {name} was"):
        check_unchanged(TrainConfig(**changed), before)


def test_a_run_says_which_episodes_it_perturbs() -> None:
    assert TrainConfig(perturb=("light",)).perturbation == (1.0, 0.75)
    assert perturbed_words(TrainConfig()) == ""
    said = perturbed_words(TrainConfig(perturb=("light",)))
    assert said == "light at level 1, in 75% of the training episodes"

"""Who watches a run: the policy that it began with, and the detector that was calibrated with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from embodied_rl.algorithms.config import ImitateConfig
from embodied_rl.config.policies import OpenVLAConfig, PolicyObjectConfig
from embodied_rl.config.train import TrainConfig
from embodied_rl.errors import UserError
from embodied_rl.evaluation.detector import Detector, save_detector
from embodied_rl.evaluation.features import NOTHING, Watcher, summary_of
from embodied_rl.factory.policies import open_policy, save_policy
from embodied_rl.jobs.describe import people_words
from embodied_rl.jobs.run_folder import DETECTOR
from embodied_rl.jobs.train_people import open_watcher
from embodied_rl.policies.mlp.config import MLPModelConfig
from embodied_rl.policies.mlp.policy import MLPPolicy
from embodied_rl.training.filtered_bc import weights_digest
from tests.policies.test_openvla_policy import _observation, _policy

TASK = "turn on the stove"


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    """A run from a tiny policy on disk, with a clock that was calibrated with it."""
    save_policy(_policy(), tmp_path / "start", {})
    begun = open_policy(str(tmp_path / "start"), "cpu")
    save_detector(Detector("clock", weights_digest(begun), begun.chunk_len, {TASK: 4.0}), tmp_path / "d.safetensors")
    (tmp_path / "run").mkdir()
    return TrainConfig(
        policy=OpenVLAConfig(checkpoint=str(tmp_path / "start")),
        algorithm=ImitateConfig(),
        demos=("demos",),
        people="expert",
        people_rule="detector",
        people_detector=str(tmp_path / "d.safetensors"),
        output=str(tmp_path / "run"),
        device="cpu",
    )


def test_the_run_keeps_a_copy_and_goes_on_with_it(config: TrainConfig, tmp_path: Path) -> None:
    config.check()
    assert people_words(config) == f"expert, takes over where {config.people_detector} raises an alarm"
    policy = _policy()
    watcher = open_watcher(config, policy, [TASK])
    assert watcher is not None
    sights = [watcher.see(_observation(1, policy))] * 5
    assert sights == [NOTHING] * 5
    assert [watcher.alarm(sights[:count], TASK) for count in range(1, 6)] == [False] * 4 + [True]
    file, kept = Path(config.people_detector), tmp_path / "run" / DETECTOR
    assert kept.read_bytes() == file.read_bytes()
    with torch.no_grad():
        next(policy.parameters()).add_(1.0)  # the run's own policy learns, which changes nothing
    file.rename(tmp_path / "moved")
    assert open_watcher(config, policy, [TASK]) is not None
    save_detector(Detector("clock", "abc", 2, {TASK: 9.0}), file)
    with pytest.raises(UserError, match="is no longer the detector that"):
        open_watcher(config, policy, [TASK])


def test_what_a_detector_is_not_for_is_refused(config: TrainConfig, tmp_path: Path) -> None:
    policy = _policy()
    assert open_watcher(replace(config, people_rule="late", people_detector=""), policy, [TASK]) is None
    with pytest.raises(UserError, match=r"name it with --policy\.checkpoint"):
        open_watcher(replace(config, policy=PolicyObjectConfig(class_name="a.B")), policy, [TASK])
    with pytest.raises(UserError, match="was not calibrated for 'another task'"):
        open_watcher(config, policy, [TASK, "another task"])
    with pytest.raises(UserError, match="leave --perturb instruction out"):
        open_watcher(replace(config, perturb=("instruction",)), policy, [TASK])
    policy.chunk_len = 7
    with pytest.raises(UserError, match="decisions of 2 control steps, and the policy makes them for 7"):
        open_watcher(config, policy, [TASK])
    policy.chunk_len = 2
    other = _policy()
    with torch.no_grad():
        next(other.parameters()).add_(1.0)
    save_policy(other, tmp_path / "other", {})
    with pytest.raises(UserError, match="was calibrated with another policy") as refused:
        open_watcher(replace(config, policy=OpenVLAConfig(checkpoint=str(tmp_path / "other"))), policy, [TASK])
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run" / DETECTOR).exists(), "what is refused leaves nothing"


def test_a_policy_that_says_nothing_of_an_observation_has_a_clock_alone() -> None:
    blind = MLPPolicy.fresh(MLPModelConfig(observation_dim=3, action_dim=1), seed=0)
    with pytest.raises(UserError, match="MLPPolicy says nothing of an observation but its actions"):
        summary_of(blind)
    assert Watcher(Detector("clock", "abc", 2, {TASK: 4.0}), blind).chunk_len == 2

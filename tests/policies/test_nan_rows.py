"""A decision that is no number stays in its row: `act` goes on, the rollout runs that row's episode again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.algorithms.config import GRPOConfig
from embodied_rl.evaluation.evaluate import evaluate
from embodied_rl.evaluation.record import record_episode
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.openvla.config import nano as openvla_nano
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.policies.pi0.config import nano
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.policy import action_array, action_chunks, void_rows
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.types import ActOutput, EpisodeSpec, Observation
from embodied_rl.vec_env import SimulatorFailed
from tests.embodied_rl.scheduler.toys import Outcome, Setup, SlowEnv, pipelined, serial
from tests.policies import act_models, oft_policies, pi0_models, smolvla_models
from tests.toy import HELDOUT, INSTRUCTIONS, SIZE

SICK = {1: 1, 6: 2}


class SickEnv(SlowEnv):
    """Shows a position that is no number in the first runs of some episodes: how many, by episode."""

    def __init__(self, num_envs: int, sick: dict[int, int]) -> None:
        super().__init__(num_envs)
        self._runs = dict(sick)
        self._sick = np.zeros(num_envs, np.bool_)

    def reset(self, env_ids: Sequence[int], episodes: Sequence[EpisodeSpec]) -> None:
        super().reset(env_ids, episodes)
        for env_id, spec in zip(env_ids, episodes, strict=True):
            self._sick[env_id] = self._runs.get(spec.episode_id, 0) > 0
            self._runs[spec.episode_id] = self._runs.get(spec.episode_id, 0) - 1

    def observe(self, env_ids: Sequence[int], out: Observation) -> None:
        super().observe(env_ids, out)
        out.proprio[torch.from_numpy(self._sick[list(env_ids)])] = torch.nan


def toy_pi0() -> Any:
    """The nano preset for the toy world."""
    config = replace(
        nano(image_size=SIZE, patch_size=SIZE // 2, num_cameras=1, horizon=3), chunk_len=2, action_dim=2, proprio_dim=2
    )
    return Pi0Policy.fresh(config, INSTRUCTIONS.values(), flow=FlowSettings(num_inference_steps=4, noise_level=0.8))


def acted(name: str, *, sick: bool) -> ActOutput:
    """A policy's decision for three rows, of which the second may be sick."""
    if name == "oft":
        policy: Any = oft_policies.policy(head="l1")
        obs, rng = oft_policies.observation(3, policy), oft_policies.rng(3)
    else:
        models: Any = {"pi0": pi0_models, "smolvla": smolvla_models, "act": act_models}[name]
        policy, obs, rng = models.tiny_policy(), models.observation(3), pi0_models.decision_rng(3)
    if sick:
        obs.proprio[1] = torch.nan
    return policy.act(obs, rng, "sample")


@pytest.mark.parametrize("name", ["pi0", "smolvla", "oft", "act"])
def test_a_bad_row_leaves_the_others_alone(name: str) -> None:
    whole, out = acted(name, sick=False), acted(name, sick=True)
    assert torch.isfinite(out.actions).all(dim=2).all(dim=1).tolist() == [True, False, True]
    np.testing.assert_allclose(out.actions[[0, 2]], whole.actions[[0, 2]], rtol=0, atol=1e-6)
    torch.testing.assert_close(out.log_prob[[0, 2]], whole.log_prob[[0, 2]], rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match="non-finite"):
        action_array(out.actions)


def _untrained(name: str) -> Any:
    if name == "openvla":
        return openvla_policy()
    if name.startswith("oft"):
        return oft_policies.policy(head=name.removeprefix("oft_"))
    return (pi0_models if name == "pi0" else smolvla_models).tiny_policy()


def openvla_policy() -> OpenVLAPolicy:
    return OpenVLAPolicy.fresh(openvla_nano(image_size=32, chunk_len=2), oft_policies.INSTRUCTIONS)


def _see(name: str, policy: Any, rows: int) -> Observation:
    if name in ("pi0", "smolvla"):
        return (pi0_models if name == "pi0" else smolvla_models).observation(rows)
    return oft_policies.observation(rows, policy)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("mode", ["greedy", "sample"])
@pytest.mark.parametrize("name", ["openvla", "oft_tokens", "oft_l1", "pi0", "smolvla"])
def test_numbers_that_are_not_finite_never_become_an_action(name: str, mode: Any, value: float) -> None:
    """Clipping makes 1 of infinity, a bin makes a number of NaN, and a gripper's sign is 1 or -1 whatever it is of."""
    policy = _untrained(name)
    obs, rng = _see(name, policy, 3), pi0_models.decision_rng(3)
    assert np.isfinite(policy.act(obs, rng, mode).actions).all()
    head = {"openvla": "language_model.lm_head", "oft_tokens": "language_model.lm_head"}
    head |= {"oft_l1": "action_head.model.fc2", "pi0": "action_out_proj", "smolvla": "action_out_proj"}
    layer = policy.model.get_submodule(head[name])
    with torch.no_grad():
        if "lm_head" in head[name]:
            layer.weight[policy.model.action_rows.start + 7] = value
        else:
            layer.bias[policy.action_dim - 1] = value  # the gripper alone
    out = policy.act(obs, rng, mode)
    assert torch.isnan(out.actions).all()
    with pytest.raises(ValueError, match="non-finite"):
        action_array(out.actions)


def test_only_rows_that_are_not_finite_are_voided() -> None:
    actions = torch.zeros(3, 2, 1)
    voided = void_rows(actions, torch.tensor([[1.0, 2.0], [1.0, -np.inf], [0.0, 0.0]]), torch.zeros(3, 2, 1))
    assert torch.isnan(voided).flatten(1).all(dim=1).tolist() == [False, True, False]


def test_dtype_and_shape_are_checked_whatever_the_numbers() -> None:
    assert torch.isnan(action_chunks(torch.full((1, 2, 3), torch.nan))).all()
    for wrong in (torch.zeros(1, 2, 3, dtype=torch.float64), torch.zeros(2, 3)):
        with pytest.raises(ValueError, match=r"float32 \[N,K,A\]"):
            action_chunks(wrong)


@pytest.fixture(scope="module")
def setup() -> Setup:
    learner = LearnerConfig(lr=1e-4, minibatch_size=None, minibatch_groups=2, microbatch_size=24)
    return Setup(
        GRPOConfig(group_size=4, success_rate_range=None, ratio_level="action"), groups=4, iterations=1, learner=learner
    )


@pytest.mark.parametrize("run", [serial, pipelined])
def test_pi0_runs_the_sick_episodes_again_and_the_others_as_ever(run: Any, setup: Setup, tmp_path: Path) -> None:
    found: Outcome = run(setup, tmp_path, policy=toy_pi0(), env=SickEnv(6, SICK))
    oracle = serial(setup, tmp_path, policy=toy_pi0(), env=SlowEnv(6))
    ledger = found.sampler.counts
    assert (ledger.outstanding, ledger.requeued) == ({}, sum(SICK.values()))
    assert ledger.issued == ledger.finished == len(set(found.episodes)) == len(found.episodes) == 16
    (batch,), (other,) = found.batches, oracle.batches
    assert batch.log_prob.isfinite().all()
    # episode 6 got another seed for its third run; rows that share a batch with other rows differ in the last bits
    same = [index for index, episode in enumerate(batch.episodes) if episode.spec.episode_id != 6]
    for index in same:
        assert batch.episodes[index].spec == other.episodes[index].spec
        one, two = batch.log_prob[batch.episode == index], other.log_prob[other.episode == index]
        torch.testing.assert_close(one, two, rtol=0, atol=1e-3)
    assert batch.episodes[6].spec != other.episodes[6].spec


def test_evaluation_of_a_sick_episode_is_the_simulators_fault_and_costs_that_episode_alone() -> None:
    specs = evaluation_specs(HELDOUT, 11)[:6]
    policy = toy_pi0()
    with closing(SickEnv(4, {2: 2})) as env:
        report = evaluate(env, policy, specs, "greedy")
        assert [result.spec for result in report.results] == specs
        assert len(env.started) == len(specs) + 2
    with closing(SickEnv(4, {2: 99})) as env:
        found = evaluate(env, policy, specs, "greedy")
    assert found.not_measured == [specs[2]]
    assert [result.spec for result in found.results] == [*specs[:2], *specs[3:]]
    with closing(SickEnv(1, {2: 99})) as env, pytest.raises(SimulatorFailed, match=r"failed in task 'toy/"):
        record_episode(env, policy, specs[2], "greedy", cameras=["front"], size=SIZE, write=lambda frame: None)

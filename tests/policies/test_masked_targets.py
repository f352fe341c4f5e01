"""The imitation loss counts the control steps of its mask and no others, in every family of policies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from embodied_rl.policies.flow import FlowSettings
from embodied_rl.policies.mlp.config import MLPModelConfig
from embodied_rl.policies.mlp.policy import MLPPolicy
from embodied_rl.policies.pi0.policy import Pi0Policy
from embodied_rl.policy import masked_steps
from embodied_rl.types import Observation
from tests.policies import act_models, oft_policies, pi0_models, ranked_policies

ROWS = 3
FAMILIES: dict[str, Callable[[], Any]] = {
    "openvla": ranked_policies.POLICIES["openvla"],
    "openvla_oft, tokens": lambda: oft_policies.policy(head="tokens"),
    "openvla_oft, l1": lambda: oft_policies.policy(head="l1"),
    "pi0": lambda: pi0_models.tiny_policy(flow=FlowSettings(loss_samples=2)),
    "pi0.5": ranked_policies.POLICIES["pi0.5"],
    "smolvla": ranked_policies.POLICIES["smolvla"],
    "act": act_models.tiny_policy,
    "mlp": lambda: MLPPolicy.fresh(MLPModelConfig(observation_dim=2, action_dim=2, chunk_len=3), seed=0),
}


def _demonstration(policy: Any) -> tuple[Observation, Tensor]:
    """Observations of a few rows and actions for them."""
    if isinstance(policy, MLPPolicy):
        images = torch.zeros(ROWS, 1, 2, 2, 3, dtype=torch.uint8)
        obs = Observation(images, torch.linspace(-1, 1, 2 * ROWS).view(ROWS, 2), [""] * ROWS)
    else:
        seen = ranked_policies._observe(policy)
        obs = Observation(seen.images[:ROWS], seen.proprio[:ROWS], seen.instruction[:ROWS])
    horizon = getattr(policy.config, "horizon", policy.chunk_len)
    actions = np.random.default_rng(1).uniform(-0.3, 0.3, (ROWS, horizon, policy.action_dim))
    return obs, torch.from_numpy(actions.astype(np.float32))


@pytest.mark.parametrize("name", FAMILIES)
def test_only_the_steps_of_the_mask_count(name: str) -> None:
    policy = FAMILIES[name]()
    policy.train(False)
    obs, actions = _demonstration(policy)

    def loss(mask: Tensor | None, of: Tensor = actions) -> Tensor:
        with torch.no_grad():
            return policy.sft_loss(obs.images, obs.proprio, obs.instruction, of, None, mask)

    steps = actions.shape[1]
    alone = torch.zeros(ROWS, steps)
    for row in range(ROWS):
        for step in range(steps):
            one = torch.zeros(ROWS, steps, dtype=torch.bool)
            one[row, step] = True
            alone[row, step] = loss(one)
    assert len(alone.unique()) == alone.numel()
    torch.testing.assert_close(loss(None), alone.mean())
    ragged = torch.arange(steps) < torch.tensor([[1], [2], [steps]])  # two rows end within their chunk
    torch.testing.assert_close(loss(ragged), alone[ragged].mean())
    if isinstance(policy, Pi0Policy):  # the steps that count see the others' noisy actions
        return
    other = torch.where(ragged[..., None], actions, -actions)
    torch.testing.assert_close(loss(ragged, other), loss(ragged), rtol=0, atol=0)
    assert loss(None, other) != loss(None)


def test_numbers_of_a_step_stand_together() -> None:
    numbers = torch.arange(12).view(2, 6)  # two rows, three steps of two numbers
    mask = torch.tensor([[True, False, False], [True, True, False]])
    assert masked_steps(numbers, mask).tolist() == [0, 1, 6, 7, 8, 9]
    assert masked_steps(numbers, None).tolist() == list(range(12))

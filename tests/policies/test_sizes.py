"""Policies of any robot: numbers of actions, states and cameras, units beyond 1, images of any shape."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from embodied_rl.factory.policies import FAMILIES
from embodied_rl.policies.family import FreshRequest
from embodied_rl.policies.preprocessing.fit import fit_image
from embodied_rl.policies.preprocessing.resize import bilinear_pillow, bilinear_pillow_padded
from embodied_rl.rng import DecisionRng
from embodied_rl.types import Observation

DATA = np.random.default_rng(0)


@pytest.mark.parametrize("kind", ["openvla", "openvla_oft", "pi0", "smolvla", "act"])
@pytest.mark.parametrize(("actions", "states", "cameras"), [(14, 14, 3), (6, 6, 1)])
def test_a_fresh_policy_acts_and_imitates_in_the_robots_own_units(
    kind: str, actions: int, states: int, cameras: int
) -> None:
    middle, reach = DATA.uniform(-90, 90, actions), DATA.uniform(5, 40, actions)
    action = (middle + reach * DATA.uniform(-1, 1, (200, actions))).astype(np.float32)
    request = FreshRequest(
        preset="nano",
        chunk_len=2,
        seed=0,
        instructions=["lift it"],
        state=DATA.normal(size=(200, states)).astype(np.float32),
        action=action,
        unit_actions=False,
        unnorm_key="mine",
        num_cameras=cameras,
        own_units=True,
    )
    policy = FAMILIES[kind].fresh(request)
    size, rows = policy.config.image_size, 2
    images = DATA.integers(0, 256, (rows, cameras, size, size, 3), dtype=np.uint8)
    obs = Observation.from_numpy(images, request.state[:rows], ["lift it"] * rows)
    acted = policy.act(obs, DecisionRng(np.arange(rows), np.arange(rows)), "greedy").actions.numpy()
    assert acted.shape == (rows, 2, actions)
    assert np.abs((acted - middle) / reach).max() < 20, "somewhere near the data"
    assert np.abs(acted).max() > 2, "not clipped"
    loss = policy.sft_loss(obs.images, obs.proprio, obs.instruction, torch.from_numpy(action[:4].reshape(2, 2, -1)))
    assert torch.isfinite(loss)
    low, high = policy.action_range
    if kind.startswith("openvla"):
        np.testing.assert_allclose(low, np.quantile(action, 0.01, axis=0), atol=1e-4)
        np.testing.assert_allclose(high, np.quantile(action, 0.99, axis=0), atol=1e-4)
        assert policy.statistics.mask.all(), "no gripper stays as it is"


def test_images_are_fitted_as_each_family_does() -> None:
    image = DATA.integers(1, 256, (48, 64, 3), dtype=np.uint8)
    np.testing.assert_array_equal(fit_image(image, 32, "stretch"), bilinear_pillow(image, 32))
    centred, low = fit_image(image, 32, "pad"), fit_image(image, 32, "pad_top_left")
    np.testing.assert_array_equal(centred, bilinear_pillow_padded(image, 32))
    assert (centred[:4] == 0).all()
    assert (centred[28:] == 0).all()
    assert (low[:8] == 0).all()
    np.testing.assert_array_equal(low[8:], centred[4:28])
    square = DATA.integers(0, 256, (32, 32, 3), dtype=np.uint8)
    for how in ("stretch", "pad", "pad_top_left"):
        np.testing.assert_array_equal(fit_image(square, 32, how), square)  # type: ignore[arg-type]

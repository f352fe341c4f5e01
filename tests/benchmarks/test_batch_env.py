"""MuJoCo's batch, as `bench sim` runs it, does the work of the environments that it is compared with."""

from __future__ import annotations

import numpy as np
import pytest

from embodied_rl.benchmarks.batch_env import BatchContender, BatchWorlds, has_batch
from embodied_rl.benchmarks.gym_envs import BindingsEnv
from embodied_rl.benchmarks.sim import SUITE, TASK

pytestmark = pytest.mark.skipif(not has_batch(), reason="this MuJoCo has no mujoco.batch")


def test_worlds_move_as_the_bindings_do() -> None:
    worlds, alone = BatchWorlds(SUITE, TASK, 2, None), BindingsEnv(SUITE, TASK, 64, False)
    alone.reset()
    rng = np.random.default_rng(0)
    for _ in range(4):
        actions = rng.uniform(-0.5, 0.5, (2, 7)).astype(np.float32)
        won = worlds.step(actions)
        assert won.tolist() == [alone.advance(actions[0]), False]
    qpos = worlds.batch.bind("qpos")
    assert np.abs(qpos[0] - alone.env.data.qpos).max() < 1e-6
    assert np.abs(qpos[1] - qpos[0]).max() > 1e-3


def test_every_world_is_drawn_and_its_steps_counted() -> None:
    contender = BatchContender(SUITE, TASK, 2, 16)
    assert contender.run(np.zeros((1, 2, 7), np.float32)) == 2
    images = contender._worlds.images
    assert images.any(axis=(1, 2, 3, 4)).all()

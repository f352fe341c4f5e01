"""The stand-in for the main peer's loop: the same learning as everybody's, and work for worlds that are done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from embodied_rl.benchmarks import pipeline_real
from embodied_rl.benchmarks.pipeline_peer import PPOWithMaskedRows, first_success
from embodied_rl.learner.learner import Learner
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.sim.mujoco.vec_env import MujocoVecEnv
from embodied_rl.types import ChunkResult, EvalOutput, RolloutBatch


@contextmanager
def watched(seen: dict[str, Any]) -> Iterator[None]:
    """Rows of forward and of backward passes, control steps, and the weights after the last update."""
    evaluate, update, step = OpenVLAPolicy.evaluate, Learner.update, MujocoVecEnv.step
    lock = threading.Lock()  # microbatches go side by side

    def add(name: str, more: int) -> None:
        with lock:
            seen[name] = seen.get(name, 0) + more

    def counted(self: OpenVLAPolicy, images: torch.Tensor, *rest: Any) -> EvalOutput:
        out = evaluate(self, images, *rest)
        add("rows", len(images))
        out.log_prob.register_hook(lambda gradient: add("backward", len(gradient)))
        return out

    def kept(self: Learner, batch: RolloutBatch) -> dict[str, float]:
        found = update(self, batch)
        seen["weights"] = {name: value.clone() for name, value in self.policy.state_dict().items()}
        return found

    def stepped(self: MujocoVecEnv, *what: Any) -> ChunkResult:
        result = step(self, *what)
        add("steps", int(result.steps_taken.sum()))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OpenVLAPolicy, "evaluate", counted)
        patch.setattr(Learner, "update", kept)
        patch.setattr(MujocoVecEnv, "step", stepped)
        yield


def test_it_learns_what_serial_learns_and_works_to_the_horizon() -> None:
    """Two waves of two worlds; their masked rows take part in forward and backward passes without a trace."""
    config = pipeline_real.real_config()
    config = replace(
        config,
        env=replace(config.env, num_envs=2),
        rollout=replace(config.rollout, episodes_per_iteration=4),
        learner=replace(config.learner, minibatch_groups=2),
        tasks=config.tasks[:1],
    )
    seen: dict[str, dict[str, Any]] = {"serial": {}, "peer": {}}
    decisions: dict[str, int] = {}
    for way in pipeline_real.WAYS:
        if way.name in seen:
            with watched(seen[way.name]), closing(pipeline_real.iterations(way, config)) as rows:
                decisions[way.name] = next(rows)["decisions"]
    serial, peer = seen["serial"], seen["peer"]
    assert decisions["serial"] == decisions["peer"] == serial["rows"]
    horizon, chunk = 150, 4
    assert peer["steps"] == 4 * horizon > serial["steps"]
    assert peer["rows"] == peer["backward"] == 4 * -(-horizon // chunk) > serial["rows"] == serial["backward"]
    for name, value in serial["weights"].items():
        torch.testing.assert_close(peer["weights"][name], value, atol=2e-5, rtol=0)


def test_a_chunk_that_went_on_counts_to_its_success() -> None:
    """What the simulator reports when it stops at success."""
    reward = np.array([[0, 1, 1, 0, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 1], [1, 0, 0, 0, 0]], np.float32)
    no, truncated = np.zeros(4, np.bool_), np.array([False, True, True, False])
    success, steps = np.array([True, False, True, True]), np.array([5, 3, 5, 5], np.int32)
    arrays = (reward, no, truncated, success, steps, no)
    found = first_success(ChunkResult(*(torch.from_numpy(array) for array in arrays)))
    assert found.reward.tolist() == [[0, 1, 0, 0, 0], [0] * 5, [0, 0, 0, 0, 1], [1, 0, 0, 0, 0]]
    assert found.steps_taken.tolist() == [2, 3, 5, 1]
    assert found.terminated.tolist() == [True, False, True, True]
    assert found.truncated.tolist() == truncated.tolist()


@pytest.mark.parametrize(("rows", "masked"), [(7, 0), (7, 3), (4, 9)])
def test_every_masked_row_is_taken_once(rows: int, masked: int) -> None:
    """In shares, whatever the microbatches."""
    config = pipeline_real.real_config().algorithm
    algorithm = PPOWithMaskedRows(config)  # type: ignore[arg-type]
    algorithm.next_batch(rows, range(masked) if masked else None)  # type: ignore[arg-type]
    taken = [index for part in (1, 2, rows - 3) for index in algorithm._take(part).tolist()]
    assert taken == list(range(masked))

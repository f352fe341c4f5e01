"""`serve --detector`: whose file it takes, and what it says of an observation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.evaluation.detector import Detector, save_detector
from embodied_rl.evaluation.features import Watcher
from embodied_rl.jobs.serve import open_detector
from embodied_rl.real_robot.server.observations import PolicySpec, Request
from embodied_rl.real_robot.server.served_detector import ServedDetector
from embodied_rl.real_robot.server.served_policy import black_request
from embodied_rl.training.filtered_bc import weights_digest
from embodied_rl.types import Observation
from tests.embodied_rl.watching import SummarisingPolicy, toy_detector
from tests.policies.test_openvla_policy import _policy
from tests.toy import INSTRUCTIONS
from tests.toy_world import ACTION_DIM, CHUNK, SIZE

SPEC = PolicySpec(cameras=1, image_size=SIZE, proprio_dim=2, chunk_len=CHUNK, action_dim=ACTION_DIM)
TASK = next(iter(INSTRUCTIONS.values()))


def request(instruction: str = TASK) -> Request:
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (1, SIZE, SIZE, 3), np.uint8)
    return Request(images, rng.random(2, np.float32), instruction, 0, 0)


def test_the_file_of_another_policy_is_refused_by_name(tmp_path: Path) -> None:
    policy, path = _policy(), tmp_path / "d.safetensors"
    save_detector(Detector("clock", weights_digest(policy), policy.chunk_len, {TASK: 4.0}), path)
    assert isinstance(open_detector(path, policy, "start"), ServedDetector)
    save_detector(Detector("clock", weights_digest(policy), policy.chunk_len + 1, {TASK: 4.0}), path)
    with pytest.raises(UserError, match="watches decisions of 3 control steps, and the policy makes them for 2"):
        open_detector(path, policy, "start")
    save_detector(Detector("clock", weights_digest(policy), policy.chunk_len, {TASK: 4.0}), path)
    with torch.no_grad():
        next(policy.parameters()).add_(1.0)
    with pytest.raises(UserError, match=r"was calibrated with another policy .* than runs/learned") as refused:
        open_detector(path, policy, "runs/learned")
    assert "\n" not in str(refused.value)


def test_an_observation_is_seen_as_training_sees_it() -> None:
    policy = SummarisingPolicy()
    detector, asked = toy_detector(policy, 7.0), request()
    seen = ServedDetector(detector, policy).see(asked)
    shown = Observation(torch.from_numpy(asked.images[None]), torch.from_numpy(asked.proprio[None]), [TASK])
    sight = Watcher(detector, policy).see(shown)
    assert sight.distance > 0
    numbers = {"distance": sight.distance, "to_go": sight.to_go, "limit": 7.0}
    assert seen == {"kind": "nearest", "chunk_len": detector.chunk_len, **numbers}


def test_what_it_cannot_judge_is_one_line() -> None:
    policy = SummarisingPolicy()
    served = ServedDetector(toy_detector(policy, 7.0), policy)
    said = served.see(request("throw\nthe mug"))
    assert isinstance(said, str)
    assert said.startswith("the detector was not calibrated for 'throw the mug', but for ")
    assert "\n" not in said
    with torch.no_grad():
        policy.body.weight.fill_(torch.nan)
    assert served.see(request()) == "the detector's numbers for this observation are not finite"
    policy.summarise = lambda *_: 1 / 0  # type: ignore[method-assign]
    broken = ServedDetector(toy_detector(SummarisingPolicy(), 7.0), policy)
    assert broken.see(request()) == "the detector failed on this observation: ZeroDivisionError: division by zero"
    with pytest.raises(UserError, match="ZeroDivisionError"):
        broken.warm_up(SPEC)


def test_a_clock_sees_nothing() -> None:
    served = ServedDetector(Detector("clock", "abc", 2, {TASK: 4.0}), _policy())
    numbers = {"distance": 0.0, "to_go": 0.0, "limit": 4.0}
    assert served.see(black_request(SPEC, TASK)) == {"kind": "clock", "chunk_len": 2, **numbers}

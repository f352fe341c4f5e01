"""What `train` says before it begins."""

from __future__ import annotations

from dataclasses import replace

import pytest

from embodied_rl.algorithms.config import GRPOConfig, PPOConfig
from embodied_rl.config.train import TrainConfig
from embodied_rl.jobs.train import notices


@pytest.mark.parametrize(
    ("warm_up", "iterations", "said"),
    [
        (PPOConfig(critic_warmup_iterations=2), 3, ""),
        (PPOConfig(critic_warmup_iterations=2), 2, "The policy stays as it is: the critic learns alone for 2 updates"),
        (GRPOConfig(), 1, ""),
    ],
)
def test_a_run_in_which_the_policy_will_not_learn_says_so(
    warm_up: PPOConfig | GRPOConfig, iterations: int, said: str
) -> None:
    lines = notices(replace(TrainConfig(), algorithm=warm_up, iterations=iterations), "tabletop")
    assert [said in line for line in lines] == [True] * bool(said)

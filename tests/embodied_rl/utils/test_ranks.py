"""What launchers say in the environment, and how ranks share things out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from embodied_rl.config.env import MujocoConfig
from embodied_rl.config.train import TrainConfig, from_dict
from embodied_rl.errors import UserError
from embodied_rl.factory.run_config import envs_of_rank
from embodied_rl.jobs.ranks import broadcast_run
from embodied_rl.learner.distributed.collectives import SINGLE_PROCESS
from embodied_rl.utils.ranks import ProcessRank


@given(st.integers(0, 50), st.integers(1, 9))
def test_shares_add_up_and_differ_by_one(total: int, size: int) -> None:
    shares = [ProcessRank(rank, size).share(total) for rank in range(size)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


def test_a_rank_has_its_share_of_envs_and_of_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": 5, "WORLD_SIZE": 6, "LOCAL_RANK": 1, "LOCAL_WORLD_SIZE": 2}.items():
        monkeypatch.setenv(name, str(value))
    assert ProcessRank.from_env() == ProcessRank(5, 6, 1, 2, launched=True)
    found = envs_of_rank(MujocoConfig(num_envs=16, num_threads=8))
    assert (found.num_envs, found.threads) == (2, 4)
    with pytest.raises(UserError, match=r"--env.num-envs 5 is too few for 6 ranks"):
        envs_of_rank(MujocoConfig(num_envs=5))


def test_a_program_that_nothing_started_as_ranks_is_told_how(tmp_path: Path) -> None:
    config = from_dict({"output": str(tmp_path), "learner": {"num_processes": 2}}, TrainConfig())
    with pytest.raises(UserError, match=r"start your program with torchrun --nproc-per-node 2"):
        broadcast_run(config, None, SINGLE_PROCESS)

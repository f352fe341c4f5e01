"""Rollout workers on two Ray nodes of one machine: the serial run's batches and weights, also if a node is killed."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from embodied_rl.errors import UserError
from embodied_rl.learner.distributed.join import joined
from embodied_rl.rollout.retries import FailureCause
from embodied_rl.scheduler.config import RayConfig
from embodied_rl.scheduler.ray.cluster import Shared, connect, shared_cluster
from embodied_rl.scheduler.ray.worker import RolloutWorker
from embodied_rl.types import RolloutBatch
from tests.embodied_rl.ranks import others, place
from tests.embodied_rl.scheduler.far import DyingFactory, LostFactory, MortalFactory, ToyFactory
from tests.embodied_rl.scheduler.over_ray import Witness, assert_same_run, train
from tests.embodied_rl.scheduler.toys import GRPO, KEEPING, NanPolicy, Setup, SlowEnv, serial
from tests.toy import ToyPolicy

ROOT = Path(__file__).parents[3]
SETUP = Setup(GRPO, iterations=3)


def join(address: str) -> None:
    """Connect this process to the cluster."""
    import ray

    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ray.init(address=address, log_to_driver=False, configure_logging=False, runtime_env={"env_vars": environment})


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a core each."""
    if os.environ.get("CI") != "true":
        pytest.importorskip("ray")
    import ray
    from ray.cluster_utils import Cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 80 << 20})
    nodes.add_node(num_cpus=1, object_store_memory=80 << 20)
    assert nodes.address is not None
    join(nodes.address)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.mark.process
def test_two_nodes_give_the_serial_run(cluster: Any, tmp_path: Path) -> None:
    far = train(SETUP, tmp_path, ToyFactory())
    near = serial(SETUP, tmp_path)
    assert_same_run(far, near)
    assert sorted(far.episodes) == sorted(near.episodes)
    assert far.states[-1]["next_group"] == near.sampler.position


@pytest.mark.process
def test_groups_without_contrast_are_dropped_as_in_the_serial_run(cluster: Any, tmp_path: Path) -> None:
    setup = Setup(replace(KEEPING, success_rate_range=(0.2, 0.8)), groups=3, iterations=2)
    far, near = train(setup, tmp_path, ToyFactory()), serial(setup, tmp_path)
    assert_same_run(far, near)
    assert any(batch.info["rollout/filtered_groups"] for batch in far.batches)
    assert any(len(batch) for batch in far.batches)


@pytest.mark.process
def test_simulators_that_break_far_away_lose_nothing(cluster: Any, tmp_path: Path) -> None:
    """On each worker the first run of these episodes breaks, in its second chunk."""
    far = train(SETUP, tmp_path, ToyFactory(breaks=dict.fromkeys(range(8), 1)))
    ledger = far.sampler.counts
    assert ledger.requeued >= 1
    assert (ledger.issued, len(ledger.outstanding)) == (ledger.finished, 0)
    assert sorted(far.episodes) == list(range(3 * 20))


@pytest.mark.process
def test_a_node_killed_in_mid_run_is_replaced(cluster: Any, tmp_path: Path) -> None:
    """Its episodes run again with the newest weights; nothing is lost, nothing counts twice."""
    node = next(node for node in cluster.list_all_nodes() if not node.head)

    def kill() -> None:
        cluster.remove_node(node, allow_graceful=False)
        cluster.add_node(num_cpus=1, object_store_memory=80 << 20)

    far = train(SETUP, tmp_path, ToyFactory(seconds=0.05), at={25: kill})
    near = serial(SETUP, tmp_path)
    assert_same_run(far, near)
    assert far.batches[-1].info["rollout/workers_replaced"] >= 1
    assert far.sampler.counts.requeued >= 1


def other_rank(rank: int, size: int, address: str, alive: str, folder: Path) -> None:
    """What rank 0 does in the test below, in a process of its own."""
    torch.set_num_threads(1)
    join(address)
    with joined(place(rank, size)) as ranks:
        train(SETUP, folder, MortalFactory(alive=alive), ranks=ranks)


@pytest.mark.process
def test_two_ranks_with_a_worker_each_give_the_serial_run_though_one_is_killed(cluster: Any, tmp_path: Path) -> None:
    alive = tmp_path / "alive"
    alive.touch()
    arguments = (cluster.address, str(alive), tmp_path)
    with others(2, other_rank, *arguments), joined(place(0, 2)) as ranks:
        far = train(SETUP, tmp_path, MortalFactory(alive=str(alive)), ranks=ranks)
    near = serial(SETUP, tmp_path)
    assert not alive.exists()
    assert far.batches[-1].info["rollout/workers_replaced"] == 1
    assert sorted(far.episodes) == sorted(near.episodes)
    for one, two in zip(far.batches, near.batches, strict=True):
        assert one.episodes == two.episodes
        torch.testing.assert_close(one.log_prob, two.log_prob, rtol=0, atol=1e-6)
        assert torch.equal(one.reward, two.reward)
    for name, tensor in near.weights.items():
        torch.testing.assert_close(far.weights[name], tensor, rtol=0, atol=1e-6, msg=name)


@pytest.mark.process
def test_what_a_worker_cannot_open_ends_the_run_with_its_words(cluster: Any, tmp_path: Path) -> None:
    """Not a replacement for ever: it would happen again."""
    with pytest.raises(UserError, match=r"could not open its envs and policy: no checkpoint at /nowhere.*same place"):
        train(SETUP, tmp_path, LostFactory())


@pytest.mark.process
def test_workers_that_are_lost_again_and_again_end_the_run(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embodied_rl.scheduler.ray.pool._MAX_LOST", 1)
    with pytest.raises(UserError, match=r"3 Ray workers in a row were lost"):
        train(SETUP, tmp_path, DyingFactory())


@pytest.mark.process
def test_rows_are_of_the_weights_that_they_name_and_never_too_old(cluster: Any, tmp_path: Path) -> None:
    """The next rollout runs during an update, two updates ahead at most."""
    witness = Witness(most=2)

    def look(batch: RolloutBatch, policy: ToyPolicy) -> None:
        witness(batch, policy)
        time.sleep(0.5)

    setup = Setup(GRPO, groups=3, iterations=5)
    far = train(setup, tmp_path, ToyFactory(seconds=0.01), RayConfig(workers=2, max_staleness=2), look=look)
    assert max(witness.worst) >= 1
    assert sorted(far.episodes) == list(range(5 * 12))


@pytest.mark.process
def test_more_workers_than_the_cluster_can_place_are_refused(cluster: Any) -> None:
    with pytest.raises(UserError, match=r"9 workers .* need 9 CPUs, and the Ray cluster has \d"):
        connect(RayConfig(workers=9))
    with pytest.raises(UserError, match=r"need 2 GPUs, and the Ray cluster has 0"):
        connect(RayConfig(workers=2, gpus_per_worker=1))


def test_a_rank_on_another_machine_than_the_one_that_started_ray_is_told_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    told = Shared("127.0.0.1:1", None, port)
    with pytest.raises(UserError, match=r"give --scheduler\.address auto"), shared_cluster(RayConfig(), told):
        pass


def test_a_worker_says_which_episodes_were_lost_and_why() -> None:
    """Without Ray: three broke their simulator or were given a NaN, the others ran."""
    worker = RolloutWorker(lambda: (SlowEnv(4, breaks={2: 1}), NanPolicy()), final_value=False)
    sampler, _ = Setup(GRPO).parts(ToyPolicy(), Path())
    specs = sampler.next_group() + sampler.next_group()
    turns = [worker.advance(specs)]
    while sum(len(ran.episodes) + len(ran.failed) for ran in turns) < len(specs):
        turns.append(worker.advance([]))
    lost = {spec.episode_id: cause for ran in turns for spec, cause in ran.failed}
    assert lost == {1: FailureCause.POLICY, 2: FailureCause.SIMULATOR, 6: FailureCause.POLICY}
    assert {piece.episodes[0].spec.episode_id for ran in turns for piece in ran.episodes} == {0, 3, 4, 5, 7}

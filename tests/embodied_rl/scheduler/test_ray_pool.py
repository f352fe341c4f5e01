"""Workers and who feeds them, without Ray: in this process, lost and late as the tests say."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from embodied_rl.errors import UserError
from embodied_rl.rollout.sampler import EpisodeSampler
from embodied_rl.scheduler.config import RayConfig
from embodied_rl.scheduler.ray.weight_sync import WeightDeltaEncoder
from embodied_rl.scheduler.ray.worker import RolloutWorker
from embodied_rl.types import RolloutBatch
from tests.embodied_rl.scheduler.far import ToyFactory
from tests.embodied_rl.scheduler.over_ray import Actor, FakeRay, LostError, Ref, Witness, assert_same_run, train
from tests.embodied_rl.scheduler.toys import GRPO, KEEPING, Setup, SlowEnv, assert_same_rows, serial
from tests.toy import TASKS, ToyPolicy

SETUP = Setup(GRPO, iterations=3)
PATIENCE = 900.0


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr("embodied_rl.scheduler.ray.scheduler.connect", lambda config: fake)
    return fake


def asked(actor: Actor, name: str) -> int:
    return sum(call == name for call, _ in actor.calls)


@pytest.mark.parametrize("turn", [0.0, math.inf])
def test_the_serial_run_whatever_the_turns(
    ray: FakeRay, turn: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embodied_rl.scheduler.ray.worker.TURN_SECONDS", turn)
    assert_same_run(train(SETUP, tmp_path, ToyFactory()), serial(SETUP, tmp_path))


def test_episodes_of_filtered_groups_that_wait_at_a_worker_are_run_too(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second worker comes up later: its first episode still runs when one at the first worker fails the group, and
    without the rest of it the rollout's success would be another than in the serial run."""
    monkeypatch.setattr("embodied_rl.scheduler.ray.worker.TURN_SECONDS", 0.0)
    late = Ref(value=1, there=False)

    def fate(actor: Actor, name: str) -> Ref | None:
        late.there = late.there or (actor.number == 0 and asked(actor, "advance") == 3)
        return late if actor.number == 1 and name == "num_envs" else None

    ray.fate = fate
    setup = Setup(replace(KEEPING, group_size=8, success_rate_range=(0.9, 1.0)), groups=2)
    far = train(setup, tmp_path, ToyFactory(env_ids=1))
    assert_same_run(far, serial(setup, tmp_path))
    sent = [spec for actor in ray.actors for name, args in actor.calls if name == "advance" for spec in args[0]]
    assert len(sent) == len(far.episodes)
    assert sum(batch.info["rollout/filtered_groups"] for batch in far.batches) > 0


def test_a_worker_that_is_never_placed_holds_nothing_up(ray: FakeRay, tmp_path: Path) -> None:
    """One of two nodes is lost, and no other has room for its replacement."""

    def fate(actor: Actor, name: str) -> Ref | None:
        if actor.number == 0 and asked(actor, "advance") > 2:
            return Ref(error=LostError("node lost"))
        return Ref(there=False) if actor.number == 2 else None

    ray.fate = fate
    far = train(SETUP, tmp_path, ToyFactory())
    assert_same_run(far, serial(SETUP, tmp_path))
    assert far.sampler.counts.requeued >= 1
    assert [name for name, _ in ray.actors[2].calls] == ["num_envs"]  # no weights either, which would pile up


def test_a_worker_lost_is_no_attempt_of_its_episodes(ray: FakeRay, tmp_path: Path) -> None:
    """More of them than an episode has attempts; who breaks nothing keeps its seed."""
    ray.fate = lambda actor, name: Ref(error=LostError()) if actor.number < 9 and name == "advance" else None
    far = train(SETUP, tmp_path, ToyFactory())
    assert_same_run(far, serial(SETUP, tmp_path))
    assert far.batches[-1].info["rollout/workers_replaced"] == 9


def test_a_worker_that_hangs_is_replaced_and_keeps_nobody_waiting(ray: FakeRay, tmp_path: Path) -> None:
    ray.fate = lambda actor, name: Ref(there=False) if actor.number == 0 and name == "advance" else None
    far = train(SETUP, tmp_path, ToyFactory(), RayConfig(workers=2, deadline_s=1.0))
    assert_same_run(far, serial(SETUP, tmp_path))
    assert far.batches[0].info["rollout/workers_replaced"] == 1


def test_a_worker_that_hangs_while_it_opens_is_started_anew(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The deadline passes while the other one is at its third turn."""
    now = [0.0]
    monkeypatch.setattr("embodied_rl.scheduler.ray.pool.time", SimpleNamespace(monotonic=lambda: now[0]))

    def fate(actor: Actor, name: str) -> Ref | None:
        if actor.number == 0 and name == "advance" and asked(actor, name) == 3:
            now[0] += 1.5 * RayConfig().deadline_s
        return Ref(there=False) if actor.number == 1 and name == "num_envs" else None

    ray.fate = fate
    far = train(SETUP, tmp_path, ToyFactory())
    assert_same_run(far, serial(SETUP, tmp_path))
    assert [name for name, _ in ray.actors[1].calls] == ["num_envs"]
    assert asked(ray.actors[2], "advance") > 0
    assert far.batches[-1].info["rollout/workers_replaced"] == 0  # it held nothing


def test_a_run_without_workers_says_what_it_waits_for_and_ends(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embodied_rl.scheduler.ray.pool._PATIENCE", 0.1)
    ray.fate = lambda actor, name: Ref(there=False)
    said: list[str] = []
    with pytest.raises(UserError, match=r"none of 2 Ray workers was placed and opened within .*ray status"):
        train(SETUP, tmp_path, ToyFactory(), RayConfig(workers=2, deadline_s=0.6), say=said.append)
    (line,) = said
    assert line.startswith("waiting for Ray: none of 2 workers")


def test_a_cluster_without_a_node_is_not_waited_for(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one node dies with its workers; the deadline is an hour off."""
    monkeypatch.setattr("embodied_rl.scheduler.ray.pool._PATIENCE", 0.1)

    def fate(actor: Actor, name: str) -> Ref | None:
        if actor.number > 1:
            return Ref(there=False)
        if asked(actor, "advance") > 1:
            ray.alive = False
        return None if ray.alive else Ref(error=LostError("node lost"))

    ray.fate = fate
    with pytest.raises(UserError, match="the Ray cluster has no node left"):
        train(SETUP, tmp_path, ToyFactory(), RayConfig(workers=2, deadline_s=3600))


def test_weights_may_change_within_an_episode_and_its_rows_say_so(
    ray: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embodied_rl.scheduler.ray.worker.TURN_SECONDS", 0.0)
    witness = Witness(most=1)
    factory = ToyFactory(env_ids=1, seconds=0.004)  # a batch takes far longer than an update
    far = train(Setup(GRPO, groups=3, iterations=4), tmp_path, factory, RayConfig(max_staleness=1), look=witness)
    assert max(witness.worst) == 1
    assert witness.mixed
    assert sorted(far.episodes) == list(range(4 * 12))


@pytest.mark.parametrize("worth", [0.5, 0.8])
def test_after_a_batch_that_was_too_stale_the_next_rollout_waits(ray: FakeRay, tmp_path: Path, worth: float) -> None:
    """Batch 0 was worth `worth`: whether batch 2 begins in the update on batch 1 depends on that."""
    begun: list[int] = []
    expected = [1, 1 if worth < 0.8 else 2, 3, 3]

    def furthest() -> int:
        specs = [spec for actor in ray.actors for name, args in actor.calls if name == "advance" for spec in args[0]]
        return max(spec.group // 2 for spec in specs)

    def look(batch: RolloutBatch, policy: ToyPolicy) -> None:
        end = time.monotonic() + PATIENCE
        while furthest() < expected[batch.version]:
            assert time.monotonic() < end, "the next rollout does not begin"
            time.sleep(0.005)
        time.sleep(0.2)  # one too many would begin now
        begun.append(furthest())

    values = iter([worth])
    train(
        Setup(GRPO, groups=2, iterations=4),
        tmp_path,
        ToyFactory(),
        RayConfig(max_staleness=1),
        look=look,
        ess=lambda: next(values, 1.0),
    )
    assert begun == expected


def test_a_worker_runs_with_the_weights_that_it_was_sent_last() -> None:
    policy = ToyPolicy()
    specs = EpisodeSampler(5, TASKS, 4).next_group()
    found = []
    for version in (7, 0):
        worker = RolloutWorker(ToyFactory(), final_value=False)
        worker.load_weights(version, *WeightDeltaEncoder(policy).full_state())
        assert worker.num_envs() == 4
        pieces = worker.advance(specs).episodes
        while len(pieces) < 4:
            pieces += worker.advance([]).episodes
        for piece in pieces:
            assert piece.row_version is not None
            assert piece.version == version
            assert piece.row_version.tolist() == [version] * len(piece)
            piece.version = 0
        found.append(sorted(pieces, key=lambda piece: piece.episodes[0].spec.episode_id))
    for one, two in zip(*found, strict=True):
        assert_same_rows(one, two)


def test_slots_are_filled_while_episodes_wait_and_unwanted_ones_never_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    env = SlowEnv(4)
    worker = RolloutWorker(lambda: (env, ToyPolicy()), final_value=False)
    specs = EpisodeSampler(5, TASKS, 12).next_group()
    monkeypatch.setattr("embodied_rl.scheduler.ray.worker.TURN_SECONDS", 0.0)
    ran = worker.advance(specs[:3], unwanted=[0, 9])
    assert [spec.episode_id for spec in ran.skipped] == [0]
    assert ran.episodes == []  # the turn was over
    monkeypatch.setattr("embodied_rl.scheduler.ray.worker.TURN_SECONDS", math.inf)
    ran = worker.advance(specs[3:], unwanted=[0, 9])
    assert [spec.episode_id for spec in ran.skipped] == [9]
    assert [spec.episode_id for spec in env.started] == [1, 2, 3, 4]
    ended = ran.episodes
    assert sorted(piece.episodes[0].spec.episode_id for piece in ended) == [1, 2]  # they began before the others
    while len(ended) < 10:
        before = len(ended)
        ended += worker.advance([]).episodes
        assert len(env.started) == min(10, before + 4)
    assert worker.advance([]).episodes == []

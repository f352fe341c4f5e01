"""Rounds of episodes, then imitation of demonstrations and own successes: what is learned from, exact resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from embodied_rl.algorithms.config import ImitateConfig
from embodied_rl.data.episodes import EpisodeStore, open_store
from embodied_rl.data.lerobot import Demonstrations
from embodied_rl.errors import UserError
from embodied_rl.evaluation.config import EvalConfig
from embodied_rl.learner.config import CheckpointConfig
from embodied_rl.learner.imitation import Imitation
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.training import filtered_bc
from embodied_rl.training.filtered_bc import STORE, open_run_store, own_successes, rate, weights_digest
from embodied_rl.training.on_policy import train
from embodied_rl.training.settings import RunOptions, TaskSplit, TrainOutcome
from tests.embodied_rl.toy_run import JsonObserver, files_of, newest, settings_of
from tests.embodied_rl.training.killed import killed
from tests.toy import CHUNK, HELDOUT, TASKS, ToyEnv, ToyPolicy
from tests.toy_demos import demonstrations, toy_demos

ROUND = 12


def run(
    folder: Path,
    *,
    rounds: int = 3,
    envs: int = 5,
    resume: bool = False,
    digest: str = "abc",
    env: ToyEnv | None = None,
    **options: float,
) -> tuple[TrainOutcome, ToyPolicy]:
    torch.set_num_threads(1)
    config = ImitateConfig(**({"steps": 15} | options))  # type: ignore[arg-type]
    settings = replace(
        settings_of(config, rounds, lr=1e-2),
        imitation=Imitation(toy_demos(1.0, digest=digest), config, seed=3),
        rollout=RolloutConfig(episodes_per_iteration=ROUND),
        evaluation=EvalConfig(every=0, states_per_task=6, mode="sample"),
        checkpoint=CheckpointConfig(every=1),
    )
    policy = ToyPolicy(with_value=False)
    outcome = train(
        folder,
        env or ToyEnv(envs),
        policy,
        files_of(policy),
        settings,
        TaskSplit(TASKS, HELDOUT),
        JsonObserver(folder / "metrics.jsonl"),
        RunOptions(resume=newest(folder) if resume else None, resume_command="toy --resume"),
    )
    return outcome, policy


def weights(folder: Path, rounds: int = 3) -> dict[str, torch.Tensor]:
    return load_file(folder / f"checkpoints/iter-{rounds:06d}/policy/model.safetensors")


def assert_same_weights(one: Path, two: Path) -> None:
    first, second = weights(one), weights(two)
    assert all(torch.equal(first[name], second[name]) for name in first)


def assert_same(one: Path, two: Path) -> None:
    assert_same_weights(one, two)
    assert (one / "metrics.jsonl").read_text() == (two / "metrics.jsonl").read_text()


def test_success_rises_and_every_episode_is_on_disk(tmp_path: Path) -> None:
    outcome, policy = run(tmp_path, rounds=4, steps=150)
    assert outcome.after.overall.rate > outcome.before.overall.rate + 0.3
    store = open_store(tmp_path / STORE)
    assert store.keys() == list(range(4 * ROUND))
    infos = [store.info(key) for key in store.keys()]  # noqa: SIM118
    assert {info.success for info in infos} == {0, 1}
    assert [info.success for info in infos] == [info.ends_in_success for info in infos]
    assert len({info.policy for info in infos}) == 4
    assert infos[0].policy == weights_digest(ToyPolicy(with_value=False)) != infos[-1].policy != weights_digest(policy)


def test_the_number_of_envs_changes_nothing(tmp_path: Path) -> None:
    run(tmp_path / "few", envs=2)
    run(tmp_path / "many", envs=12)
    assert_same(tmp_path / "few", tmp_path / "many")


def test_the_order_of_arrival_does_matter_to_a_broken_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above must see: episodes that are read as they came, not by key."""
    run(tmp_path / "few", envs=2, steps=60)

    arrived: list[int] = []
    add = EpisodeStore.add

    def noted(store: EpisodeStore, episode: object, *rest: object) -> bool:
        arrived.append(episode.key)  # type: ignore[attr-defined]
        return add(store, episode, *rest)  # type: ignore[arg-type]

    def read_as_they_came(store: EpisodeStore, count: int) -> Demonstrations:
        parts = [store._read([key]) for key in arrived[:count]]
        return replace(
            parts[0],
            images=np.concatenate([part.images[:] for part in parts]),
            state=np.concatenate([part.state for part in parts]),
            action=np.concatenate([part.action for part in parts]),
            pushed=np.concatenate([part.pushed for part in parts]),
            starts=np.concatenate([[0], np.cumsum([len(part.state) for part in parts])]),
            success=np.concatenate([part.success for part in parts]),
            instruction=[word for part in parts for word in part.instruction],
            columns=None,  # type: ignore[arg-type]
        )

    monkeypatch.setattr(EpisodeStore, "add", noted)
    monkeypatch.setattr(EpisodeStore, "at", read_as_they_came)
    run(tmp_path / "many", envs=5, steps=60)
    assert arrived != sorted(arrived)
    with pytest.raises(AssertionError):
        assert_same(tmp_path / "few", tmp_path / "many")


@pytest.mark.parametrize("kept", [0, 5, ROUND])
def test_a_round_that_was_cut_goes_on_with_what_is_stored(tmp_path: Path, kept: int) -> None:
    """Killed with so many episodes of the third round stored: these are not run again, and all is as undisturbed."""
    run(tmp_path / "whole")
    run(tmp_path / "cut", rounds=2)
    for key in range(2 * ROUND, 2 * ROUND + kept):
        for path in (tmp_path / "whole" / STORE / "episodes").glob(f"{key:06d}.*"):
            (tmp_path / "cut" / STORE / "episodes" / path.name).write_bytes(path.read_bytes())
    position = (tmp_path / "cut/metrics.jsonl").read_text()
    (tmp_path / "cut/metrics.jsonl").write_text("".join(position.splitlines(keepends=True)[:-1]))  # its last evaluation
    env = ToyEnv(5)
    run(tmp_path / "cut", resume=True, env=env)
    assert sum(spec.init_state < 16 for spec in env.started) == ROUND - kept  # others are held-out states
    assert_same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.process
@pytest.mark.parametrize(
    ("owner", "name", "count"),
    [
        ("embodied_rl.training.filtered_bc:EpisodeStore", "add", 3),
        ("embodied_rl.training.filtered_bc:EpisodeStore", "add", 2 * ROUND + 4),
        ("embodied_rl.training.filtered_bc:FilteredBC", "_step", 20),
    ],
)
def test_killed_anywhere_and_resumed_equals_run_to_the_end(tmp_path: Path, owner: str, name: str, count: int) -> None:
    run(tmp_path / "whole")
    killed(__name__, tmp_path / "killed", owner, name, count)
    run(tmp_path / "killed", resume=True)
    assert_same(tmp_path / "whole", tmp_path / "killed")


def test_a_run_goes_on_for_longer_as_if_it_had_been_asked_for_at_first(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    run(tmp_path / "longer", rounds=1)
    run(tmp_path / "longer", rounds=3, resume=True)
    assert_same_weights(tmp_path / "whole", tmp_path / "longer")


def test_stale_episodes_of_other_weights_give_way(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    run(tmp_path / "other", rounds=2, demo_share=1.0)
    run(tmp_path / "mine", rounds=1)
    for path in (tmp_path / "other" / STORE / "episodes").iterdir():
        if int(path.name[:6]) >= ROUND:
            (tmp_path / "mine" / STORE / "episodes" / path.name).write_bytes(path.read_bytes())
    run(tmp_path / "mine", resume=True)
    assert_same_weights(tmp_path / "whole", tmp_path / "mine")


def test_other_demonstrations_are_refused_in_one_line(tmp_path: Path) -> None:
    run(tmp_path, rounds=1)
    with pytest.raises(UserError, match="another demonstrations"):
        run(tmp_path, resume=True, digest="def")


def test_an_episode_that_breaks_the_simulator_is_left_out(tmp_path: Path) -> None:
    broken = [("toy/reach", 2)]
    run(tmp_path, env=ToyEnv(5, broken=broken))
    store = open_store(tmp_path / STORE)
    assert 0 < 3 * ROUND - len(store.keys()) <= 2
    assert ("toy/reach", 2) not in {(store.info(key).task, store.info(key).init_state) for key in store.keys()}  # noqa: SIM118


def test_only_successes_are_imitated_and_of_helped_ones_the_persons_frames() -> None:
    data = demonstrations(range(3), ["toy/reach"])
    human = np.zeros(len(data.state), bool)
    human[data.starts[0] + 2 : data.starts[1]] = True
    data.columns.human = human
    rows = own_successes(data, CHUNK).rows
    assert data.success.tolist() == [True, False, True]
    expected = [*range(data.starts[0] + 2, data.starts[1]), *range(data.starts[2], data.starts[3])]
    assert rows.tolist() == expected


def test_first_successes_are_no_larger_a_share_than_demonstrations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    known = filtered_bc.FilteredBC._mixture

    def noted(learner: filtered_bc.FilteredBC, own: object) -> object:
        mixture, share = known(learner, own)  # type: ignore[arg-type]
        frames = [len(part.samples) for part in mixture.parts]
        seen.append(share)
        assert sum(part.weight for part in mixture.parts) == pytest.approx(1.0)
        assert share <= 0.5
        assert share <= frames[-1] / sum(frames) + 1e-9
        return mixture, share

    monkeypatch.setattr(filtered_bc.FilteredBC, "_mixture", noted)
    run(tmp_path, steps=40)
    assert len(seen) == 3


def test_the_store_is_of_what_the_simulator_shows(tmp_path: Path) -> None:
    info, demos = ToyEnv(1).info, toy_demos(1.0)
    spec = open_run_store(tmp_path / "wide", replace(info, image_shape=(4, 6)), demos).spec
    assert (spec.image_shape, spec.state_names, spec.fps) == ((4, 6), ("state_0", "state_1"), 20)
    with pytest.raises(UserError, match="a whole number of control steps a second: suite 'toy' has"):
        open_run_store(tmp_path / "slow", replace(info, control_hz=12.5), demos)


def test_the_rate_rises_and_falls_within_a_round() -> None:
    rates = [rate(step, 400) for step in range(400)]
    assert rates[0] == pytest.approx(0.02, rel=0.01)
    assert max(rates) > 0.95
    assert rates[-1] < 0.06
    assert rate(0, 1) == 1.0

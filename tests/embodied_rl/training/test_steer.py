"""Rounds of episodes, then a chunk critic: what it learns from, what the policy is asked, exact resume."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from embodied_rl.algorithms.config import SteerConfig
from embodied_rl.data.episodes import EpisodeStore, open_store
from embodied_rl.data.lerobot import Demonstrations
from embodied_rl.errors import UserError
from embodied_rl.evaluation.config import EvalConfig
from embodied_rl.learner.config import CheckpointConfig
from embodied_rl.learner.imitation import Imitation
from embodied_rl.policies.steering import CANDIDATES, CHOSEN, SUMMARY, need_proposals
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.sim.wrappers.takeover import TakeoverRule
from embodied_rl.training import steer
from embodied_rl.training.chunk_critic import Decisions
from embodied_rl.training.filtered_bc import STORE
from embodied_rl.training.on_policy import train
from embodied_rl.training.settings import RunOptions, TaskSplit, TrainOutcome
from tests.embodied_rl.rollout.test_help import with_expert
from tests.embodied_rl.toy_run import JsonObserver, newest, settings_of
from tests.embodied_rl.training.killed import killed
from tests.toy import CHUNK, HELDOUT, TASKS, ToyEnv, ToyPolicy
from tests.toy_demos import demonstrations, toy_demos
from tests.toy_steered import SteeredToy, steered_files

ROUND, ROUNDS = 6, 2


def run(
    folder: Path,
    *,
    rounds: int = ROUNDS,
    envs: int = 5,
    resume: bool = False,
    env: ToyEnv | None = None,
    **options: float,
) -> tuple[TrainOutcome, SteeredToy]:
    torch.set_num_threads(1)
    imitates = {"steps": 5} if options.get("imitate", True) else {}
    config = SteerConfig(**(imitates | {"candidates": 4, "critic_steps": 8} | options))  # type: ignore[arg-type]
    settings = replace(
        settings_of(config, rounds, lr=1e-2),
        imitation=Imitation(toy_demos(1.0), config, seed=3),
        rollout=RolloutConfig(episodes_per_iteration=ROUND),
        evaluation=EvalConfig(every=0, states_per_task=1, mode="sample"),
        checkpoint=CheckpointConfig(every=1),
    )
    policy = SteeredToy()
    outcome = train(
        folder,
        env or ToyEnv(envs),
        policy,
        steered_files(policy),
        settings,
        TaskSplit(TASKS, HELDOUT),
        JsonObserver(folder / "metrics.jsonl"),
        RunOptions(resume=newest(folder) if resume else None, resume_command="toy --resume"),
    )
    return outcome, policy


def end(folder: Path, rounds: int = ROUNDS) -> dict[str, torch.Tensor]:
    """Weights of policy and critic."""
    saved = folder / f"checkpoints/iter-{rounds:06d}/policy"
    return load_file(saved / "model.safetensors") | load_file(saved / "steering.safetensors")


def assert_same(one: Path, two: Path) -> None:
    first, second = end(one), end(two)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    assert (one / "metrics.jsonl").read_text() == (two / "metrics.jsonl").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder)
    return folder


def test_every_decision_is_kept_with_what_it_was_chosen_from(tmp_path: Path) -> None:
    _, policy = run(tmp_path, imitate=False)
    store = open_store(tmp_path / STORE)
    assert store.keys() == list(range(ROUNDS * ROUND))
    chosen = []
    for key in store.keys():  # noqa: SIM118
        kept, data = store.arrays(key), store._read([key])
        first = np.flatnonzero(np.diff(data.columns.decision, prepend=-1))
        assert len(kept[CHOSEN]) == len(first) == store.info(key).decisions
        assert kept[CANDIDATES].shape == (len(first), 4, CHUNK, 2)
        asked = kept[CANDIDATES][np.arange(len(first)), kept[CHOSEN]]
        np.testing.assert_array_equal(asked[:, 0], data.action[first])
        seen = torch.from_numpy(data.images[first]), torch.from_numpy(data.state[first])
        words = [data.instruction[row] for row in first]
        np.testing.assert_array_equal(policy.summarise(*seen, words).numpy(), kept[SUMMARY])  # it stays as it is
        chosen.append(set(kept[CHOSEN].tolist()))
    assert set().union(*chosen[:ROUND]) == {0}  # without a critic the policy's own
    assert len(set().union(*chosen[ROUND:])) > 1


def test_the_number_of_envs_changes_nothing(tmp_path: Path, whole: Path) -> None:
    run(tmp_path, envs=2)
    assert_same(whole, tmp_path)


@pytest.mark.parametrize("imitate", [True, False])
def test_the_critic_learns_without_asking_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, imitate: bool
) -> None:
    """A policy that stays is asked once for what it makes of the demonstrations, then in episodes alone; one that
    learns once a round for the summaries of all stored decisions, and never while the critic learns."""
    update, fit, spent, fitted = steer.SteeredBC.update, steer.fit_critic, [], []

    def counted(learner: steer.SteeredBC, batch: object) -> dict[str, float]:
        before = learner._policy.asked.copy()
        found = update(learner, batch)  # type: ignore[arg-type]
        spent.append(learner._policy.asked - before)
        learners.append(learner)
        return found

    def watched(*arguments: object) -> object:
        before = [learner._policy.asked.copy() for learner in learners[:1]]
        found = fit(*arguments)  # type: ignore[arg-type]
        fitted.append([learner._policy.asked.copy() for learner in learners[:1]] == before)
        return found

    learners: list[steer.SteeredBC] = []
    monkeypatch.setattr(steer.SteeredBC, "update", counted)
    monkeypatch.setattr(steer, "fit_critic", watched)
    run(tmp_path, imitate=imitate)
    frames = len(toy_demos(1.0).mixture.parts[0].samples.data.state)
    store = open_store(tmp_path / STORE)
    decisions = np.cumsum([store.info(key).decisions for key in store.keys()])[ROUND - 1 :: ROUND]  # noqa: SIM118
    assert [each["propose"] for each in spent] == [frames, 0]
    assert [each["summarise"] for each in spent] == [imitate * (frames + int(count)) for count in decisions]
    assert fitted == [True] * ROUNDS


def test_with_a_persons_help_each_decision_has_its_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, module = settings_of, sys.modules[__name__]
    people = {"people": with_expert(5, TakeoverRule("late", after=3))}
    monkeypatch.setattr(module, "settings_of", lambda *words, **more: replace(usual(*words, **more), **people))
    run(tmp_path, rounds=2)
    store = open_store(tmp_path / STORE)
    helped = [key for key in store.keys() if store.info(key).human_steps]  # noqa: SIM118
    assert helped
    for key in helped:
        data = store._read([key])
        first = np.flatnonzero(np.diff(data.columns.decision, prepend=-1))
        kept = store.arrays(key)
        assert len(kept[CHOSEN]) == len(first)
        asked = kept[CANDIDATES][np.arange(len(first)), kept[CHOSEN]][:, 0]
        alone = ~data.columns.human[first]
        np.testing.assert_array_equal(asked[alone], data.action[first][alone])


def test_the_policy_stays_as_it_is_without_imitation(tmp_path: Path, whole: Path) -> None:
    _, policy = run(tmp_path, imitate=False)
    start, ended = SteeredToy().state_dict(), policy.state_dict()
    assert all(torch.equal(start[name], ended[name]) for name in start)
    assert policy.steering is not None
    assert not torch.equal(start["body.weight"], end(whole)["body.weight"])  # where it imitates


def test_a_round_that_was_cut_goes_on_with_what_is_stored(tmp_path: Path, whole: Path) -> None:
    run(tmp_path, rounds=1)
    for key in range(ROUND, ROUND + 4):
        for path in (whole / STORE / "episodes").glob(f"{key:06d}.*"):
            (tmp_path / STORE / "episodes" / path.name).write_bytes(path.read_bytes())
    rows = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text("".join(rows[:-1]))  # its last evaluation
    env = ToyEnv(5)
    run(tmp_path, resume=True, env=env)
    assert sum(spec.init_state < 16 for spec in env.started) == ROUND - 4
    assert_same(whole, tmp_path)


@pytest.mark.process
@pytest.mark.parametrize(
    ("owner", "name", "count"),
    [
        ("embodied_rl.data.episodes:writer", "add_episode", ROUND + 3),
        ("embodied_rl.training.steer", "write_arrays", 1),
        ("embodied_rl.training.filtered_bc:FilteredBC", "_step", 7),
        ("embodied_rl.training.steer", "fit_critic", 2),
    ],
)
def test_killed_anywhere_and_resumed_equals_run_to_the_end(
    tmp_path: Path, whole: Path, owner: str, name: str, count: int
) -> None:
    killed(__name__, tmp_path, owner, name, count)
    run(tmp_path, resume=True)
    assert_same(whole, tmp_path)


def test_a_run_goes_on_for_longer_as_if_it_had_been_asked_for_at_first(tmp_path: Path, whole: Path) -> None:
    run(tmp_path, rounds=1)
    run(tmp_path, resume=True)
    first, second = end(whole), end(tmp_path)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_what_is_missing_is_named_and_nothing_is_drawn_again(tmp_path: Path) -> None:
    run(tmp_path, rounds=1)
    path = tmp_path / STORE / "demonstrations-0.safetensors"
    kept = path.read_bytes()
    path.unlink()
    with pytest.raises(UserError, match=r"demonstrations-0.safetensors is missing or not of this run: restore"):
        run(tmp_path, rounds=2, resume=True)
    path.write_bytes(kept)
    (tmp_path / STORE / "episodes/000003.safetensors").unlink()
    with pytest.raises(UserError, match=r"000003.safetensors is missing or damaged: restore"):
        run(tmp_path, rounds=2, resume=True)


def test_a_store_of_other_candidates_is_refused(tmp_path: Path) -> None:
    run(tmp_path, rounds=1)
    with pytest.raises(UserError, match="another candidates"):
        run(tmp_path, resume=True, candidates=5)


def test_a_policy_without_chunks_to_choose_from_is_refused() -> None:
    with pytest.raises(UserError, match="ToyPolicy offers none"):
        need_proposals(ToyPolicy())


@pytest.mark.parametrize("says", [False, True])
def test_demonstrations_that_say_no_outcome_are_successes(tmp_path: Path, says: bool) -> None:
    """Those of other programs say none. Where a data set says it of some episodes, the others end in no success."""
    samples = toy_demos(1.0).mixture.parts[0].samples
    data = samples.data
    data.success = data.success & says
    config, learner = SteerConfig(imitate=False), settings_of(SteerConfig(), 1).learner
    steered = steer.SteeredBC(
        SteeredToy(), config, learner, toy_demos(1.0), demonstrations(range(2)), 3, "sample", tmp_path
    )
    kept = {SUMMARY: np.zeros((len(data.state), 3), np.float32), CANDIDATES: np.zeros((len(data.state), 2, CHUNK, 2))}
    found = steered._of_demonstrations(samples, kept)
    episode = samples.episode[samples.rows]
    over = samples.rows + CHUNK >= data.starts[episode + 1]
    won = over & (data.success[episode] if says else True)
    assert 0 < won.sum() <= over.sum()
    assert (won.sum() < over.sum()) == says
    np.testing.assert_array_equal(found.reward.numpy() > 0, won)


def test_the_critic_sees_each_decision_with_what_came_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards at the ends of successes alone; what comes next is of the same episode; a person's chunk is what was
    done."""
    seen, fit, at = [], steer.fit_critic, EpisodeStore.at

    def noted(decisions: Decisions, demonstrated: int, *rest: object) -> object:
        seen.append((decisions, demonstrated))
        return fit(decisions, demonstrated, *rest)  # type: ignore[arg-type]

    def helped(store: EpisodeStore, count: int) -> Demonstrations:
        data = at(store, count)
        data.columns.human[data.starts[1] - 1] = True  # in the first episode's last decision
        return data

    monkeypatch.setattr(steer, "fit_critic", noted)
    monkeypatch.setattr(EpisodeStore, "at", helped)
    run(tmp_path, rounds=1, imitate=False)
    samples = toy_demos(1.0).mixture.parts[0].samples
    frames, store = len(samples.data.state), open_store(tmp_path / STORE)
    (decisions, demonstrated) = seen[0]
    gamma, data = SteerConfig().gamma, at(store, ROUND)
    # demonstrations: from each frame to the one a chunk later
    assert demonstrated == len(samples.rows)
    ends = samples.data.starts[samples.episode[samples.rows] + 1]
    over = samples.rows + CHUNK >= ends
    won = over & samples.data.success[samples.episode[samples.rows]]
    assert decisions.at[:demonstrated].tolist() == samples.rows.tolist()
    assert decisions.after[:demonstrated].tolist() == np.where(over, -1, samples.rows + CHUNK).tolist()
    assert ((decisions.reward[:demonstrated] > 0).numpy() == won).all()
    # own episodes: from decision to decision
    first = frames
    for number in range(ROUND):
        kept, count = store.arrays(number), store.info(number).decisions
        rows = slice(demonstrated + first - frames, demonstrated + first - frames + count)
        assert decisions.at[rows].tolist() == list(range(first, first + count))
        assert decisions.after[rows].tolist() == [*range(first + 1, first + count), -1]
        assert torch.equal(decisions.candidates[first : first + count], torch.from_numpy(kept[CANDIDATES]))
        summary = decisions.features[first : first + count, :-2]
        assert torch.equal(summary, torch.from_numpy(kept[SUMMARY]))
        last = store.info(number).steps - CHUNK * (count - 1)  # control steps of the last chunk
        assert decisions.reward[rows][:-1].eq(0).all()
        expected = store.info(number).success * gamma ** (last - 1)
        assert decisions.reward[rows][-1].item() == pytest.approx(expected, abs=1e-6)
        assert decisions.discount[rows].tolist() == pytest.approx([gamma**CHUNK] * (count - 1) + [0.0])
        asked = torch.from_numpy(kept[CANDIDATES][np.arange(count), kept[CHOSEN]])
        same = (decisions.chunk[rows] == asked).flatten(1).all(1).tolist()
        assert same[:-1] == [True] * (count - 1)
        done = decisions.chunk[rows][-1, :last].numpy()
        if number:
            assert same[-1]
        else:
            np.testing.assert_array_equal(done, data.action[data.starts[1] - last : data.starts[1]])
        first += count

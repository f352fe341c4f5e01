"""Steering from episodes on disk: what the critic learns from, candidates that are drawn once, exact resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from embodied_rl.algorithms.config import SteerConfig
from embodied_rl.data.arrays import read_about, read_arrays
from embodied_rl.data.episodes import open_store
from embodied_rl.data.lerobot import Demonstrations
from embodied_rl.errors import UserError
from embodied_rl.learner.config import CheckpointConfig
from embodied_rl.learner.imitation import Imitation
from embodied_rl.policies.steering import CANDIDATES, SUMMARY
from embodied_rl.training import steer
from embodied_rl.training.chunk_critic import Decisions
from embodied_rl.training.filtered_bc import STORE
from embodied_rl.training.offline import NoSimulator
from embodied_rl.training.on_policy import train
from embodied_rl.training.settings import RunOptions, TaskSplit
from tests.embodied_rl.toy_run import JsonObserver, newest, settings_of
from tests.embodied_rl.training.killed import killed
from tests.embodied_rl.training.test_steer import ROUND, ROUNDS, assert_same, end
from tests.embodied_rl.training.test_steer import run as online
from tests.toy import CHUNK, ToyEnv
from tests.toy_demos import demonstrations, toy_demos
from tests.toy_steered import SteeredToy, steered_files

FOUR = 4


def day(**changes: object) -> Demonstrations:
    """Episodes of which every other one failed, but for the last, of which nobody knows."""
    data = demonstrations(range(8, 12))
    judged = np.arange(len(data)) < len(data) - 1
    return replace(data, judged=judged, **changes)  # type: ignore[arg-type]


def run(
    folder: Path,
    data: Demonstrations | None = None,
    *,
    rounds: int = ROUNDS,
    resume: bool = False,
    seed: int = 3,
    digest: str = "abc",
    policy: SteeredToy | None = None,
    **options: float,
) -> SteeredToy:
    torch.set_num_threads(1)
    imitates = {"steps": 5} if options.get("imitate", True) else {}
    config = SteerConfig(**(imitates | {"candidates": FOUR, "critic_steps": 8} | options))  # type: ignore[arg-type]
    settings = replace(
        settings_of(config, rounds, lr=1e-2),
        imitation=Imitation(toy_demos(1.0, digest=digest), config, seed=3),
        recorded=data or day(),
        checkpoint=CheckpointConfig(every=1),
        seed=seed,
    )
    learns = policy or SteeredToy()
    train(
        folder,
        NoSimulator(ToyEnv(1).info),  # type: ignore[arg-type]
        learns,
        steered_files(learns),
        settings,
        TaskSplit({}, {}),
        JsonObserver(folder / "metrics.jsonl"),
        RunOptions(resume=newest(folder) if resume else None, resume_command="toy --resume"),
    )
    return learns


def points(data: Demonstrations) -> int:
    """Decisions in episodes of which the end is known."""
    return int((-(-np.diff(data.starts)[data.judged] // CHUNK)).sum())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an undisturbed run."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder)
    return folder


def test_the_same_seed_and_data_give_the_same_weights(tmp_path: Path, whole: Path) -> None:
    run(tmp_path / "again")
    assert_same(whole, tmp_path / "again")
    run(tmp_path / "other", seed=4)
    first, other = end(whole), end(tmp_path / "other")
    assert not torch.equal(first["body.weight"], other["body.weight"])
    assert not torch.equal(first["heads.0.from_features.weight"], other["heads.0.from_features.weight"])


def test_candidates_are_drawn_once_and_never_by_a_policy_that_has_learned(tmp_path: Path) -> None:
    frames, data = len(toy_demos(1.0).mixture.parts[0].samples.data.state), day()
    first = run(tmp_path, rounds=1)
    assert first.asked["propose"] == frames + points(data)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "candidates").iterdir()}
    assert sorted(kept) == ["demonstrations-0.safetensors", "recorded.safetensors"]
    second = run(tmp_path, resume=True)
    assert second.asked == {"summarise": frames + points(data)}  # of weights that have moved
    assert {path.name: path.read_bytes() for path in (tmp_path / "candidates").iterdir()} == kept
    rows, start = steer.decided(data, CHUNK), SteeredToy()
    drawn = read_arrays(tmp_path / "candidates/recorded.safetensors")
    assert drawn[CANDIDATES].shape == (len(rows), FOUR, CHUNK, 2)
    seen = torch.from_numpy(data.images[rows]), torch.from_numpy(data.state[rows])
    words = [data.instruction[row] for row in rows]
    np.testing.assert_array_equal(start.summarise(*seen, words).numpy(), drawn[SUMMARY])


def test_a_frozen_policy_stays_and_is_asked_for_its_candidates_alone(tmp_path: Path) -> None:
    policy = run(tmp_path, imitate=False)
    before, after = SteeredToy().state_dict(), policy.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert policy.steering is not None
    frames = len(toy_demos(1.0).mixture.parts[0].samples.data.state)
    assert policy.asked == {"propose": frames + points(day())}


def test_a_run_goes_on_for_longer_as_if_it_had_been_asked_for_at_first(tmp_path: Path, whole: Path) -> None:
    run(tmp_path, rounds=1)
    run(tmp_path, resume=True)
    assert_same(whole, tmp_path)


@pytest.mark.process
@pytest.mark.parametrize(
    ("owner", "name", "count"),
    [
        ("embodied_rl.training.steer", "write_arrays", 2),
        ("embodied_rl.training.filtered_bc:FilteredBC", "_step", 3),
        ("embodied_rl.training.steer", "fit_critic", 2),
    ],
)
def test_killed_anywhere_and_resumed_equals_run_to_the_end(
    tmp_path: Path, whole: Path, owner: str, name: str, count: int
) -> None:
    killed(__name__, tmp_path, owner, name, count)
    run(tmp_path, resume=True)
    assert_same(whole, tmp_path)


def test_shuffled_outcomes_change_the_critic_and_nothing_else(tmp_path: Path) -> None:
    data = day()
    shuffled = replace(data, success=~data.success & data.judged)
    found = [run(tmp_path / name, each, imitate=False) for name, each in (("true", data), ("false", shuffled))]
    one, two = (end(tmp_path / name) for name in ("true", "false"))
    differ = {name for name in one if not torch.equal(one[name], two[name])}
    critic = found[0].steering
    assert critic is not None
    assert differ
    assert differ <= set(critic.critic.state_dict())
    kept = [read_arrays(tmp_path / name / "candidates/recorded.safetensors") for name in ("true", "false")]
    np.testing.assert_array_equal(kept[0][CANDIDATES], kept[1][CANDIDATES])


def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Decisions, int]]:
    """What critics are fitted to from now on."""
    seen, fit = list[tuple[Decisions, int]](), steer.fit_critic

    def note(decisions: Decisions, demonstrated: int, *rest: object) -> object:
        seen.append((decisions, demonstrated))
        return fit(decisions, demonstrated, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(steer, "fit_critic", note)
    return seen


def test_the_critic_sees_what_was_done_and_what_came_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures pay nothing, and an episode of which nobody knows the end is left out."""
    seen, data, gamma = noted(monkeypatch), day(), SteerConfig().gamma
    run(tmp_path, data, rounds=1, imitate=False)
    ((decisions, demonstrated),) = seen
    first, row = len(toy_demos(1.0).mixture.parts[0].samples.data.state), demonstrated
    for episode in np.flatnonzero(data.judged):
        start, stop = data.starts[episode : episode + 2]
        frames = np.arange(start, stop, CHUNK)
        rows = slice(row, row + len(frames))
        assert decisions.at[rows].tolist() == list(range(first, first + len(frames)))
        assert decisions.after[rows].tolist() == [*range(first + 1, first + len(frames)), -1]
        paid = decisions.reward[rows].tolist()
        last = stop - frames[-1]
        assert paid == pytest.approx([0.0] * (len(frames) - 1) + [data.success[episode] * gamma ** (last - 1)])
        assert decisions.discount[rows].tolist() == pytest.approx([gamma**CHUNK] * (len(frames) - 1) + [0.0])
        for frame, chunk in zip(frames, decisions.chunk[rows].numpy(), strict=True):
            np.testing.assert_array_equal(chunk[: stop - frame], data.action[frame : min(frame + CHUNK, stop)])
        proprio = decisions.features[first : first + len(frames), -2:].numpy()
        np.testing.assert_array_equal(proprio, data.state[frames])
        first, row = first + len(frames), row + len(frames)
    assert (first, row) == (len(decisions.features), len(decisions.at))
    assert data.success[data.judged].any()
    assert not data.success[data.judged].all()


def test_what_a_critic_sees_does_not_say_how_an_episode_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond an episode's end its last chunk goes on alike, whatever the outcome."""
    seen, data = noted(monkeypatch), day()
    run(tmp_path / "true", data, rounds=1, imitate=False)
    run(tmp_path / "false", replace(data, success=~data.success & data.judged), rounds=1, imitate=False)
    (first, _), (second, _) = seen
    assert not torch.equal(first.reward, second.reward)
    assert torch.equal(first.chunk, second.chunk)


def test_what_a_run_stored_teaches_the_same_without_its_candidates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = noted(monkeypatch)
    online(tmp_path / "run", rounds=1, imitate=False)
    stored = open_store(tmp_path / "run" / STORE).at(ROUND)
    assert stored.judged.all()
    run(tmp_path / "again", stored, rounds=1, imitate=False)
    (first, shown), (second, again) = seen
    assert shown == again
    for name in ("features", "at", "after", "reward", "discount"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    assert not torch.equal(first.candidates, second.candidates)
    over = first.after < 0  # the rest of a last chunk was not done
    assert torch.equal(first.chunk[~over], second.chunk[~over])


def test_what_is_missing_is_named_and_nothing_is_drawn_again(tmp_path: Path) -> None:
    run(tmp_path, rounds=1)
    path = tmp_path / "candidates/recorded.safetensors"
    path.unlink()
    with pytest.raises(UserError, match=r"recorded.safetensors is missing or not of this run: restore"):
        run(tmp_path, resume=True)


@pytest.mark.parametrize("change", ["data", "candidates", "weights"])
def test_what_was_drawn_of_something_else_is_not_taken(tmp_path: Path, change: str) -> None:
    """A run that was killed before its first checkpoint left candidates; what begins there now is another one."""
    run(tmp_path, rounds=1)
    (tmp_path / "candidates").rename(tmp_path / "kept")
    begun = {"data": {"digest": "another"}, "candidates": {"candidates": 5}, "weights": {"policy": SteeredToy(1)}}[
        change
    ]
    place = tmp_path / "next"
    place.mkdir()
    (tmp_path / "kept").rename(place / "candidates")
    before = read_about(place / "candidates/recorded.safetensors")
    policy = run(place, rounds=1, **begun)  # type: ignore[arg-type]
    assert policy.asked["propose"] > 0
    assert read_about(place / "candidates/recorded.safetensors") != before


def test_other_data_is_refused_by_its_option(tmp_path: Path) -> None:
    run(tmp_path, rounds=1)
    with pytest.raises(UserError, match="--data is no longer that of the run"):
        run(tmp_path, resume=True, digest="another")

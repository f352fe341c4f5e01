"""Failure detectors: earlier than a clock where episodes leave what was demonstrated, and calibrated on successes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from embodied_rl.errors import UserError
from embodied_rl.evaluation.detector import (
    FEW,
    FIRST,
    KINDS,
    DemonstratedStates,
    Detector,
    Kind,
    Sight,
    WatchedEpisode,
    calibrate,
    detector_digest,
    figures,
    index_of,
    indices,
    load_detector,
    save_detector,
)
from embodied_rl.rng import philox

TASK = "open the drawer"
LENGTH, HORIZON, STEPS = 20, 40, 4


def path(draw: np.random.Generator, *, lost_at: int | None) -> np.ndarray:
    """What a policy makes of an episode: along the demonstrated line, or off it from a decision on."""
    count = HORIZON if lost_at is not None else LENGTH + int(draw.integers(-2, 12))
    far = np.minimum(np.arange(count), count if lost_at is None else lost_at) / LENGTH
    off = np.zeros(count) if lost_at is None else np.maximum(np.arange(count) - lost_at, 0) / 10
    line = np.stack([far.clip(0, 1), 1 - far.clip(0, 1), off, np.full(count, 0.5)], axis=1)
    return (line + draw.normal(0, 0.03, line.shape)).astype(np.float32)


def shown(seed: int = 0) -> DemonstratedStates:
    draw = philox(seed, 1)
    far = np.tile(np.arange(LENGTH) / LENGTH, 5)
    features = np.stack([far, 1 - far, 0 * far, 0 * far + 0.5], axis=1) + draw.normal(0, 0.03, (len(far), 4))
    return DemonstratedStates.of(features.astype(np.float32), LENGTH - far * LENGTH, [TASK] * len(far))


def episodes(states: DemonstratedStates, count: int, seed: int) -> list[WatchedEpisode]:
    """Every third one fails: it leaves the line between its second decision and its 15th."""
    found = []
    for number in range(count):
        draw = philox(seed, 2, number)
        lost_at = int(draw.integers(2, 16)) if number % 3 == 0 else None
        found.append(_watched(states, path(draw, lost_at=lost_at), success=lost_at is None))
    return found


def _watched(states: DemonstratedStates, features: np.ndarray, *, success: bool) -> WatchedEpisode:
    sights = [Sight(float(d), float(t)) for d, t in zip(*states.nearest(features, TASK), strict=True)]
    return WatchedEpisode(TASK, success, sights, [STEPS * n for n in range(len(sights))], STEPS * len(sights))


def test_leaving_what_was_demonstrated_is_seen_earlier_than_by_a_clock() -> None:
    states = shown()
    teaching, judging = episodes(states, 90, seed=1), episodes(states, 90, seed=2)
    clock, nearest, to_go = figures({kind: calibrate(kind, teaching) for kind in KINDS}, judging)
    for row in (clock, nearest, to_go):
        assert row.found is not None
        assert row.false_alarms is not None
        assert row.found > 0.9
        assert row.false_alarms <= 0.15
        assert row.balanced_accuracy == pytest.approx((row.found + 1 - row.false_alarms) / 2)
    assert clock.decision is not None
    assert nearest.same_decision is not None
    assert to_go.same_decision is not None
    assert clock.same_decision == clock.decision > LENGTH
    assert nearest.same_decision <= clock.decision - 10
    assert to_go.same_decision <= clock.decision - 4
    assert nearest.same_saved is not None
    assert clock.saved is not None
    assert nearest.same_saved >= clock.saved + 0.3


def test_what_a_policy_makes_of_other_pictures_tells_nothing() -> None:
    """The broken variant: sights in a random order, of any episode, are no earlier than the clock."""
    states = shown()
    teaching, judging = (_shuffled(episodes(states, 90, seed=seed)) for seed in (1, 2))
    clock, nearest, _ = figures({kind: calibrate(kind, teaching) for kind in KINDS}, judging)
    assert nearest.same_saved is not None
    assert clock.saved is not None
    assert nearest.same_saved < clock.saved


def _shuffled(found: Sequence[WatchedEpisode]) -> list[WatchedEpisode]:
    every = [sight for episode in found for sight in episode.sights]
    order = iter(philox(5, 3).permutation(len(every)).tolist())
    return [replace(episode, sights=[every[next(order)] for _ in episode.sights]) for episode in found]


@pytest.mark.parametrize(("count", "least", "most"), [(19, 0.03, 0.07), (200, 0.035, 0.065), (9, 0.07, 0.13)])
def test_calibration_leaves_about_one_success_in_twenty_with_an_alarm(count: int, least: float, most: float) -> None:
    """Of 9 successes no limit can do better than one in ten."""
    false = []
    for trial in range(600):
        draw = philox(trial, 7)
        limit = calibrate("nearest", [_held(value) for value in draw.exponential(size=count)])[TASK]
        false.append(np.exp(-limit))  # the chance that another one lies above
    assert least < np.mean(false) < most


def _held(distance: float) -> WatchedEpisode:
    sights = [Sight(float(distance), 0.0)] * (FIRST + 5)
    return WatchedEpisode(TASK, True, sights, list(range(len(sights))), len(sights))


def test_figures_count_by_hand() -> None:
    """Limits of 1: one failure is heard at decision 5 of 10, one never; one of two successes raises an alarm."""

    def episode(success: bool, *distances: float) -> WatchedEpisode:
        sights = [Sight(4 * distance, 0.0) for distance in distances]
        return WatchedEpisode(TASK, success, sights, [2 * n for n in range(len(sights))], 2 * len(sights))

    heard, missed = episode(False, 0, 0, 0, 0, 1.1, *[0] * 5), episode(False, *[0.1] * 10)
    fine, wrong = episode(True, *[0.1] * 6), episode(True, 0, 0, 0, 0, 0, 1.2)
    limits: dict[Kind, dict[str, float]] = {"clock": {TASK: 8}, "nearest": {TASK: 1}}
    clock, nearest = figures(limits, [heard, missed, fine, wrong])
    assert (clock.found, clock.false_alarms, clock.decision, clock.saved) == (1.0, 0.0, 9.0, 8 / 40)
    assert (nearest.found, nearest.false_alarms, nearest.decision, nearest.saved) == (0.5, 0.5, 7.5, 12 / 40)
    assert nearest.same_decision == 10.0, "at the clock's false alarms, none, its limit lies above both"
    assert nearest.same_saved == 0.0
    assert figures(limits, [fine, wrong])[0].found is None


def test_no_detector_speaks_in_the_first_decisions() -> None:
    detector = Detector("nearest", "abc", STEPS, {TASK: 0.1})
    far = [Sight(1.0, 0.0)] * (FIRST + 1)
    assert [detector.alarm(far[: count + 1], TASK) for count in range(len(far))] == [False] * FIRST + [True]
    with pytest.raises(UserError, match="was not calibrated for 'close it', but for 'open the drawer'"):
        detector.alarm(far, "close it")


@pytest.mark.parametrize("kind", KINDS)
def test_an_index_knows_the_past_alone(kind: Kind) -> None:
    draw = philox(3, 4)
    sights = [Sight(*map(float, draw.random(2))) for _ in range(12)]
    whole = indices(kind, sights)
    assert whole == [index_of(kind, sights[: n + 1]) for n in range(12)]
    assert indices(kind, sights[:7]) == whole[:7]
    if kind == "nearest":
        assert whole[9] == pytest.approx(np.mean([sight.distance for sight in sights[6:10]]))
    if kind == "steps_to_go":
        assert whole[9] == pytest.approx(10 + np.mean([sight.to_go for sight in sights[6:10]]))


def test_a_task_of_few_successes_takes_the_limit_of_all() -> None:
    def won(task: str, decisions: int) -> WatchedEpisode:
        return WatchedEpisode(task, True, [Sight(0, 0)] * decisions, list(range(decisions)), decisions)

    many = [won("a", 10 + n) for n in range(FEW)]
    limits = calibrate("clock", [*many, won("b", 30), replace(won("c", 50), success=False)])
    assert limits == {"a": 13.0, "b": 30.0, "c": 30.0}
    with pytest.raises(UserError, match="no episode that calibrates succeeded"):
        calibrate("clock", [replace(won("c", 50), success=False)])


def test_a_file_gives_back_what_was_saved(tmp_path: Path) -> None:
    states = shown()
    for kind, kept in (("nearest", states), ("clock", None)):
        detector = Detector(kind, "abc" * 20, STEPS, {TASK: 0.25}, kept, {"suite": "kitchen"})  # type: ignore[arg-type]
        save_detector(detector, tmp_path / "d.safetensors")
        found = load_detector(tmp_path / "d.safetensors")
        assert replace(found, states=None) == replace(detector, states=None)
        if kept is None:
            assert found.states is None
            continue
        assert found.states is not None
        seen = path(philox(0, 9), lost_at=3)
        for one, two in zip(found.states.nearest(seen, TASK), states.nearest(seen, TASK), strict=True):
            np.testing.assert_array_equal(one, two)
    first = detector_digest(tmp_path / "d.safetensors")
    save_detector(Detector("clock", "abc", STEPS, {TASK: 0.5}), tmp_path / "d.safetensors")
    assert detector_digest(tmp_path / "d.safetensors") != first


def test_what_is_no_detector_is_refused_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "d.safetensors"
    with pytest.raises(UserError, match="there is no such file"):
        load_detector(file)
    save_detector(Detector("clock", "abc", STEPS, {TASK: 1.0}), file)
    whole = file.read_bytes()
    for broken in (whole[: len(whole) // 2], b"", b"\0" * 40):
        file.write_bytes(broken)
        with pytest.raises(UserError, match="is no detector"):
            load_detector(file)
    assert whole.count(rb"\"version\": 1") == 1
    file.write_bytes(whole.replace(rb"\"version\": 1", rb"\"version\": 7"))
    with pytest.raises(UserError, match="a detector of version 7, here 1: make it again"):
        load_detector(file)


def test_another_policy_is_refused_by_name() -> None:
    detector = Detector("clock", "a" * 64, STEPS, {TASK: 1.0})
    detector.require_policy("a" * 64, "start", Path("d"))
    with pytest.raises(UserError, match=r"d was calibrated with another policy \(aaaaaaaaaaaa\) than start \(bbbb"):
        detector.require_policy("b" * 64, "start", Path("d"))


def test_a_task_that_was_not_demonstrated_is_refused() -> None:
    with pytest.raises(UserError, match="the demonstrations show no 'close it', but 'open the drawer'"):
        shown().nearest(np.zeros((1, 4), np.float32), "close it")

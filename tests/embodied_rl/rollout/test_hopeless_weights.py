"""What successes under limits stand for, so that the limits made of them lose about as many as may be lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from embodied_rl.rollout import hopeless
from embodied_rl.rollout.episode import ActiveEpisode
from embodied_rl.rollout.hopeless import HopelessRule, Success, calibrate, weigh
from embodied_rl.types import EpisodeSpec


def test_a_lost_success_of_an_audited_episode_counts_for_all_that_were_stopped() -> None:
    """Those that the rule lets through lie above its limits; by themselves they would raise these with every batch."""
    above = [Success("t", 1.0, (0.0, value)) for value in np.linspace(0.5, 1, 97).tolist()]
    below = [Success("t", 10.0, (0.0, value)) for value in (0.1, 0.2)]
    assert calibrate(above, 0.03)[1] > 0.499
    assert calibrate([*above, *below], 0.03)[1] <= 0.1


def seen(judged: int, audited: int, lost: int) -> list[Success]:
    """Successes under limits, the last ones of which were audited, and of these the last ones lost."""
    first, kept = judged - audited, judged - lost
    return [Success("t", 1.0, (0.0, i / judged), True, i >= first, i >= kept) for i in range(judged)]


def test_those_that_were_stopped_are_made_up_for_whether_one_was_seen_or_not() -> None:
    weighed, stopped = weigh(seen(90, 10, 0), 0.05)
    assert {x.weight for x in weighed} == {1.0}
    assert stopped == pytest.approx(90 * (1 / 30) / (29 / 30)), "1 of 20 before, 0 of 10 since"
    weighed, stopped = weigh(seen(90, 10, 2), 0.05)
    assert [x.weight for x in weighed if x.lost] == pytest.approx([88 / 9 / 2] * 2), "3 of 30"
    assert {x.weight for x in weighed if not x.lost} == {1.0}
    assert stopped == 0
    before = [Success("t", 1.0, (0.0, i / 50)) for i in range(50)]
    assert weigh(before, 0.05) == (before, 0.0), "nothing could be stopped yet"


def test_with_as_many_stopped_already_as_may_be_limits_do_not_rise() -> None:
    successes = [Success("t", 1.0, (0.0, value)) for value in np.linspace(0.5, 1, 100).tolist()]
    free, full = (calibrate(successes, 0.05, stopped)[1] for stopped in (0.0, 100 * 0.05 / 0.95))
    assert full < 0.5 < free < 0.52
    assert full == pytest.approx(0.5 - 0.5 / 99, abs=1e-5), "below the lowest one lies the gap between the lowest ones"


def lost_in_the_long_run(seed: int, *, batches: int = 40, size: int = 40) -> float:
    """Share of the successes that limits made of earlier batches would stop, if these had been stopped by such limits.

    Half of the episodes succeed. Values are a noisy walk, which climbs where the episode succeeds in the end.
    """
    draws, rule, lost, won = np.random.default_rng(seed), HopelessRule(), 0, 0
    for batch in range(batches):
        good = draws.random(size) < 0.5
        length = np.where(good, draws.integers(15, 38, size), 38)
        seeds = draws.integers(2**62, size=size).tolist()
        episodes = [ActiveEpisode(EpisodeSpec(i, "t", 0, seed, i)) for i, seed in enumerate(seeds)]
        walk = 0.2 + (np.where(good, 0.02, -0.005) + 0.03 * draws.normal(size=(38, size))).cumsum(0)
        values = torch.from_numpy(walk + 0.15 * draws.normal(size=(38, size)))
        running, ended = list(range(size)), []
        for now in values:
            stopped = {running[row] for row in rule.judge([episodes[i] for i in running], now[running])}
            ended += [episodes[i].given_up(bootstrap=False).result for i in stopped]
            for i in running:
                episodes[i].num_decisions += i not in stopped
                episodes[i].success = bool(good[i] and episodes[i].num_decisions == length[i])
            over = [i for i in running if i not in stopped and episodes[i].num_decisions == length[i]]
            ended += [episodes[i].ended(terminated=bool(good[i])).result for i in over]
            running = [i for i in running if i not in stopped and i not in over]
        if batch >= 12:
            lost, won = lost + sum(episodes[i].hopeless for i in range(size) if good[i]), won + int(good.sum())
        rule.close_batch(batch, ended)
    return lost / won


def test_in_the_long_run_few_successes_more_are_lost_than_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """With weights of audited ones alone, and limits at the lowest success, it is three times what is asked."""
    assert 0.02 < np.mean([lost_in_the_long_run(seed) for seed in range(6)]) < 0.06

    def by_audits_alone(successes: Sequence[Success], false_stops: float) -> tuple[list[Success], float]:
        return [replace(x, weight=1 / hopeless.AUDIT_SHARE) if x.lost else x for x in successes], 0.0

    monkeypatch.setattr(hopeless, "weigh", by_audits_alone)
    monkeypatch.setattr(hopeless, "_below", hopeless._quantile)
    assert np.mean([lost_in_the_long_run(seed) for seed in range(6)]) > 0.08

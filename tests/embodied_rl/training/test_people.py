"""A person in the rounds of imitation: what is stored, counted and learned from, and that a resume is exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.algorithms.config import ImitateConfig, PPOConfig
from embodied_rl.config.train import TrainConfig
from embodied_rl.data.episodes import open_store
from embodied_rl.errors import UserError
from embodied_rl.sim.wrappers.takeover import TakeoverRule
from embodied_rl.telemetry.metrics import read_metrics
from embodied_rl.training.filtered_bc import STORE
from tests.embodied_rl.rollout.test_help import with_expert
from tests.embodied_rl.training import test_filtered_bc as rounds
from tests.toy import ToyEnv


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Makes runs in which an expert takes over after 3 control steps, in so many envs."""
    usual = rounds.settings_of

    def use(envs: int) -> None:
        def settings_of(*words: Any, **options: Any) -> Any:
            return replace(usual(*words, **options), people=with_expert(envs, TakeoverRule("late", after=3)))

        monkeypatch.setattr(rounds, "settings_of", settings_of)

    return use


def test_help_is_stored_counted_apart_and_learned_from(tmp_path: Path, late: Callable[[int], None]) -> None:
    late(5)
    outcome, _ = rounds.run(tmp_path, steps=20)
    for report in (outcome.before, outcome.after):
        assert not any(result.human_steps for result in report.results), "nobody helps where it is evaluated"
    store = open_store(tmp_path / STORE)
    infos = [store.info(key) for key in store.keys()]  # noqa: SIM118
    helped = [info for info in infos if info.source == "mixed"]
    assert len(helped) > 10
    assert {info.success for info in helped} == {0}
    assert {info.ends_in_success for info in helped} == {0, 1}
    data = store.at(len(infos))
    assert int(data.columns.human.sum()) == sum(info.human_steps for info in infos) > 0
    first = read_metrics(tmp_path / "metrics.jsonl")[1]
    assert first["rollout/success"] < 0.2 < first["rollout/success_with_help"]
    assert first["train/own_successes"] == first["rollout/success_with_help"] * rounds.ROUND


def test_envs_and_a_cut_round_change_nothing(tmp_path: Path, late: Callable[[int], None]) -> None:
    late(5)
    rounds.run(tmp_path / "whole")
    late(11)
    rounds.run(tmp_path / "cut", rounds=2)
    for key in range(2 * rounds.ROUND, 2 * rounds.ROUND + 5):
        for path in (tmp_path / "whole" / STORE / "episodes").glob(f"{key:06d}.*"):
            (tmp_path / "cut" / STORE / "episodes" / path.name).write_bytes(path.read_bytes())
    lines = (tmp_path / "cut/metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut/metrics.jsonl").write_text("".join(lines[:-1]))  # without its last evaluation
    rounds.run(tmp_path / "cut", resume=True)
    rounds.assert_same(tmp_path / "whole", tmp_path / "cut")


def test_a_rule_that_takes_nobody_over_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds.run(tmp_path / "plain", env=ToyEnv(5))
    usual, nobody = rounds.settings_of, TakeoverRule("late", after=1000)
    monkeypatch.setattr(
        rounds,
        "settings_of",
        lambda *words, **options: replace(usual(*words, **options), people=with_expert(5, nobody)),
    )
    rounds.run(tmp_path / "wrapped")
    rounds.assert_same(tmp_path / "plain", tmp_path / "wrapped")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"people": "expert", "algorithm": PPOConfig(), "demos": ()}, "is for --algorithm imitate"),
        ({"people_after": 30}, "go with --people expert"),
        ({"people": "expert", "people_share": 0.3}, "goes with --people-rule share"),
        ({"people": "expert", "people_after": 0}, "at least 1"),
        ({"people": "expert", "people_rule": "share", "people_share": 1.5}, "at most at 1"),
    ],
)
def test_what_does_not_go_together_is_refused(options: dict[str, Any], said: str) -> None:
    config = TrainConfig(**{"algorithm": ImitateConfig(), "demos": ("demos",), **options})
    with pytest.raises(UserError, match=said):
        config.check()


def test_the_usual_rule_is_the_simulators() -> None:
    assert TakeoverRule(*TrainConfig().takeover_rule) == TakeoverRule()

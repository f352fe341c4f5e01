"""A person in the rounds of imitation: what is stored, counted and learned from, and that a resume is exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from embodied_rl.algorithms.config import ImitateConfig, PPOConfig
from embodied_rl.config.train import TrainConfig
from embodied_rl.data.episodes import open_store
from embodied_rl.errors import UserError
from embodied_rl.evaluation.detector import Detector
from embodied_rl.evaluation.features import Watcher
from embodied_rl.sim.wrappers.takeover import Expert, ExpertTakeover, TakeoverRule
from embodied_rl.telemetry.metrics import read_metrics
from embodied_rl.training.filtered_bc import STORE
from embodied_rl.types import EpisodeSpec
from tests.embodied_rl.rollout.test_help import with_expert
from tests.embodied_rl.training import test_filtered_bc as rounds
from tests.embodied_rl.watching import SummarisingPolicy, toy_detector
from tests.toy import CHUNK, ToyEnv

LIMIT = 0.5
"""Of the detector: some episodes of the toy raise an alarm."""


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


def watched(envs: int, begun: SummarisingPolicy, detector: Detector) -> ExpertTakeover:
    """As `with_expert`, under the rule 'detector'."""
    env = ToyEnv(envs)

    def expert(env_id: int, spec: EpisodeSpec) -> Expert:
        return lambda: 4 * (env._goal[env_id] - env._position[env_id])

    return ExpertTakeover(env, TakeoverRule("detector"), expert, Watcher(detector, begun))


@pytest.fixture
def detecting(monkeypatch: pytest.MonkeyPatch) -> Callable[..., SummarisingPolicy]:
    """Makes runs in which an expert takes over at a detector's alarm, in so many envs."""
    usual = rounds.settings_of

    def use(envs: int, seed: int = 0) -> SummarisingPolicy:
        begun = SummarisingPolicy(seed)
        detector = toy_detector(begun, LIMIT)

        def settings_of(*words: Any, **options: Any) -> Any:
            return replace(usual(*words, **options), people=watched(envs, begun, detector))

        monkeypatch.setattr(rounds, "settings_of", settings_of)
        return begun

    return use


def test_an_expert_comes_at_the_alarm_in_whatever_env_and_after_a_resume(
    tmp_path: Path, detecting: Callable[..., SummarisingPolicy]
) -> None:
    begun = detecting(5)
    rounds.run(tmp_path / "whole")
    assert set(begun.asked[1:]) == {1}, "one observation at a time"
    detector = toy_detector(begun, LIMIT)
    store = open_store(tmp_path / "whole" / STORE)
    data, keys = store.at(len(store.keys())), store.keys()
    helped = 0
    for number, key in enumerate(keys):
        first, end = data.starts[number : number + 2]
        human = data.columns.human[first:end]
        sights, alarm = [], None
        for row in range(first, end, CHUNK):
            words = data.instruction[row]
            shown = torch.from_numpy(data.images[[row]]), torch.from_numpy(data.state[[row]])
            sights.append(detector.see(begun.summarise(*shown, [words]).numpy()[0], words))
            if detector.alarm(sights, words):
                alarm = row - first
                break
        assert store.info(key).human_steps == human.sum()
        if alarm is None:
            assert not human.any()
        else:
            assert not human[:alarm].any()
            assert human[alarm:].all()
        helped += alarm is not None
    assert 3 < helped < len(keys) - 3
    detecting(11)
    rounds.run(tmp_path / "cut", rounds=2)
    for key in range(2 * rounds.ROUND, 2 * rounds.ROUND + 5):
        for path in (tmp_path / "whole" / STORE / "episodes").glob(f"{key:06d}.*"):
            (tmp_path / "cut" / STORE / "episodes" / path.name).write_bytes(path.read_bytes())
    lines = (tmp_path / "cut/metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut/metrics.jsonl").write_text("".join(lines[:-1]))
    rounds.run(tmp_path / "cut", resume=True)
    rounds.assert_same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"people": "expert", "people_rule": "detector"}, "--people-rule detector and --people-detector FILE go"),
        ({"people": "expert", "people_detector": "d"}, "--people-rule detector and --people-detector FILE go"),
        (
            {"people": "expert", "people_rule": "detector", "people_detector": "d", "people_after": 20},
            "--people-after does not apply to --people-rule detector",
        ),
        ({"people_rule": "detector", "people_detector": "d"}, "go with --people expert"),
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

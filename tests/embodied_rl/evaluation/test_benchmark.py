"""A benchmark run: every episode once whatever kills it, interleaved, and scored by hand-countable rules."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.errors import UserError
from embodied_rl.evaluation.benchmark import interleaved, run_missing, summarise
from embodied_rl.evaluation.evaluate import evaluate
from embodied_rl.evaluation.intervals import wilson
from embodied_rl.evaluation.results_log import EPISODES, EpisodeOutcome, EpisodeResultsLog, Finished, read_request
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.types import EpisodeResult, EpisodeSpec
from tests.toy import HELDOUT, ToyEnv, ToyPolicy

SPECS = evaluation_specs(HELDOUT, 11)
REQUEST = {"suite": "toy", "seed": 11}
MACHINE = {"renderer": "none"}


def outcome(number: int, task: str, row: int, once: bool, at_end: bool | None) -> EpisodeOutcome:
    spec = EpisodeSpec(number, task, row, 5, number)
    return EpisodeOutcome(EpisodeResult(spec, once, once, not once, float(once), 2, 10 + number), at_end)


def finished(*rows: EpisodeOutcome) -> Finished:
    return Finished({row.result.spec.episode_id: row for row in rows})


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 6), min_size=1))
def test_interleaving_runs_every_episode_once_and_no_task_gets_ahead(tasks: dict[str, int]) -> None:
    specs = evaluation_specs({task: range(count) for task, count in tasks.items()}, 0)
    order = interleaved(specs)
    assert Counter(order) == Counter(specs)
    for length in range(len(order)):
        seen = Counter(spec.task for spec in order[:length])
        most = max(seen.values(), default=0)
        assert all(seen[task] >= min(most - 1, count) for task, count in tasks.items())


def test_scores_by_hand() -> None:
    rows = [outcome(0, "a", 0, True, True), outcome(1, "a", 1, True, False), outcome(2, "b", 0, False, False)]
    report = summarise(finished(*reversed(rows)), seen={"a": [1]})
    assert (report.overall.once.successes, report.overall.once.episodes) == (2, 3)
    assert report.overall.at_end is not None
    assert (report.overall.at_end.successes, report.overall.at_end.episodes) == (1, 3)
    assert (report.overall.once.low, report.overall.once.high) == wilson(2, 3)
    assert list(report.tasks) == ["a", "b"]
    assert report.tasks["a"].once.rate == 1
    assert report.overall.once.mean_return == report.overall.at_end.mean_return == pytest.approx(2 / 3)
    assert report.overall.once.return_std == pytest.approx(math.sqrt(2) / 3)
    assert (report.tasks["b"].once.mean_return, report.tasks["b"].once.return_std) == (0, 0)
    assert report.unseen is not None
    assert (report.unseen.once.successes, report.unseen.once.episodes) == (1, 2)
    assert report.outcomes == rows
    assert json.loads(json.dumps(report.to_json()))["episodes"][1]["at_end"] is False


def test_success_at_end_is_not_made_up() -> None:
    assert summarise(finished(outcome(0, "a", 0, True, True), outcome(1, "a", 1, True, None))).overall.at_end is None
    assert summarise(finished(outcome(0, "a", 0, True, True)), seen={"a": [0]}).unseen is None
    with pytest.raises(ValueError, match="no proportion"):
        summarise(finished())


def test_episodes_that_break_the_simulator_count_for_nothing_and_are_said() -> None:
    rows = [outcome(0, "a", 0, True, True), outcome(2, "b", 0, False, False), outcome(4, "b", 2, True, True)]
    lost = {1: outcome(1, "a", 1, False, None).result.spec, 5: outcome(5, "c", 0, False, None).result.spec}
    report = summarise(replace(finished(*rows), not_measured=lost), seen={"a": [0], "b": [0]})
    found = {
        name: (tally.once.successes, tally.once.episodes, tally.once.not_measured)
        for name, tally in report.tasks.items()
    }
    assert found == {"a": (1, 1, 1), "b": (1, 2, 0), "c": (0, 0, 1)}
    assert (report.overall.once.successes, report.overall.once.episodes, report.overall.once.not_measured) == (2, 3, 2)
    assert (report.overall.once.low, report.overall.once.high) == wilson(2, 3)
    assert report.unseen is not None
    assert (report.unseen.once.successes, report.unseen.once.episodes, report.unseen.once.not_measured) == (1, 1, 2)
    assert report.not_measured == [lost[1], lost[5]]
    assert json.loads(json.dumps(report.to_json()))["overall"]["once"]["not_measured"] == 2
    with pytest.raises(UserError, match=r"^nothing could be measured: the simulator broke in every one of 2 episodes"):
        summarise(Finished({}, lost))


def test_what_could_not_be_measured_is_kept_and_not_tried_again(tmp_path: Path) -> None:
    broken = {("toy/reach", 17), ("toy/touch", 20)}
    for stop in (8, len(SPECS)):
        env = ToyEnv(3, broken=broken)
        with EpisodeResultsLog.open(tmp_path / "e", REQUEST, MACHINE) as ledger:
            run_missing(env, ToyPolicy(3), interleaved(SPECS)[:stop], "sample", ledger)
            report = summarise(ledger.finished)
        tried = Counter((spec.task, spec.init_state) for spec in env.started)
        assert {state: tried[state] for state in broken if tried[state]} == {
            state: 3 for state in broken if (state[1] == 17) == (stop == 8)
        }
    assert {(spec.task, spec.init_state) for spec in report.not_measured} == broken
    whole = evaluate(ToyEnv(4), ToyPolicy(3), SPECS, "sample").results
    kept = [result for result in whole if (result.spec.task, result.spec.init_state) not in broken]
    assert [row.result for row in report.outcomes] == kept
    with pytest.raises(ValueError, match="already"), EpisodeResultsLog.open(tmp_path / "e", REQUEST, MACHINE) as ledger:
        ledger.add_broken(report.not_measured[0])


def test_a_run_in_pieces_is_the_whole_run(tmp_path: Path) -> None:
    whole = evaluate(ToyEnv(4), ToyPolicy(3), SPECS, "sample")
    order = interleaved(SPECS)
    starts: list[int] = []
    for stop in (5, 17, len(order)):
        env = ToyEnv(3)
        with EpisodeResultsLog.open(tmp_path / "e", REQUEST, MACHINE) as ledger:
            run_missing(env, ToyPolicy(3), order[:stop], "sample", ledger)
        starts += [spec.episode_id for spec in env.started]
    assert sorted(starts) == sorted(spec.episode_id for spec in SPECS)
    with EpisodeResultsLog.open(tmp_path / "e", REQUEST, MACHINE) as ledger:
        run_missing(ToyEnv(1), ToyPolicy(3), order, "sample", ledger)  # nothing left to do
        assert [row.result for row in summarise(ledger.finished).outcomes] == whole.results
    assert read_request(tmp_path / "e") == REQUEST


def test_what_was_drawn_and_the_end_are_recorded(tmp_path: Path) -> None:
    with EpisodeResultsLog.open(tmp_path, REQUEST, MACHINE) as ledger:
        run_missing(
            ToyEnv(2),
            ToyPolicy(3),
            SPECS[:2],
            "greedy",
            ledger,
            outcome_of=lambda result: EpisodeOutcome(
                result, result.spec.episode_id == 1, {"light": [0.5]} if result.spec.episode_id == 1 else {}
            ),
        )
    with EpisodeResultsLog.open(tmp_path, REQUEST, MACHINE) as ledger:
        assert [ledger.outcomes[i].at_end for i in (0, 1)] == [False, True]
        assert [ledger.outcomes[i].perturbation for i in (0, 1)] == [{}, {"light": [0.5]}]


KILLED = """
import os, signal, sys
from pathlib import Path
from embodied_rl.evaluation.benchmark import interleaved, run_missing
from embodied_rl.evaluation.results_log import EpisodeResultsLog
from tests.embodied_rl.evaluation.test_benchmark import MACHINE, REQUEST, SPECS
from tests.toy import ToyEnv, ToyPolicy

count = 0
def die(result):
    global count
    count += 1
    if count == 3:
        os.kill(os.getpid(), signal.SIGKILL)

with EpisodeResultsLog.open(Path(sys.argv[1]), REQUEST, MACHINE) as ledger:
    run_missing(ToyEnv(4), ToyPolicy(3), interleaved(SPECS), "sample", ledger, on_episode=die)
"""


@pytest.mark.process
def test_kill_and_resume_lose_nothing_and_run_nothing_twice(tmp_path: Path) -> None:
    folder = tmp_path / "e"
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    done: list[int] = []
    for _ in range(2):
        dead = subprocess.run([sys.executable, "-c", KILLED, str(folder)], env=environment, cwd=root, check=False)
        assert dead.returncode == -signal.SIGKILL
        done.append((folder / EPISODES).read_bytes().count(b"\n"))
    assert 3 <= done[0] < done[1] < len(SPECS)
    env = ToyEnv(4)
    with EpisodeResultsLog.open(folder, REQUEST, MACHINE) as ledger:
        assert len(ledger.outcomes) == done[1]
        run_missing(env, ToyPolicy(3), interleaved(SPECS), "sample", ledger)
        results = [row.result for row in summarise(ledger.finished).outcomes]
    assert len(env.started) == len(SPECS) - done[1]
    assert results == evaluate(ToyEnv(4), ToyPolicy(3), SPECS, "sample").results


@settings(deadline=None, max_examples=20)
@given(cut=st.integers(1, 60))
def test_a_line_cut_short_runs_again(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("e")
    with EpisodeResultsLog.open(folder, REQUEST, MACHINE) as ledger:
        ledger.add(outcome(0, "a", 0, True, None))
        ledger.add(outcome(1, "a", 1, False, None))
    file = folder / EPISODES
    file.write_bytes(file.read_bytes()[:-cut])
    with EpisodeResultsLog.open(folder, REQUEST, MACHINE) as ledger:
        assert list(ledger.outcomes) == [0]
        ledger.add(outcome(1, "a", 1, False, None))
    with EpisodeResultsLog.open(folder, REQUEST, MACHINE) as ledger:
        assert ledger.outcomes == {0: outcome(0, "a", 0, True, None), 1: outcome(1, "a", 1, False, None)}


def test_a_ledger_refuses_to_count_an_episode_twice(tmp_path: Path) -> None:
    with EpisodeResultsLog.open(tmp_path, REQUEST, MACHINE) as ledger:
        ledger.add(outcome(0, "a", 0, True, None))
        with pytest.raises(ValueError, match="already"):
            ledger.add(outcome(0, "a", 0, True, None))
    file = tmp_path / EPISODES
    file.write_bytes(file.read_bytes() * 2)
    with pytest.raises(UserError, match="episode 0 twice"), EpisodeResultsLog.open(tmp_path, REQUEST, MACHINE):
        pass


def test_a_folder_takes_one_evaluation_on_one_kind_of_machine_by_one_process(tmp_path: Path) -> None:
    with EpisodeResultsLog.open(tmp_path, REQUEST, MACHINE) as ledger:
        ledger.add(outcome(0, "other", 7, True, None))
        with (
            pytest.raises(UserError, match=r"process \d+ is evaluating"),
            EpisodeResultsLog.open(tmp_path, REQUEST, MACHINE),
        ):
            pass
        with pytest.raises(UserError, match="another episode 0"):
            run_missing(ToyEnv(1), ToyPolicy(3), SPECS, "greedy", ledger)
    with (
        pytest.raises(UserError, match="another evaluation"),
        EpisodeResultsLog.open(tmp_path, {"suite": "x"}, MACHINE),
    ):
        pass
    with (
        pytest.raises(UserError, match="renderer none, and here it is egl"),
        EpisodeResultsLog.open(tmp_path, REQUEST, {"renderer": "egl"}),
    ):
        pass
    with pytest.raises(UserError, match="not the folder of an evaluation"):
        read_request(tmp_path / "nothing")


@pytest.mark.parametrize("line", ["{}", "not json", '{"result": 3}'])
def test_a_damaged_ledger_is_one_line(tmp_path: Path, line: str) -> None:
    with EpisodeResultsLog.open(tmp_path, REQUEST, MACHINE):
        pass
    (tmp_path / EPISODES).write_text(line + "\n")
    with pytest.raises(UserError, match="line 1 is damaged"), EpisodeResultsLog.open(tmp_path, REQUEST, MACHINE):
        pass
    (tmp_path / "evaluation.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        read_request(tmp_path)
    (tmp_path / "evaluation.json").unlink()
    with pytest.raises(UserError, match="but no evaluation"), EpisodeResultsLog.open(tmp_path, REQUEST, MACHINE):
        pass


def test_an_output_that_cannot_be_a_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "inner"):
        with pytest.raises(UserError, match="cannot write into"), EpisodeResultsLog.open(folder, REQUEST, MACHINE):
            pass

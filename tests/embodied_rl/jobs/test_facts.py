"""Runs and evaluations are told apart by fields: no wording decides anything. And run.json of before fields is read."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from embodied_rl.config.train import TrainConfig, dump_yaml
from embodied_rl.errors import UserError
from embodied_rl.evaluation.overlap import Overlap
from embodied_rl.jobs.describe import eval_head, eval_words, run_head, run_words
from embodied_rl.jobs.run_info import RUN_INFO, add_session, check_bundles, end_session, is_finished, read_run_info
from embodied_rl.jobs.run_records import read_record
from embodied_rl.jobs.run_tables import show_lines
from embodied_rl.studies.compare import pair_lines, session_changes
from embodied_rl.telemetry.info import EarlierRunInfo, EfficientInfo, RunInfo, SessionEnd
from tests.embodied_rl.rewording import reword
from tests.run_info import ended, eval_info, run_info, simulator_info

CONFIG = TrainConfig(iterations=2)
GOLDEN = Path(__file__).with_name("run_version_1.json")


def write(folder: Path, *sessions: RunInfo) -> Path:
    folder.mkdir()
    (folder / "config.yaml").write_text(dump_yaml(CONFIG))
    (folder / RUN_INFO).write_text(json.dumps([asdict(session) for session in sessions]))
    return folder


@pytest.mark.parametrize("reworded", [False, True])
def test_two_runs_differ_where_their_fields_do_whatever_the_words(
    reworded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reworded:
        reword(monkeypatch)
    one = run_info()
    assert session_changes(one, replace(one, command="another", output="elsewhere")) == []
    for name, other in (
        ("weights", replace(one, policy=replace(one.policy, digest="f" * 16))),
        ("machine", replace(one, machine=replace(one.machine, cores=8))),
        ("device", replace(one, machine=replace(one.machine, device="cuda", gpu="a GPU"))),
        ("versions", replace(one, versions=replace(one.versions, mujoco="4.0.1"))),
        ("renderer", replace(one, simulator=replace(one.simulator, render_quality="exact"))),
        ("simulator", replace(one, simulator=replace(one.simulator, name="native-mujoco 4.0.1"))),
        ("physics version", replace(one, simulator=replace(one.simulator, physics_version="mujoco-3.3"))),
    ):
        assert session_changes(one, other) == [name]
    reason = replace(one.simulator, renderer_reason="as the run began")
    assert session_changes(one, replace(one, simulator=reason)) == [], "why is no difference"
    folder = write(tmp_path / "run", replace(one, end=ended()))
    assert is_finished(folder)
    assert read_record(folder).repeatable
    check_bundles(folder, "tabletop_spatial", "")
    other = write(tmp_path / "other", replace(one, simulator=replace(one.simulator, bundles="a", repeatable=False)))
    assert not read_record(other).repeatable
    with pytest.raises(UserError, match="began on other bundles of libero_goal"):
        check_bundles(other, "libero_goal", "b")


def test_what_is_written_is_read_back_and_ends(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", run_info())
    add_session(folder, run_info(seed=3), resume=True)
    assert read_run_info(folder) == [run_info(), run_info(seed=3)]
    assert not is_finished(folder)
    end_session(folder, 0.0, finished=True, score_before=0.5, score_after=0.75)
    first, last = read_run_info(folder)
    assert first.end is None
    assert last.end is not None
    assert (last.end.finished, last.end.score_before, last.end.score_after) == (True, 0.5, 0.75)
    assert last.end.peak_memory_bytes is not None
    assert last.end.peak_memory_bytes > 2**20


def test_a_run_json_of_before_fields_is_shown_and_goes_on(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", run_info())
    (folder / RUN_INFO).write_text(GOLDEN.read_text())
    (session,) = read_run_info(folder)
    assert isinstance(session, EarlierRunInfo)
    assert session.end == SessionEnd(
        finished=True, score_before=None, score_after=None, seconds=9.4, cpu_seconds=11.7, peak_memory_bytes=1038336000
    )
    shown = "\n".join(show_lines(read_record(folder)))
    assert "policy      openvla, 0.99 M parameters, chunks of 4 steps" in shown
    assert "versions    embodied-rl 0.1.0, mujoco 4.0.0, python 3.11.7" in shown
    assert "memory      1.0 GB at the peak" in shown
    assert "peak_memory_bytes" not in run_words(session, CONFIG)
    new = write(tmp_path / "new", run_info())
    assert f"  versions, machine and weights: not compared, as an earlier version wrote {folder}" in pair_lines(
        read_record(new), read_record(folder)
    )
    add_session(folder, run_info(), resume=True)
    assert [type(session) for session in read_run_info(folder)] == [EarlierRunInfo, RunInfo]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 3}, "is of version 3, and this embodied-rl reads 2: use a newer one"),
        ({"seed": "x"}, "'session.seed' must be a whole number"),
        ({"policy": 3}, "session.policy"),
        ({"end": {"finished": True}}, "lacks"),
        ({"overlap": {"seen": {"a": ["b"]}, "shared": 0, "episodes": 1}}, "overlap.seen"),
        ({"nonsense": 1}, "unknown key"),
    ],
)
def test_a_session_that_is_not_as_written_is_one_line(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "run", run_info())
    (folder / RUN_INFO).write_text(json.dumps([asdict(run_info()) | change]))
    with pytest.raises(UserError) as error:
        read_run_info(folder)
    assert said in str(error.value)
    assert str(folder / RUN_INFO) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_page_has_units_and_the_terminal_only_what_is_unusual() -> None:
    info = run_info(end=ended())
    words = run_words(info, CONFIG)
    assert words["took"] == "1.7 minutes; 1.5 minutes of CPU time"
    assert words["memory"] == "2.6 GB at the peak, of the process that trains"
    assert words["simulator"] == "native-mujoco 4.0.0, 32 envs, 2 threads"
    assert words["renderer"] == "raycast (the scenes are primitives), fast frames, 2 cameras of 64x64"
    usual = "\n".join(run_head(info, CONFIG))
    assert "primitives" not in usual
    for word in ("physics", "assets", "repeats", "overlap", "critic", "perturbed", "reward"):
        assert f"  {word} " not in usual
    unusual = simulator_info(physics_version="mujoco-3.3", stand_in_files=2, repeatable=False)
    lines = "\n".join(run_head(replace(info, simulator=unusual), CONFIG))
    assert "  physics   mujoco-3.3 (published)" in lines
    assert "  assets    APPROXIMATE: 2 official files are stand-ins" in lines
    assert "  repeats   no: " in lines
    assert "  overlap   3 of 50 episodes start" in "\n".join(
        run_head(replace(info, overlap=Overlap({"a": [1]}, 3, 50)), CONFIG)
    )


def test_tasks_with_a_state_say_what_policies_see() -> None:
    state = simulator_info(
        name="gymnasium 1.4.0",
        threads=None,
        renderer="rgb_array",
        renderer_reason=None,
        render_quality=None,
        physics_version=None,
        cameras=0,
        state_dim=3,
        has_success=False,
    )
    words = run_words(run_info(simulator=state), CONFIG)
    assert words["simulator"] == "gymnasium 1.4.0, 32 envs, in this process"
    assert words["renderer"] == "rgb_array, for videos; policies see 3 numbers"
    assert words["scored by"] == "mean return (its tasks have no success flag)"
    assert "physics version" not in words
    images = run_words(run_info(simulator=replace(state, cameras=2)), CONFIG)
    assert images["renderer"] == "rgb_array; policies see 2 cameras of 64x64 and 3 numbers"
    assert "  horizon   150 steps at 20 Hz" in eval_head(eval_info(simulator=state))


def test_an_evaluation_names_only_what_is_unusual() -> None:
    usual = "\n".join(eval_head(eval_info()))
    for word in ("trained", "physics", "premises", "assets", "perturbed", "efficient", "horizon", "repeats"):
        assert f"  {word} " not in usual
    efficient = EfficientInfo(
        dropped_layers=(1,),
        layers=2,
        importance=(0.5, 0.25),
        visual_tokens=32,
        visual_tokens_in_all=32,
        denoise_reuse=1,
    )
    unusual = eval_info(
        trained_suite="tabletop_goal",
        trained_physics_version="mujoco-3.3",
        failing_states=1,
        failing_tasks=1,
        perturb=("light",),
        efficient=efficient,
        deviations=("picture side: 64",),
    )
    said = "\n".join(eval_head(unusual))
    for line in (
        "  protocol  native, but picture side: 64",
        "  trained   on tabletop_goal",
        "  physics   current; the policy was trained under mujoco-3.3",
        "  premises  FAIL in 1 of 4 initial states, of 1 task (see the report)",
        "  perturbed light at level 1",
        "  efficient layers left out: 1 of 0 to 1 (importance 0: 0.500, 1: 0.250)",
    ):
        assert line in said
    assert eval_words(eval_info())["premises"] == "not judged"
    assert eval_words(eval_info(failing_states=0, failing_tasks=0))["premises"] == "hold in every state"

"""The learning curve's points and picture; what a run prints where nobody watches."""

from __future__ import annotations

import io
import math
import re
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba.core import event
from rich.console import Console

from embodied_rl.data.progress import ProgressBar
from embodied_rl.telemetry.curve import Curve, curve_of
from embodied_rl.telemetry.plots import Line, Plot, draw, ticks
from embodied_rl.telemetry.progress import RunProgress, duration, summary
from embodied_rl.utils.console import LastingConsole

ROWS = [
    {"step": 0, "eval/success": 0.5, "eval/success_ci_low": 0.4, "eval/success_ci_high": 0.6},
    {"step": 1, "rollout/episodes": 64.0, "rollout/success": 0.55},
    {"step": 2, "rollout/episodes": 80.0, "rollout/success": 0.75},
    {"step": 2, "eval/success": 0.9, "eval/success_ci_low": 0.8, "eval/success_ci_high": 0.95},
]


def test_points_stand_at_the_episodes_before_them() -> None:
    assert curve_of(ROWS) == Curve([0.0, 144.0], [(0.5, 0.4, 0.6), (0.9, 0.8, 0.95)], [64.0, 144.0], [0.55, 0.75])


def test_a_drawing_has_its_points_where_they_belong() -> None:
    """Read from the SVG: pixels are a linear map of values, higher values are higher, each point says its numbers."""
    lines = [Line("a & b", [(0, 0.25, 0.1, 0.4), (64, 1.0, 0.9, 1.0)]), Line("rollouts", [(32, 0.5)], faint=True)]
    text = str(draw(Plot("success <rate>", lines, rates=True)))
    dots = {t: (float(x), float(y)) for x, y, t in re.findall(r'cx="(\S+)" cy="(\S+)"[^>]*><title>([^<]*)', text)}
    first, last = (
        dots["a &amp; b, 0 episodes: 25.0% (10.0% to 40.0%)"],
        dots["a &amp; b, 64 episodes: 100.0% (90.0% to 100.0%)"],
    )
    middle = dots["rollouts, 32 episodes: 50.0%"]
    assert middle[0] == pytest.approx((first[0] + last[0]) / 2, abs=0.1)
    assert (middle[1] - last[1]) / (first[1] - last[1]) == pytest.approx(0.5 / 0.75, abs=0.01)
    assert f'points="{first[0]:g},{first[1]:g} {last[0]:g},{last[1]:g}"' in text
    assert "success &lt;rate&gt;" in text
    assert text.count("<polygon") == 1
    with pytest.raises(ValueError, match="no point"):
        draw(Plot("empty", [Line("none", [])]))


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.integers(4, 9))
def test_ticks_enclose_the_values_and_are_few_and_round(low: float, width: float, most: int) -> None:
    found = ticks(low, low + width, most)
    step = found[1] - found[0]
    assert found[0] <= low + 0.03 * step
    assert found[-1] >= low + width - 0.03 * step
    assert 2 <= len(found) <= most + 1
    assert round(step / 10 ** math.floor(math.log10(step) + 1e-6), 3) in (1, 2, 5)


def test_plain_lines_where_there_is_no_terminal() -> None:
    out = io.StringIO()
    with RunProgress(4, done=1, console=Console(file=out, width=40)) as progress:
        progress.stage("rollout", 2)
        progress.episode(True)
        progress.episode(False)
        progress.message("[brackets] stay, and long lines are not wrapped at the width of the console")
        progress.iteration(2, {"rollout/success": 0.5, "train/loss": -0.01234, "speed/decisions_per_s": 151.4})
        progress.iteration(4, {"eval/success": 1.0})
    lines = out.getvalue().splitlines()
    assert lines[0] == "[brackets] stay, and long lines are not wrapped at the width of the console"
    assert lines[1].startswith("iteration 2/4  success 50%  loss -0.0123  decisions/s 151  ETA ")
    assert lines[2] == "iteration 4/4  held-out 100%"  # an evaluation may follow: no ETA of 0:00
    assert len(lines) == 3


def test_the_evaluation_before_the_first_update_is_no_part_of_the_eta(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("embodied_rl.telemetry.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    out = io.StringIO()
    with RunProgress(4, console=Console(file=out, width=200)) as progress:
        for name, seconds, done in (("evaluate", 600, 0), ("rollout", 60, 1), ("rollout", 60, 2)):
            progress.stage(name, 2)
            now[0] += seconds
            if done:
                progress.iteration(done, {})
    assert [line[-4:] for line in out.getvalue().splitlines()[1:]] == ["3:00", "2:00"]


def test_a_terminal_shows_success_and_survives_more_episodes_than_planned() -> None:
    out = io.StringIO()
    with RunProgress(2, console=Console(file=out, force_terminal=True, width=120)) as progress:
        progress.stage("rollout", 2)
        for success in (True, True, False):
            progress.episode(success)
        progress.iteration(1, {})
    assert "success 2/3" in out.getvalue()
    assert "3/3" in out.getvalue()


@pytest.mark.parametrize("width", [72, 80, 120])
def test_a_narrow_terminal_cuts_the_note_and_not_the_times(width: int) -> None:
    out = io.StringIO()
    figures = {"rollout/success": 0.5, "eval/success": 0.625, "train/loss": -0.0123, "speed/decisions_per_s": 1514.0}
    with RunProgress(300, console=Console(file=out, force_terminal=True, width=width, color_system=None)) as progress:
        progress.stage("rollout", 1024)
        progress.episode(True)
        progress.iteration(137, figures)
    shown = [line for line in re.split(r"[\r\n]|\x1b\[[0-9;?]*[A-Za-z]", out.getvalue()) if "137/300" in line]
    assert shown
    for line in shown:
        assert re.search(r"137/300 +\d+:\d\d:\d\d ETA \d+:\d\d", line)
        assert "succ" in line
        assert len(line) <= width
    other = ProgressBar(
        Console(file=(also := io.StringIO()), force_terminal=True, width=width, color_system=None), "sft"
    )
    with other:
        other.add_task("", total=5000, completed=1200, note="loss 1.234  1200 ms/step and much more than there is room")
    assert re.search(r"1200/5000 +\d+:\d\d:\d\d ETA -:--:--", also.getvalue())


@pytest.mark.parametrize("stage", ["evaluate", "rollout", "left, tabletop_object, episodes"])
def test_a_log_says_every_half_minute_where_long_episodes_are(stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("embodied_rl.telemetry.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    out = io.StringIO()
    with RunProgress(0, console=Console(file=out, width=80)) as progress:
        progress.stage(stage, 10)
        for episode in range(10):
            now[0] += 12.0
            progress.episode(episode % 2 == 0)
    begun = ["evaluate: 10 episodes"] if stage == "evaluate" else []
    assert out.getvalue().splitlines() == [
        *begun,
        f"{stage}: 3/10  success 2/3",
        f"{stage}: 6/10  success 3/6",
        f"{stage}: 9/10  success 5/9",
    ]


def test_a_log_speaks_before_the_first_episode_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("embodied_rl.telemetry.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("embodied_rl.telemetry.progress._SILENCE_S", 0.01)
    said = threading.Event()

    class Subscriptions(io.StringIO):
        def write(self, text: str) -> int:
            if "0/10" in text:
                said.set()
            return super().write(text)

    with RunProgress(0, console=Console(file=Subscriptions(), width=80)) as progress:
        progress.stage("evaluate", 10)
        now[0] += 1.0
        assert said.wait(60)


def test_a_long_collection_says_every_half_minute_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("embodied_rl.data.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    out = io.StringIO()
    with ProgressBar(Console(file=out, width=80), "collect") as bar:
        task = bar.add_task("", total=5, note="")
        for failed in range(5):
            now[0] += 20.0
            bar.update(task, advance=1, note=f"{failed} failed")
    assert [line for line in out.getvalue().splitlines() if line.startswith("collect: ")] == [
        "collect: 2/5  1 failed",
        "collect: 4/5  3 failed",
    ]


def test_iterations_of_the_critic_alone_say_nothing_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two of 10 s, then some of 60 s: until one of those is done, what is left takes longer than was seen."""
    now = [0.0]
    monkeypatch.setattr("embodied_rl.telemetry.progress.time", SimpleNamespace(monotonic=lambda: now[0]))
    out = io.StringIO()
    with RunProgress(6, console=Console(file=out, width=200), warmup=2) as progress:
        for done, seconds in ((1, 10), (2, 10), (3, 60), (4, 60)):
            progress.stage("rollout", 2)
            now[0] += seconds
            progress.iteration(done, {})
    assert [line.rpartition("ETA ")[2] for line in out.getvalue().splitlines()] == [
        *("over 0:50", "over 0:40", "3:00", "2:00")
    ]


def test_a_terminals_head_is_wrapped_at_words_and_a_logs_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    line = "  policy      openvla, 0.98 M parameters, chunks of 8 steps, on the CPU, in float32, and a critic, new"
    LastingConsole().facts([line])
    assert capsys.readouterr().out == line + "\n"
    LastingConsole(force_terminal=True, width=60).facts([line])
    shown = capsys.readouterr().out.splitlines()
    assert " ".join(" ".join(shown).split()) == " ".join(line.split())
    assert max(map(len, shown)) <= 60
    assert all(row.startswith(" " * 14) and row[14] != " " for row in shown[1:])


def test_an_iteration_that_compiled_says_so_once() -> None:
    out = io.StringIO()
    with RunProgress(2, console=Console(file=out, width=80)) as progress:
        progress.stage("evaluate", 5)
        for _ in range(2):
            event.start_event("numba:compile")
            event.end_event("numba:compile")
        progress.iteration(1, {"rollout/success": 0.5})
        progress.iteration(2, {"rollout/success": 0.5})
    evaluate, compiling, first, second = out.getvalue().splitlines()
    assert evaluate == "evaluate: 5 episodes"
    assert compiling == "compiling, once for this installation: a minute on an idle machine"
    assert "success 50% (compiling)" in first
    assert "compiling" not in second


def test_summary_shows_what_is_there() -> None:
    assert summary({"rollout/success": 0.625}) == "success 62%"
    assert summary({}) == ""


@pytest.mark.parametrize(("seconds", "shown"), [(0.4, "0:00"), (245, "4:05"), (3723, "1:02:03"), (59.6, "1:00")])
def test_duration(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown

"""What `python -m embodied_rl.benchmarks.expert` refuses before it measures anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from embodied_rl.benchmarks.expert import Row, _read, _stamp, _write, main, measure, numbers
from embodied_rl.errors import UserError
from embodied_rl.factory.tasks import load_tasks
from embodied_rl.sim.libero.tasks import LiberoTask
from tests.sim.libero.exported_tasks import install_fake


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--states 9999", "error: --states: libero_goal has no row 9999 of initial states; there are rows 0 to 99\n"),
        ("--states 0,100", "error: --states: libero_goal has no row 100 of initial states; there are rows 0 to 99\n"),
        ("--tasks 7", "error: --tasks: libero_goal has none of these numbers. It has: 0, 1\n"),
    ],
)
def test_numbers_that_nothing_has_are_refused(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path))
    install_fake(tmp_path / "libero")
    monkeypatch.setattr(
        "sys.argv", ["expert", "--suites", "libero_goal", "--physics-version", "current", *words.split()]
    )
    assert main() == 2
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", message)


def test_a_range_without_a_number_is_refused() -> None:
    assert numbers("0-2,7") == (0, 1, 2, 7)
    with pytest.raises(ValueError, match="holds no number"):
        numbers("9-3")


@pytest.mark.parametrize("text", ["{}", '{"stamp": {}, "ro', "[]", '{"stamp": {}, "rows": [{"a": 1}]}'])
def test_another_file_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "expert.json"
    path.write_text(text)
    with pytest.raises(UserError, match="holds no episodes of this bench") as error:
        _read(path, _stamp("current"))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["mujoco", "era", "simulator"])
def test_episodes_of_another_simulator_are_not_continued(tmp_path: Path, key: str) -> None:
    path, stamp = tmp_path / "expert.json", _stamp("current")
    row = Row("libero_goal", 0, "a" * 64, "Do it", 3, 80, True, 1.5)
    _write(path, stamp, [row])
    assert _read(path, stamp) == [row]
    with pytest.raises(UserError, match=f"measured with another {key}; choose another --json"):
        _read(path, {**stamp, key: "other"})


def test_episodes_of_other_bundles_are_not_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path))
    install_fake(tmp_path / "libero")
    path, console = tmp_path / "expert.json", Console(quiet=True)
    task, *_ = load_tasks("libero_goal", era="current")
    assert isinstance(task, LiberoTask)
    row = Row("libero_goal", task.index, task.fingerprint, "Do it", 3, 80, True, 1.5)
    _write(path, _stamp("current"), [row])
    assert measure("libero_goal", "current", [task.index], [3], path, console) == [row], "nothing is left to run"
    _write(path, _stamp("current"), [replace(row, bundle="0" * 64)])
    with pytest.raises(UserError, match="measured on other bundles of libero_goal than are installed"):
        measure("libero_goal", "current", [task.index], [3], path, console)

"""`embodied-rl demo`: a video of the policy, and one line for what cannot be recorded."""

from __future__ import annotations

from pathlib import Path

import av
import pytest

from embodied_rl.cli import main


@pytest.mark.usefixtures("stand_in")
def test_a_video_and_a_gif_of_the_same_episodes(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    film = tmp_path / "new" / "film.mp4"
    words = ["demo", "--checkpoint", str(checkpoint), "--episodes", "2", "--gif", "--out", str(film)]
    assert main([*words, "--suite", "tabletop_object"]) == 0
    said = capsys.readouterr().out
    assert f"of 2 episodes succeeded; video: {film}" in said
    assert said.count("  pick up the") == 2
    with av.open(str(film)) as video, av.open(str(film.with_suffix(".gif"))) as gif:
        frames, pictures = (sum(1 for _ in file.decode(video=0)) for file in (video, gif))
    assert frames == 2 * (17 + 12)  # 16 steps and the start, then 0.6 s of the last picture at 20 Hz
    assert pictures == frames // 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--episodes 0", "--episodes must lie in 1 to 100, got 0."),
        ("--out film.gif", "a video's name ends in .mp4"),
        ("--out /proc/x/film.mp4", "cannot write into /proc/x"),
        ("--out folder.mp4", "--out: cannot write folder.mp4: Is a directory"),
        ("--suite tabletop_gaol", "Did you mean 'tabletop_goal'?"),
        ("--tasks no_such", "has no task 'no_such'"),
    ],
)
def test_bad_input_is_one_line(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.mp4").mkdir()
    assert main(["demo", *words.split()]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1

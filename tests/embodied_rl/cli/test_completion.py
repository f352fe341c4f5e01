"""`embodied-rl --print-completion SHELL` in a real bash, and what it holds for the others."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from embodied_rl.cli import COMMANDS, main
from embodied_rl.cli.completion import SHELLS
from embodied_rl.cli.parse import flags
from embodied_rl.cli.select import select

COMPLETE = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
$(complete -p embodied-rl | sed 's/.*-F \\([^ ]*\\) .*/\\1/')
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.process
def test_bash_completes_commands_actions_options_and_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-completion", "bash"]) == 0
    script = tmp_path / "completion.bash"
    script.write_text(capsys.readouterr().out)

    def after(*words: str) -> set[str]:
        command = ["bash", "-c", COMPLETE, "bash", str(script), "embodied-rl", *words]
        return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())

    assert after("") >= set(COMMANDS)
    assert after("tr") == {"train"}
    assert after("runs", "re") == {"rerun"}
    assert after("runs", "rerun", "--o") == {"--output"}
    assert after("train", "tab") == {"tabletop"}
    assert after("train", "tabletop", "--learner.lr-") == {"--learner.lr-warmup-updates", "--learner.lr-decay-updates"}
    assert after("train", "tabletop", "--algorithm", "") == {"grpo", "imitate", "ppo", "steer"}
    assert after("train", "--algorithm.group-s") == {"--algorithm.group-size"}
    assert after("eval", "--env.renderer", "eg") == {"egl"}
    assert "-o default" in script.read_text(), "folders and files, where there is no word"


@pytest.mark.parametrize("shell", SHELLS)
def test_every_option_of_train_is_there(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-completion", shell]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)
    for words in (
        ["tabletop"],
        ["tabletop", "--algorithm", "grpo", "--scheduler", "ray"],
        ["tabletop", "--policy", "pi0"],
    ):
        assert [flag for flag in flags(select(words).config) if flag.lstrip("-") not in text] == []


@pytest.mark.parametrize(("words", "said"), [([], "name a shell"), (["bsh"], "Did you mean 'bash'?")])
def test_another_shell_is_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--print-completion", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert all(shell in line for shell in SHELLS)

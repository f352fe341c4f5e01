"""The command line: help, exit codes, one clear line for bad input, and nothing heavy before it is needed."""

from __future__ import annotations

import contextlib
import errno
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embodied_rl.algorithms.config import GRPOConfig, PPOConfig
from embodied_rl.cli import COMMANDS, main, reference
from embodied_rl.cli.help import options
from embodied_rl.cli.parse import parse
from embodied_rl.cli.select import select
from embodied_rl.config.train import TrainConfig
from embodied_rl.errors import UserError
from embodied_rl.sim import tabletop
from embodied_rl.sim.tabletop import problems
from embodied_rl.version import __version__

HEAVY = ("torch", "mujoco", "numba", "transformers", "numpy", "tyro", "rich", "pyarrow", "av", "cv2", "matplotlib")


def loaded_by(code: str) -> set[str]:
    program = f"import sys\n{code}\nprint(*(m for m in {HEAVY!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.process
def test_help_imports_nothing_heavy() -> None:
    assert loaded_by("from embodied_rl.cli import main; assert main(['--help']) == 0") == set()


@pytest.mark.process
def test_a_typing_error_in_train_does_not_wait_for_torch() -> None:
    code = "from embodied_rl.cli import main; assert main(['train', 'libero', '--sed', '3']) == 2"
    assert not loaded_by(code) & {"torch", "mujoco", "numba", "transformers", "matplotlib"}


def test_help_names_every_command_and_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name, summary in COMMANDS.items():
        assert f"  {name} " in shown
        assert summary in shown
    assert shown.count("\n  embodied-rl train ") == 5


def test_every_command_exists() -> None:
    for name in COMMANDS:
        assert callable(importlib.import_module(f"embodied_rl.cli.{name}").main)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    assert f"usage: embodied-rl {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("train tabletop --learner.lr abc", "train tabletop: --learner.lr takes a number, got 'abc'"),
        ("train tabletop --iterations 1.5 --seed 1", "train tabletop: --iterations takes a whole number, got '1.5'"),
        ("train tabletop --learner.betas x y", "train tabletop: --learner.betas takes 2 numbers, got 'x y'"),
        ("sft demos --out y --lr=abc", "sft: --lr takes a number, got 'abc'"),
        ("sft demos --fps abc --out y", "sft: --fps takes a number, got 'abc'"),
        ("eval tabletop --states_per_task ten", "eval tabletop: --states-per-task takes a whole number, got 'ten'"),
    ],
)
def test_a_word_that_is_no_number_is_said_with_its_option(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    assert capsys.readouterr().err == f"embodied-rl: error: embodied-rl {said}\n"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == __version__ + "\n"


def test_no_command_shows_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: embodied-rl" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("trian", "unknown command 'trian'. Did you mean 'train'?"),
        ("train", "train needs a benchmark (libero, tabletop, gymnasium"),
        ("train libre", "unknown benchmark 'libre'. Did you mean 'libero'?"),
        ("train libero --policy openvlla", "unknown policy 'openvlla'. Did you mean 'openvla'?"),
        ("train tabletop --policy mlp", "--policy mlp learns in suites of tasks with a state (gymnasium, "),
        ("train fetch --task FetchReachDense-v4 --policy openvla", "sees images, and fetch has a state"),
        ("train metaworld --task reach-v3 --algorithm grpo", "--algorithm grpo is not offered for mlp"),
        ("train gymnasium --task embodied_rl/tabletop_goal-v0", "shows images: embodied-rl train tabletop"),
        ("train metaworld --task reach-v3 --env.num-threads 2", "--env.num-threads does not apply to envpool (it"),
        ("train --recipe metaworld_mlp_ppo --task reach-v3 --env.num-threads 2", "does not apply to envpool (it"),
        ("eval gymnasium --checkpoint x --env.num-threads 2", "--env.num-threads does not apply to gymnasium (it"),
        ("train tabletop --env warp --env.num-threads 2", "--env.num-threads does not apply to warp (it"),
        ("eval tabletop --env warp --env.num-threads 2", "--env.num-threads does not apply to warp (it"),
        ("train tabletop --env.simulator warp", "--env.simulator is --env now: write --env warp"),
        ("eval tabletop --env.simulator warp", "--env.simulator is --env now: write --env warp"),
        ("train tabletop --env wrap", "unknown env 'wrap'. Did you mean 'warp'?"),
        ("eval tabletop --env wrap", "--env takes a simulator, got 'wrap'. Did you mean 'warp'?"),
        ("train tabletop --env maniskill", "runs in simulator mujoco or warp, not maniskill: choose it by --env"),
        ("eval gymnasium --env warp --checkpoint x", "runs in simulator gymnasium, not warp: choose it by --env"),
        ("plan metaworld --task reach-v3", "metaworld needs none: embodied-rl train metaworld"),
        ("eval tabletop --env.reward staged", "--env.reward: an evaluation counts success; leave it out"),
        (
            "eval tabletop --env.control-mode libero",
            "--env.control-mode does not apply to mujoco (it belongs to maniskill)",
        ),
        ("train tabletop --protocol openvlaa", "unknown protocol 'openvlaa'. Did you mean 'openvla'?"),
        ("train libero --algorithm gpro", "unknown algorithm 'gpro'. Did you mean 'grpo'?"),
        ("train libero --suite libero_spatial", "LIBERO's official assets are not installed"),
        ("train tabletop --suite tabletop_spatail", "suite 'tabletop_spatail'. Did you mean 'tabletop_spatial'?"),
        ("train --recipe tabletop_openvla_ppo --suite goal", "Did you mean 'tabletop_goal' or 'libero_goal'?"),
        ("train tabletop --tasks no_such_task", "suite 'tabletop_spatial' has no task 'no_such_task'."),
        ("train tabletop --sed 3", "unknown option '--sed'. Did you mean '--seed'?"),
        ("train tabletop --num-envs 3", "unknown option '--num-envs'. Did you mean '--env.num-envs'?"),
        ("train tabletop --name x", "unknown option '--name'. --help lists the options."),
        ("train tabletop --seed three", "--seed"),
        ("train tabletop --seed", "Missing value for argument '--seed'"),
        ("train tabletop --algorithm", "--algorithm needs a value"),
        ("train tabletop --algorithm --seed 3", "--algorithm needs a value"),
        ("train tabletop --perturb --seed 3", "--perturb needs a value, or several"),
        ("train tabletop --tasks", "--tasks needs a value, or several"),
        ("eval tabletop --perturb", "--perturb needs a value, or several"),
        (
            "train tabletop --algorithm ppo --algorithm.group-size 4",
            "--algorithm.group-size does not apply to ppo (it belongs to grpo)",
        ),
        (
            "train tabletop --algorithm grpo --algorithm.no-bootstrap-truncated",
            "--algorithm.no-bootstrap-truncated does not apply to grpo (it belongs to ppo)",
        ),
        (
            "train tabletop --algorithm grpo --algorithm.group-size 7 --rollout.episodes-per-iteration 64",
            "use 63 or 70 episodes",
        ),
        (
            "train tabletop --env.renderer vulkan",
            "Expected one of ('auto', 'egl', 'osmesa', 'raycast', 'raster', 'warp'",
        ),
        ("train tabletop --policy.checkpoint /no/such/folder", "no checkpoint at /no/such/folder"),
        ("train tabletop --output .", ". exists already: choose another --output"),
        ("train --resume /no/such/run", "/no/such/run is not the folder of a run"),
        ("train libero --resume /no/such/run", "'libero' does not apply"),
        ("train --resume /no/such/run --seed 3", "'--seed' does not apply"),
        ("train tabletop --config /no/such.yaml", "cannot read /no/such.yaml"),
        ("train tabletop extra", "Unrecognized options: extra"),
        ("bench smi", "unknown bench 'smi'. Did you mean 'sim'?"),
        ("bench sim --json /no/such/folder/f.json", "--json: cannot write /no/such/folder/f.json: No such file"),
        ("eval --suite tabletop_gaol", "unknown suite 'tabletop_gaol' of tabletop. Did you mean 'goal'?"),
        ("eval --states-per-task 0", "--states-per-task must be at least 1"),
        ("eval --states-per-task 51", "has 50"),
        ("eval --checkpoint /no/such/folder", "/no/such/folder"),
        ("eval --json .", "--json: cannot write .: Is a directory"),
        ("eval --center-crop 2", "--center-crop must lie in (0, 1], got 2.0."),
        ("eval --device cuda:0", "CUDA_VISIBLE_DEVICES=1 and --device cuda"),
        ("eval --seed 18446744073709551616", "--seed must lie in -2^63 to 2^63 - 1."),
        ("eval --perturb-level nan", "--perturb-level must be a finite number"),
        ("eval --tokenizer /no/such/tokenizer.json", "no tokenizer at /no/such/tokenizer.json"),
        ("train tabletop --seed 18446744073709551616", "--seed must lie in"),
        ("train tabletop --device cuda:0", "CUDA_VISIBLE_DEVICES=1"),
        ("train tabletop --trace .", "--trace: cannot write .: Is a directory"),
        ("train tabletop --track wandb", "pip install 'embodied-rl[wandb]'"),
        ("train tabletop --track trackio", "pip install 'embodied-rl[trackio]'"),
        ("train tabletop --output /proc/x", "cannot write into /proc/x: No such file or directory; choose another"),
        (f"train tabletop --output {'x' * 3000}", "File name too long; choose another --output"),
        (f"eval --checkpoint {'x' * 3000}", "File name too long"),
        ("plan --json .", "--json: cannot write .: Is a directory"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    words: str, message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "40")
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("embodied-rl: error: ")
    assert message in said
    assert said.count("\n") == 1
    assert "│" not in said


def test_an_unknown_gl_backend_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "foo")
    assert main(["doctor"]) == 2
    said = capsys.readouterr().err
    assert "MUJOCO_GL=foo: MuJoCo knows no such backend" in said
    assert said.count("\n") == 1


def test_a_long_message_is_cut_to_one_short_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(argv: list[str]) -> int:
        raise UserError("a checkpoint does not fit: " + "; ".join(f"layer {i}\nis missing" for i in range(5000)))

    monkeypatch.setattr(importlib.import_module("embodied_rl.cli.bench"), "main", refuse)
    assert main(["bench", "sim"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("embodied-rl: error: a checkpoint does not fit: layer 0 is missing; layer 1")
    assert said.count("\n") == 1
    assert len(said) < 650


def test_names_to_choose_from_are_one_a_line_and_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["collect", "tabletop", "--task", "3", "--out", "d"]) == 2
    first, *names = capsys.readouterr().err.splitlines()
    assert first == "embodied-rl: error: suite 'tabletop' has no task '3'. Give one of these names:"
    assert [name.strip() for name in names] == [short for suite in tabletop.suites() for short in problems(suite)]
    assert main(["collect", "tabletop", "--task", "turn_on_stove", "--out", "d"]) == 2
    assert capsys.readouterr().err.endswith("has no task 'turn_on_stove'. Did you mean 'turn_on_the_stove'?\n")


def test_version_says_when_another_mujoco_is_installed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embodied_rl.version.metadata.version", lambda name: "4.0.7")
    assert main(["--version"]) == 0
    assert "mujoco 4.0.7 is installed; results were tested with 4.0.0" in capsys.readouterr().out


WORDS = st.one_of(
    st.text(max_size=20),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["", "None", "9" * 5000, "-1", "1e400", "[bold]", "../..", "\x00", "\udcff", "True", "'"]),
)


@settings(max_examples=150)
@given(data=st.data())
def test_hostile_values_are_one_line(data: st.DataObject) -> None:
    """Any value of any option is taken, or refused in one line; nothing else is raised."""
    name = data.draw(st.sampled_from(["tabletop", *reference.CLASSES]))
    source: Any = TrainConfig() if name == "tabletop" else reference.options_class(name)
    rows = [row.name for _, _, group in options(source) for row in group]
    words = [word for _ in range(2) for word in (f"--{data.draw(st.sampled_from(rows))}", data.draw(WORDS))]
    with contextlib.suppress(UserError, SystemExit):  # the latter after a word that happens to be -h
        if name == "tabletop":
            select([name, *words])
        else:
            parse(source, words, name)


def test_interruption_says_what_was_saved(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(argv: list[str]) -> int:
        raise KeyboardInterrupt("saved X; continue with: Y")

    monkeypatch.setattr(importlib.import_module("embodied_rl.cli.bench"), "main", stop)
    assert main(["bench", "sim"]) == 130
    assert capsys.readouterr().err == "embodied-rl: saved X; continue with: Y\n"


def test_a_full_disk_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(argv: list[str]) -> int:
        raise OSError(code, "reason", "runs/x/metrics.jsonl")

    monkeypatch.setattr(importlib.import_module("embodied_rl.cli.bench"), "main", fill)
    code = errno.ENOSPC
    assert main(["bench", "sim"]) == 2
    assert "the disk is full (runs/x/metrics.jsonl)" in capsys.readouterr().err
    code = errno.EIO
    with pytest.raises(OSError, match="reason"):
        main(["bench", "sim"])


@pytest.mark.process
def test_a_closed_pipe_is_no_traceback() -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m embodied_rl train tabletop --help | head -1"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "usage" in done.stdout
    assert "Traceback" not in done.stderr


def test_preset_then_file_then_words(tmp_path: object) -> None:
    path = f"{tmp_path}/c.yaml"
    with open(path, "w") as file:
        file.write("seed: 5\niterations: 9\nalgorithm:\n  name: ppo\n  gamma: 0.5\n")
    config = select(["tabletop", "--config", path, "--seed=6", "--env.num_envs", "3"]).config
    assert config is not None
    assert (config.seed, config.iterations, config.env.num_envs) == (6, 9, 3)
    assert isinstance(config.algorithm, PPOConfig)
    assert config.algorithm.gamma == 0.5
    with pytest.raises(UserError, match="is for algorithm ppo, not grpo"):
        select(["tabletop", "--config", path, "--algorithm", "grpo"])


def test_values_of_every_type_arrive() -> None:
    words = "tabletop --tasks a b --algorithm grpo --algorithm.success-rate-range 0.2 0.7 --num-threads None"
    words += " --learner.lr 1e-5 --evaluation.mode sample"
    config = select(words.split()).config
    assert config is not None
    assert config.tasks == ("a", "b")
    assert isinstance(config.algorithm, GRPOConfig)
    assert config.algorithm.success_rate_range == (0.2, 0.7)
    assert config.num_threads is None
    assert config.learner.lr == 1e-5
    assert config.evaluation.mode == "sample"


def test_a_recipe_is_chosen_by_name_or_by_what_it_is_made_of() -> None:
    by_name = select(["--recipe", "tabletop_pi0_grpo", "--seed", "3"]).config
    assert by_name == select(["tabletop", "--policy", "pi0", "--algorithm", "grpo", "--seed", "3"]).config


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--recipe tabletop_pi0_gpro", "Did you mean 'tabletop_pi0_grpo'"),
        ("tabletop --recipe tabletop_pi0_grpo", "leave tabletop out"),
        ("--recipe tabletop_pi0_grpo --policy openvla", "leave --policy out"),
    ],
)
def test_a_recipe_stands_alone(words: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        select(words.split())

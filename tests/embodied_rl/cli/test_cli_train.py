"""`train` and `eval` from the command to the report, with the real policy and a stand-in for the simulator."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from embodied_rl.cli import main
from embodied_rl.config.train import load_yaml
from embodied_rl.errors import UserError
from embodied_rl.telemetry.metrics import read_metrics
from embodied_rl.utils.lock import LOCK, locked
from tests.embodied_rl.rewording import reword
from tests.embodied_rl.stand_in import untimed, words


@pytest.mark.usefixtures("stand_in")
def test_a_run_leaves_everything_in_its_folder(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(words(checkpoint, run, "--track", "tensorboard")) == 0
    said = capsys.readouterr().out
    for fact in (
        "tabletop_object",
        "stand-in 1",
        "flat, ",
        "0.99 M",
        str(checkpoint),
        "sha256",
        "grpo",
        "seed",
        str(run),
    ):
        assert fact in said
    assert "LIBERO" not in said

    config = load_yaml(run / "config.yaml")
    assert config.iterations == 2
    resolved = yaml.safe_load((run / "config.yaml").read_text())
    assert resolved["device"] in ("cpu", "cuda")
    assert resolved["env"]["renderer"] != "auto"
    assert None not in (resolved["num_threads"], resolved["env"]["num_threads"])

    rows = read_metrics(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 2, 2]
    assert all("speed/decisions_per_s" in row for row in rows[1:3])
    (info,) = json.loads((run / "run.json").read_text())
    assert info["command"].startswith("embodied-rl train tabletop --suite tabletop_object")
    assert sorted(path.name for path in (run / "evaluations").iterdir()) == ["iter-000000.json", "iter-000002.json"]
    assert len(list((run / "videos").iterdir())) == 2
    assert shown_in_tensorboard(run) == ([0, 2], [2])
    page = (run / "report.html").read_text()
    assert page.count("data:video/mp4") == 2
    assert "stand-in 1" in page
    assert "not yet" not in page
    assert 'aria-label="Success"' in page
    assert "Training run, finished" in page


def shown_in_tensorboard(run: Path) -> tuple[list[int], list[int]]:
    """After how many updates it has the one video, and the report."""
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    (name,) = events.Tags()["images"]
    assert (run / f"{name}-before.mp4").is_file()
    return [image.step for image in events.Images(name)], [text.step for text in events.Tensors("report/text_summary")]


@pytest.mark.usefixtures("stand_in")
def test_stopped_and_resumed_equals_unbroken(
    checkpoint: Path,
    finished: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broken = tmp_path / "broken"

    from embodied_rl.telemetry.observer import RunObserver

    kept, pages = RunObserver.metrics, []

    def stop_after_the_first(self: RunObserver, iteration: int, values: dict[str, float]) -> None:
        kept(self, iteration, values)
        pages.append((broken / "report.html").read_text())
        if iteration == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(RunObserver, "metrics", stop_after_the_first)
    assert main(words(checkpoint, broken, "--videos", "0")) == 130
    assert f"embodied-rl train --resume {broken}" in capsys.readouterr().err
    assert "Training run, 0 of 2 updates so far" in pages[0]
    stopped = (broken / "report.html").read_text()
    assert "Training run, 1 of 2 updates so far" in stopped
    assert "not yet" in stopped

    monkeypatch.setattr(RunObserver, "metrics", kept)
    reword(monkeypatch)  # no sentence decides whether it may go on
    assert main(["train", "--resume", str(broken)]) == 0
    assert untimed(broken) == untimed(finished)
    assert policy_of(broken).read_bytes() == policy_of(finished).read_bytes()
    began, resumed = json.loads((broken / "run.json").read_text())
    assert began["simulator"]["renderer_reason"] != resumed["simulator"]["renderer_reason"] == "as the run began"
    assert began["policy"]["compiled"] is resumed["policy"]["compiled"] is False


@pytest.mark.usefixtures("stand_in")
def test_a_finished_run_goes_on_for_longer(
    checkpoint: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One iteration and then a second is a run of two; the config says so. Fewer than it had is refused."""
    longer = tmp_path / "longer"
    assert main(words(checkpoint, longer, "--videos", "0", "--iterations", "1")) == 0
    before = load_yaml(longer / "config.yaml")
    for count, said in (("0", "is a run of 1 iteration; give as many or more"), ("two", "does not apply")):
        assert main(["train", "--resume", str(longer), "--iterations", count]) == 2
        assert said in capsys.readouterr().err
    assert load_yaml(longer / "config.yaml") == before
    assert main(["train", "--resume", str(longer), "--iterations", "2"]) == 0
    config = load_yaml(longer / "config.yaml")
    assert (config.iterations, replace(config, iterations=1)) == (2, before)
    assert policy_of(longer).read_bytes() == policy_of(finished).read_bytes()


class Killed(BaseException):
    """In place of SIGKILL, where a test goes on in the same process."""


def policy_of(run: Path, iteration: int = 2) -> Path:
    return run / "checkpoints" / f"iter-{iteration:06d}" / "policy" / "model.safetensors"


def test_a_start_that_was_killed_before_its_config_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for left, advice in (
        ({".lock": ""}, "give the command again that began it\n"),
        ({"run.json": json.dumps([{"command": "embodied-rl train tabletop --seed 3"}])}, "train tabletop --seed 3\n"),
    ):
        for name, text in left.items():
            (run / name).write_text(text)
        assert main(["train", "--resume", str(run)]) == 2
        said = capsys.readouterr().err
        assert f"{run} was stopped before its first update, and has nothing to go on from" in said
        assert said.endswith(advice)
    (run / "notes.txt").write_text("mine")
    assert main(["train", "--resume", str(run)]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("cause", ["kill", "full disk"])
def test_a_run_that_ended_before_its_first_checkpoint_begins_again(
    checkpoint: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: str
) -> None:
    """Also from another working folder, with a checkpoint that was named relative to the first."""
    from embodied_rl.learner.checkpoint import Checkpoints

    run = tmp_path / "run"

    def end(*arguments: object) -> Path:
        (run / "checkpoints" / ".partial-iter-000001").mkdir(parents=True)
        if cause == "kill":
            raise Killed
        raise UserError("cannot write checkpoint (No space left on device)")

    monkeypatch.chdir(checkpoint.parent)
    command = words(Path(checkpoint.name), run, "--videos", "0")
    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", end)
        if cause == "kill":
            with pytest.raises(Killed):
                main(command)
        else:
            assert main(command) == 2
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--resume", str(run)]) == 0
    assert untimed(run) == untimed(finished)
    assert policy_of(run).read_bytes() == policy_of(finished).read_bytes()
    assert [path.name for path in (run / "checkpoints").iterdir() if path.name.startswith(".")] == []


@pytest.mark.usefixtures("stand_in")
def test_the_advice_about_a_damaged_checkpoint_can_be_followed(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "my run"
    shutil.copytree(finished, run)
    policy_of(run).write_bytes(policy_of(run).read_bytes()[:-8])
    assert main(["train", "--resume", str(run)]) == 2
    advice = capsys.readouterr().err
    assert "is corrupt" in advice
    assert advice.count("\n") == 1
    options = shlex.split(advice[advice.index("--resume") : advice.index(" (there is")])
    assert options == ["--resume", str(run), "--from", "iter-000001"]
    assert main(["train", "--resume", str(run), "--from", "iter-000003"]) == 2
    assert main(["train", *options]) == 0
    assert untimed(run) == untimed(finished)
    assert policy_of(run).read_bytes() == policy_of(finished).read_bytes()


def test_a_finished_run_says_so(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is opened or run: there is no stand-in here."""
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "report.html").unlink()  # as if a kill had come just before
    for more in ([], ["--iterations", "2"]):
        assert main(["train", "--resume", str(run), *more]) == 0
        said = capsys.readouterr().out
        assert "is finished: it has its 2 iterations" in said
        assert f"--resume {run} --iterations" in said
    assert (run / "report.html").is_file()
    assert (run / "metrics.jsonl").read_bytes() == (finished / "metrics.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        (
            "config.yaml",
            "lr: 0.0003",
            "lr: 0.002",
            "was edited since the checkpoint: learner.lr was 0.0003 and is 0.002",
        ),
        ("config.yaml", "  lr: 0.0003\n", "", "lacks learner.lr"),
        ("config.yaml", "learner:", "learner: [", "not valid YAML"),
        ("checkpoints/latest", "iter", "../../iter", "must name a checkpoint beside it"),
        ("checkpoints/iter-000002/state.json", "next_group", "next", "state.json changed"),
        ("checkpoints/iter-000002/state.json", "{", "", "state.json is damaged"),
        ("metrics.jsonl", "}", "", "line 1 is not JSON"),
        ("run.json", "[", "", "run.json is damaged"),
    ],
)
def test_a_damaged_or_edited_file_is_one_line_and_nothing_changes(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, old: str, new: str, said: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    text = (run / file).read_text()
    assert old in text
    (run / file).write_text(text.replace(old, new, 1))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    assert main(["train", "--resume", str(run), "--iterations", "2"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_a_run_in_use_is_not_resumed(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with locked(finished / LOCK, "x"):
        assert main(["train", "--resume", str(finished)]) == 2
    assert f"process {os.getpid()} is training in {finished} already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["tabletop", "--from", "iter-000001"], "give --resume DIR too"),
        (["--resume", "x", "--from"], "--from needs a value"),
        (["--resume", "x", "--from", "y", "--policy", "pi0"], "'--policy' does not apply"),
    ],
)
def test_from_belongs_to_resume(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *argv]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.usefixtures("stand_in")
def test_libero_without_assets_says_so_in_two_lines(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path))
    arguments = words(checkpoint, tmp_path / "run", "--iterations", "1", "--videos", "0")
    assert main(["train", "libero", *arguments[2:]]) == 0
    first, second = capsys.readouterr().out.splitlines()[:2]
    assert first.startswith(f"LIBERO's official assets are not installed in {tmp_path}")
    assert second.startswith("Training the built-in suite tabletop_object instead")


def test_an_unknown_suite_is_refused_before_it_is_said_to_be_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBODIED_RL_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["train", "libero", "--suite", "libero_spatail"]) == 2
    said = capsys.readouterr()
    assert "unknown suite 'libero_spatail'. Did you mean 'libero_spatial'?" in said.err
    assert said.out == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("stand_in")
def test_ppo_uses_its_critic(checkpoint: Path, tmp_path: Path) -> None:
    arguments = words(checkpoint, tmp_path / "run", "--algorithm", "ppo", "--videos", "0", "--iterations", "1")
    for name in ("--algorithm", "--algorithm.group-size", "--algorithm.success-rate-range"):
        at = arguments.index(name)
        del arguments[at : at + 2]
    assert main(arguments) == 0
    assert "train/value_loss" in read_metrics(tmp_path / "run" / "metrics.jsonl")[1]


@pytest.mark.usefixtures("stand_in")
def test_eval_of_a_run_writes_what_it_shows(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "e.json"
    command = ["eval", "--checkpoint", str(checkpoint), "--suite", "tabletop_object", "--states-per-task", "3"]
    assert main([*command, "--json", str(file), "--env.num-envs", "4"]) == 0
    found = json.loads(file.read_text())
    overall = found["overall"]["once"]
    said = capsys.readouterr().out
    assert f"{overall['successes']}/{overall['episodes']}" in said
    assert overall["episodes"] == 3 * len(found["tasks"]) == len(found["episodes"])
    assert found["overall"]["at_end"] is None
    assert "success at end" not in said
    simulator = found["simulator"]
    assert (simulator["num_envs"], simulator["threads"]) == (4, len(os.sched_getaffinity(0)))
    assert simulator["processes"] is None
    assert found["command"].startswith("embodied-rl eval --checkpoint")


@pytest.mark.usefixtures("stand_in")
def test_a_quick_look_finds_what_a_benchmark_finds_and_leaves_nothing(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    few = ["--checkpoint", str(checkpoint), "--states-per-task", "2", "--env.num-envs", "4", "--json", "figures.json"]
    assert main(["eval", "--suite", "tabletop_object", *few]) == 0
    quick = json.loads(Path("figures.json").read_text())
    assert {path.name for path in tmp_path.rglob("*")} == {"temporary", "figures.json"}
    assert main(["eval", "tabletop", "--suite", "object", "--no-at-end", "--videos", "0", "--output", "e", *few]) == 0
    whole = json.loads(Path("figures.json").read_text())
    assert quick["episodes"] == whole["episodes"]
    assert quick["output"] is None


@pytest.mark.usefixtures("stand_in")
def test_what_train_prints_is_a_checkpoint(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a finished run that is resumed says that it is."""
    run = tmp_path / "[odd] name"
    assert main(words(checkpoint, run, "--videos", "0", "--iterations", "1")) == 0
    said = capsys.readouterr().out
    assert f"policy: {run / 'checkpoints'}; to evaluate it:\n  embodied-rl eval --checkpoint '{run}'\n" in said
    head = said.splitlines()[:7]
    assert [line.split()[0] for line in head[:6]] == ["suite", "policy", "algorithm", "simulator", "device", "output"]
    assert head[6].startswith("evaluate:")
    assert all(len(line) <= 80 for line in said.splitlines() if line[:1] in "│┃┏┡└├")
    quick = ["--suite", "tabletop_object", "--states-per-task", "1"]
    assert main(["eval", "--checkpoint", str(run / "checkpoints"), *quick]) == 0
    capsys.readouterr()
    assert main(["train", "--resume", str(run)]) == 0
    assert f"is finished: it has its 1 iteration. To go on for longer: embodied-rl train --resume '{run}'" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("name", ["learner.lr", "learner.max-grad-norm", "algorithm.entropy-coef"])
def test_numbers_that_are_not_finite_are_refused(name: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "tabletop", f"--{name}={value}"]) == 2
    said = capsys.readouterr().err
    assert name.replace("-", "_") in said.replace("-", "_")
    assert said.count("\n") == 1


def test_a_pipelined_run_has_minibatches_of_groups_without_being_told() -> None:
    from embodied_rl.cli.select import select

    for algorithm, groups in (("ppo", 16), ("grpo", 2)):
        config = select(["tabletop", "--algorithm", algorithm, "--scheduler", "pipelined"]).config
        assert config is not None
        assert (config.learner.minibatch_size, config.learner.minibatch_groups) == (None, groups)

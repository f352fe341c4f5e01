"""`train` under other schedulers than the serial one, from the command to the report."""

from __future__ import annotations

import dataclasses
import gc
import json
import multiprocessing
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from embodied_rl.autotune import trials, tune
from embodied_rl.cli import main
from embodied_rl.config.env import MujocoConfig
from embodied_rl.config.train import TrainConfig, load_yaml
from embodied_rl.factory import run_config
from embodied_rl.factory.tasks import load_tasks
from embodied_rl.scheduler.config import PipelinedConfig, SerialConfig
from embodied_rl.sim.render import Choice
from embodied_rl.telemetry.metrics import read_metrics
from tests.embodied_rl.stand_in import untimed, words


@pytest.mark.usefixtures("stand_in")
def test_a_pipelined_run_shows_its_timeline(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, trace = tmp_path / "run", tmp_path / "trace.json"
    pipelined = [
        "--scheduler",
        "pipelined",
        "--scheduler.env-groups",
        "2",
        "--learner.minibatch-size",
        "None",
        "--learner.minibatch-groups",
        "1",
        "--videos",
        "0",
        "--trace",
        str(trace),
    ]
    assert main(words(checkpoint, run, *pipelined)) == 0
    said = capsys.readouterr().out
    assert "busy: " in said
    assert "pipelined, on_policy, 2 env groups" in said
    assert (run / "timeline.svg").read_text().startswith("<svg")
    page = (run / "report.html").read_text()
    assert "Who worked when" in page
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"act", "simulate", "render", "learn", "update"} <= names
    for row in read_metrics(run / "metrics.jsonl")[1:3]:
        assert 0 < row["busy/act"] <= 1
        assert row["queue/act"] > 0


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"scheduler": SerialConfig()}, (6, 6, None)),
        ({"scheduler": PipelinedConfig()}, (6, 6, 1)),
        ({"scheduler": PipelinedConfig(act_device="cuda")}, (6, 6, 2)),
        ({"scheduler": PipelinedConfig(act_device="cuda"), "env": MujocoConfig(num_envs=1, num_threads=5)}, (6, 5, 1)),
        ({"scheduler": PipelinedConfig(env_groups=7), "num_threads": 1}, (1, 6, 7)),
    ],
)
def test_threads_and_stages_that_were_left_open_are_filled_in(
    options: dict[str, Any], expected: tuple[int, int, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All cores for each part, and two stages if the policy acts elsewhere than the simulator."""
    monkeypatch.setattr(run_config, "cpu_count", lambda: 6)
    tasks = load_tasks("tabletop_spatial", ())
    found = run_config.resolve(TrainConfig(device="cpu", **options), Choice("raycast", "asked for"), tasks)
    stages = found.scheduler.env_groups if isinstance(found.scheduler, PipelinedConfig) else None
    assert (found.num_threads, found.env.threads, stages) == expected


@pytest.mark.usefixtures("stand_in")
def test_a_tuned_run_is_the_run_that_its_config_gives(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Real trials of all candidates come before; none is left in the weights or metrics of the run.

    Serial is chosen, whose bits do not depend on time.
    """
    real = tune.run_trial

    def serial_is_fast(config: TrainConfig, *given: Any) -> trials.Trial:
        found = real(config, *given)
        slow = 1 if config.scheduler == SerialConfig() and config.env.num_envs == 2 else 1000
        return dataclasses.replace(found, seconds=slow * found.seconds)

    monkeypatch.setattr(tune, "run_trial", serial_is_fast)
    run, again = tmp_path / "run", tmp_path / "again"
    assert main(words(checkpoint, run, "--videos", "0", "--autotune")) == 0
    assert "autotune      chosen of 10: serial; 2 envs" in " ".join(capsys.readouterr().out.split("\n"))
    config = load_yaml(run / "config.yaml")
    assert not config.autotune  # a resumed run keeps what was chosen
    assert config.env.num_envs == 2
    assert main(["train", "tabletop", "--config", str(run / "config.yaml"), "--output", str(again)]) == 0
    assert untimed(run) == untimed(again)
    assert read_metrics(run / "metrics.jsonl")[-1]["step"] == 2
    one, two = (load_file(path / "checkpoints/iter-000002/policy/model.safetensors") for path in (run, again))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.process
def test_two_ranks_learn_together_under_a_pipelined_schedule(checkpoint: Path, tmp_path: Path) -> None:
    """Each rank opens the run's policy in a process of its own; the result is that of one process, also in parts.

    In the real simulator: a stand-in of this process would not be in theirs.
    """
    runs = [tmp_path / "one", tmp_path / "two", tmp_path / "parts"]
    for run, ranks in zip(runs, (["1"], ["2"], ["2", "--learner.fsdp"]), strict=True):
        pipelined = [
            "--scheduler",
            "pipelined",
            "--scheduler.env-groups",
            "2",
            "--learner.minibatch-size",
            "None",
            "--learner.minibatch-groups",
            "1",
            "--videos",
            "0",
            "--algorithm.entropy-coef",
            "0.01",
            "--learner.num-processes",
            *ranks,
        ]
        assert main(words(checkpoint, run, *pipelined)) == 0
    assert [json.loads((run / "run.json").read_text())[0]["num_processes"] for run in runs] == [1, 2, 2]
    assert ["2, FSDP2" in (run / "report.html").read_text() for run in runs] == [False, False, True]
    start = load_file(checkpoint / "model.safetensors")
    one, *others = (load_file(run / "checkpoints/iter-000002/policy/model.safetensors") for run in runs)
    assert max(float((tensor - start[name]).abs().max()) for name, tensor in one.items()) > 1e-4
    for name, tensor in one.items():
        for other in others:
            torch.testing.assert_close(other[name], tensor, rtol=0, atol=1e-5, msg=name)  # Adam's first steps, lr 1e-4
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("stand_in")
def test_without_ray_one_line_says_how_to_get_it(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(words(checkpoint, tmp_path / "run", "--scheduler", "ray")) == 2
    assert "pip install 'embodied-rl[ray]'" in capsys.readouterr().err


@pytest.mark.usefixtures("stand_in")
def test_a_worker_elsewhere_opens_the_run_s_worlds_and_policy(checkpoint: Path, tmp_path: Path) -> None:
    """From what is sent, which is plain data: as another process would."""
    from embodied_rl.cli.select import select
    from embodied_rl.factory.remote import remote_worker_factory
    from embodied_rl.rollout.sampler import EpisodeSampler
    from embodied_rl.scheduler.ray.worker import RolloutWorker

    config = select(words(checkpoint, tmp_path / "run", "--scheduler", "ray")[1:]).config
    assert config is not None
    assert remote_worker_factory(select(words(checkpoint, tmp_path / "run")[1:]).config or config) is None
    factory = pickle.loads(pickle.dumps(remote_worker_factory(config)))
    worker = RolloutWorker(factory, final_value=False)
    assert worker.num_envs() == 4
    pieces = worker.advance(EpisodeSampler(0, {"tabletop_object/pick_up_the_milk": range(4)}, 4).next_group()).episodes
    while len(pieces) < 4:
        pieces += worker.advance([]).episodes
    assert sorted(piece.episodes[0].spec.episode_id for piece in pieces) == [0, 1, 2, 3]


def test_worlds_of_a_protocol_stay_open_elsewhere() -> None:
    from embodied_rl.config.env import MujocoConfig
    from embodied_rl.config.train import TrainConfig, to_dict
    from embodied_rl.factory.remote import RemoteWorkerFactory
    from embodied_rl.scheduler.config import RayConfig
    from embodied_rl.sim import tabletop
    from embodied_rl.types import EpisodeSpec

    config = TrainConfig(protocol="openvla", scheduler=RayConfig(), env=MujocoConfig(num_envs=1, renderer="raycast"))
    worlds, _ = RemoteWorkerFactory(to_dict(config))()
    gc.collect()
    worlds.reset([0], [EpisodeSpec(0, tabletop.load_suite(config.suite)[0].name, 0, 0)])
    worlds.observe([0], worlds.new_observation(1))


def test_workers_find_a_checkpoint_that_was_named_from_here(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from embodied_rl.cli.select import select
    from embodied_rl.factory.run_config import with_absolute_checkpoint

    monkeypatch.chdir(checkpoint.parent)
    for scheduler, named in (("ray", str(checkpoint)), ("serial", str(checkpoint))):
        config = select(words(Path(checkpoint.name), tmp_path / "run", "--scheduler", scheduler)[1:]).config
        assert config is not None
        assert getattr(with_absolute_checkpoint(config).policy, "checkpoint", None) == named


def test_a_trace_needs_a_folder(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(checkpoint, tmp_path / "run", "--trace", str(tmp_path / "no" / "t.json"))) == 2
    assert "name another file" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, so the device is there")
@pytest.mark.usefixtures("stand_in")
def test_a_device_that_is_not_there_leaves_no_folder(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = [
        "--scheduler",
        "pipelined",
        "--scheduler.act-device",
        "cuda:0",
        "--learner.minibatch-size",
        "None",
        "--learner.minibatch-groups",
        "1",
    ]
    assert main(words(checkpoint, tmp_path / "run", *wanted)) == 2
    assert "torch sees 0 GPUs here" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()

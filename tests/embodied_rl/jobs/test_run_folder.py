"""Who gets a run's folder, with which config; and what a start that failed leaves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from embodied_rl.config.train import TrainConfig, to_dict
from embodied_rl.errors import UserError
from embodied_rl.jobs import run_folder
from embodied_rl.jobs.run_folder import (
    CONFIG_FILE,
    MAY_DIFFER,
    check_unchanged,
    existing_run,
    new_run,
    write_config,
    write_run_info,
)
from embodied_rl.jobs.run_info import RUN_INFO, read_run_info
from embodied_rl.learner.config import LearnerConfig
from embodied_rl.scheduler.config import RayConfig
from tests.run_info import run_info


def begun(folder: Path, config: TrainConfig | None = None) -> TrainConfig:
    with new_run(replace(config or TrainConfig(), output=str(folder))) as config:
        write_config(config)
    return config


def keys(data: dict[str, object]) -> list[tuple[str, ...]]:
    return [
        (key, name) if isinstance(part, dict) else (key,)
        for key, part in data.items()
        for name in (part if isinstance(part, dict) else [""])
    ]


def test_runs_of_the_same_second_get_folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_folder.time, "strftime", lambda form: "now")
    with new_run(TrainConfig()) as one, new_run(TrainConfig()) as two, new_run(TrainConfig()) as three:
        names = [Path(config.output).name for config in (one, two, three)]
        assert names == ["tabletop_spatial-ppo-seed0-now" + suffix for suffix in ("", "-2", "-3")]
    assert list(Path("runs").iterdir()) == []  # none of them wrote its config


@pytest.mark.parametrize("what", ["runs", "runs/x"])
def test_a_file_in_the_way_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path(what).parent.mkdir(exist_ok=True)
    Path(what).write_text("")
    for output in ("auto", "runs/x/y") if what == "runs" else ("runs/x", "runs/x/y"):
        with pytest.raises(UserError), new_run(replace(TrainConfig(), output=output)):
            pytest.fail("there is no folder")


def test_a_folder_in_use_is_refused_and_named(tmp_path: Path) -> None:
    config = replace(TrainConfig(), output=str(tmp_path / "r"))
    with new_run(config):
        with pytest.raises(UserError, match=r"process \d+ is training in .*/r already"), new_run(config):
            pass
        write_config(config)
        with pytest.raises(UserError, match=r"process \d+ is training"), existing_run(tmp_path / "r", None):
            pass
    twice = existing_run(tmp_path / "r", None), existing_run(tmp_path / "r", None)
    with twice[0], pytest.raises(UserError, match=r"process \d+ is training"), twice[1]:
        pass
    with pytest.raises(UserError, match=r"exists already.*--resume"), new_run(config):
        pass


def test_a_folder_with_other_files_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("mine")
    with pytest.raises(UserError, match=r"exists already: choose another --output$"):
        begun(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_a_start_that_failed_or_was_killed_leaves_the_place_free(tmp_path: Path) -> None:
    config = replace(TrainConfig(), output=str(tmp_path / "r"))

    def fail() -> None:
        (tmp_path / "r" / "metrics.jsonl").write_text("")
        (tmp_path / "r" / "tensorboard").mkdir()
        raise RuntimeError

    with pytest.raises(RuntimeError), new_run(config):
        fail()
    assert not (tmp_path / "r").exists()
    (tmp_path / "r").mkdir()
    for name in (".lock", "metrics.jsonl", RUN_INFO):  # as SIGKILL leaves it
        (tmp_path / "r" / name).write_text("999999\n")
    with new_run(config):
        assert [path.name for path in (tmp_path / "r").iterdir()] == [".lock"]


LATER = {"imports", "demos", "data", "robot", "robot_speed", "demo_coef", "demo_decay"} | {
    key for key in to_dict(TrainConfig()) if key.startswith("people")
}
"""Keys that came later: runs of before lack them. Where a checkpoint has them, the comparison with it needs them."""


@pytest.mark.parametrize("key", [key for key in keys(to_dict(TrainConfig())) if not LATER.intersection(key)])
def test_every_key_is_needed_to_resume(tmp_path: Path, key: tuple[str, ...]) -> None:
    begun(tmp_path)
    path = tmp_path / CONFIG_FILE
    data = yaml.safe_load(path.read_text())
    part = data if len(key) == 1 or not key[1] else data[key[0]]
    del part[key[-1] or key[0]]
    text = yaml.safe_dump(data)
    path.write_text(text)
    name = ".".join(part for part in key if part)
    with pytest.raises(UserError, match=f"lacks {name}[,: ]") as error, existing_run(tmp_path, None):
        pass
    assert "\n" not in str(error.value)
    assert path.read_text() == text


@pytest.mark.parametrize("text", ["", "a: [", "- 1", "\x00", "learner: 3", "seed: x"])
def test_a_damaged_config_is_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / CONFIG_FILE).write_text(text)
    with pytest.raises(UserError) as error, existing_run(tmp_path, None):
        pass
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "[3]", '"x"'])
def test_a_damaged_run_json_is_one_line(tmp_path: Path, text: str) -> None:
    config = begun(tmp_path)
    (tmp_path / RUN_INFO).write_text(text)
    with pytest.raises(UserError, match=f"{RUN_INFO} is damaged .*: remove it") as error:
        write_run_info(run_info(), config, resume=True)
    assert "\n" not in str(error.value)
    (tmp_path / RUN_INFO).unlink()
    write_run_info(run_info(), config, resume=True)
    assert read_run_info(tmp_path) == [run_info()]


def test_iterations_may_grow_or_stay(tmp_path: Path) -> None:
    begun(tmp_path, TrainConfig(iterations=5))
    for asked, got in ((None, 5), (5, 5), (6, 6)):
        with existing_run(tmp_path, asked) as config:
            assert config.iterations == got
    with pytest.raises(UserError, match="a run of 5 iterations; give as many or more"), existing_run(tmp_path, 4):
        pass


def test_edited_keys_are_named_and_those_of_the_machine_may_differ(tmp_path: Path) -> None:
    config = begun(tmp_path)
    before = json.loads(json.dumps(to_dict(config)))
    check_unchanged(replace(config, output="elsewhere", iterations=99, device="cuda", num_threads=7), before)
    other = replace(config, learner=LearnerConfig(lr=0.5), seed=4)
    with pytest.raises(UserError, match=r"learner\.lr was .* and is 0\.5; seed was 0 and is 4\. A run"):
        check_unchanged(other, before)
    over_ray = to_dict(replace(config, scheduler=RayConfig()))
    known = {".".join(part for part in key if part) for key in (*keys(before), *keys(over_ray))}
    assert known >= MAY_DIFFER  # a key that is renamed must be renamed there too

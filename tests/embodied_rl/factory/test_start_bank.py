"""A run's start bank: what does not fit is refused, and what fits is pinned."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embodied_rl.config.train import TrainConfig, from_dict, to_dict
from embodied_rl.data.layout import INFO_PATH, NAMESPACE, VERSION
from embodied_rl.data.start_bank import FILE, add, join
from embodied_rl.errors import UserError
from embodied_rl.factory.protocol_envs import training_episodes
from embodied_rl.factory.remote import RemoteWorkerFactory
from embodied_rl.factory.start_bank import episode_mix, models_of, pin_bank
from embodied_rl.rollout.config import RolloutConfig
from embodied_rl.rollout.sampler import EpisodeMix
from embodied_rl.scheduler.config import RayConfig
from embodied_rl.sim.tabletop import load_suite

TASKS = load_suite("tabletop_long")[:2]
MODELS = models_of(TASKS[:1])


@pytest.fixture
def bank(tmp_path: Path) -> Path:
    write(tmp_path, {})
    return tmp_path


def write(folder: Path, changes: dict[str, Any]) -> None:
    """A data set of which only what a bank needs is there: two episodes of one task."""
    made = {"split": "fresh", "protocol": "native", "start_bank": MODELS} | changes
    (folder / INFO_PATH).parent.mkdir(exist_ok=True)
    (folder / INFO_PATH).write_text(json.dumps({"codebase_version": VERSION, NAMESPACE: made}))
    episodes = folder / "episodes"
    episodes.mkdir(exist_ok=True)
    for key in (3, 1, 2):
        add(episodes / f"{key:06d}", TASKS[0].name, np.full((2, 4), float(key)))
        if key != 2:  # the one in the middle was killed before it was whole
            (episodes / f"{key:06d}.parquet").touch()
    join(episodes, folder)


def config(folder: Path, **rollout: Any) -> TrainConfig:
    return from_dict({"suite": "tabletop_long", "rollout": {"start_bank": str(folder)} | rollout})


def test_states_are_those_of_whole_episodes_in_order(bank: Path) -> None:
    with np.load(bank / FILE) as arrays:
        assert arrays[TASKS[0].name][:, 0].tolist() == [1.0, 1.0, 3.0, 3.0]


def test_without_states_there_is_no_bank(tmp_path: Path) -> None:
    (tmp_path / "000001.parquet").touch()
    join(tmp_path, tmp_path)
    assert not (tmp_path / FILE).exists()


def test_a_bank_is_pinned_and_told(bank: Path) -> None:
    pinned, about = pin_bank(config(bank, start_bank_share=0.3), TASKS)
    assert len(pinned.rollout.start_bank_digest or "") == 64
    assert "30% of the episodes of 1 task, from 4 states" in about["starts"]
    assert pin_bank(pinned, TASKS)[0] == pinned
    mix, changes = episode_mix(pinned), training_episodes(pinned)
    assert (mix.from_bank, mix.bank_rows, mix.perturbed) == (0.3, {TASKS[0].name: 4}, 0.0)
    assert changes is not None
    assert (changes.start_bank, changes.perturb) == (bank / FILE, ())


def test_another_bank_in_its_place_is_refused(bank: Path) -> None:
    pinned, _ = pin_bank(config(bank), TASKS)
    (bank / FILE).unlink()
    add(bank / "000009", TASKS[0].name, np.zeros((1, 4)))
    (bank / "000009.parquet").touch()
    join(bank, bank)
    with pytest.raises(UserError, match="holds another start bank"):
        pin_bank(pinned, TASKS)


def test_a_worker_elsewhere_refuses_another_bank(bank: Path) -> None:
    far = TrainConfig(suite="tabletop_long", scheduler=RayConfig())
    rollout = RolloutConfig(start_bank=str(bank), start_bank_digest="0" * 64)
    with pytest.raises(UserError, match="holds another start bank"):
        RemoteWorkerFactory(to_dict(replace(far, rollout=rollout)))()


def test_without_a_share_it_is_half(bank: Path) -> None:
    pinned, about = pin_bank(config(bank), TASKS)
    assert "50% of the episodes of" in about["starts"]
    assert episode_mix(pinned).from_bank == 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"split": "heldout"}, "was collected from held-out states"),
        ({"protocol": "libero"}, "was collected with --protocol libero, the run has native"),
        ({"start_bank": {}}, "has no states of the run's tasks"),
        ({"start_bank": {TASKS[0].name: "0" * 64}}, "another physics model of"),
    ],
)
def test_what_does_not_fit_is_refused(bank: Path, changes: dict[str, Any], message: str) -> None:
    write(bank, changes)
    with pytest.raises(UserError, match=message):
        pin_bank(config(bank), TASKS)


def test_a_task_whose_demonstrations_all_failed_has_no_states(bank: Path) -> None:
    """It was collected, so its model is known, and nothing of it was kept."""
    write(bank, {"start_bank": models_of(TASKS)})
    with pytest.raises(UserError, match="no states of the run's tasks"):
        pin_bank(config(bank), TASKS[1:])


@pytest.mark.parametrize(
    ("option", "changes"),
    [
        ("--perturb light is for", {"perturb": ["light"]}),
        ("--rollout.sampler adaptive is for", {"sampler": "adaptive"}),
    ],
)
def test_where_all_episodes_begin_in_the_bank_an_option_for_others_is_refused(
    bank: Path, option: str, changes: dict[str, Any]
) -> None:
    kinds = {"perturb": changes.pop("perturb", [])}

    def asked(share: float) -> TrainConfig:
        return from_dict(kinds, config(bank, start_bank_share=share, **changes))

    with pytest.raises(UserError, match=option):
        pin_bank(asked(1.0), TASKS[:1])
    pin_bank(asked(1.0), TASKS)  # the second task has no states: its episodes begin as ever
    pin_bank(asked(0.9), TASKS[:1])
    pin_bank(config(bank, start_bank_share=1.0), TASKS[:1])


def test_a_folder_without_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="make one with embodied-rl collect SUITE --start-bank"):
        pin_bank(config(tmp_path), TASKS)


def test_a_run_without_one_stays_as_it_is() -> None:
    plain = TrainConfig()
    assert pin_bank(plain, TASKS) == (plain, {})
    assert training_episodes(plain) is None
    assert episode_mix(plain) == EpisodeMix()

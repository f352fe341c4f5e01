"""`train --demos`: what fits is read as `sft` reads it, and what does not is refused in one line."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from embodied_rl.algorithms.config import GRPOConfig, PPOConfig, SteerConfig
from embodied_rl.config.earlier import with_later_options
from embodied_rl.config.train import TrainConfig, from_dict, to_dict
from embodied_rl.data import writer
from embodied_rl.data.layout import ACTION_NAMES, PROPRIO_NAMES, DatasetSpec, Episode
from embodied_rl.errors import UserError
from embodied_rl.jobs.describe import demos_words
from embodied_rl.jobs.run_folder import check_unchanged
from embodied_rl.jobs.train_demos import RunDemos, open_demos
from embodied_rl.policies.openvla.config import nano
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from tests.embodied_rl.data.by_hand import make
from tests.env_info import env_info

CAMERAS, STATES = ("agentview", "wrist"), {"tabletop_goal/turn_on_the_stove": [3, 5]}
INFO = env_info("tabletop_goal", 7, cameras=CAMERAS, image_shape=(64, 64), proprio_dim=8)


def collected(out: Path, *, seed: int = 0, cameras: tuple[str, ...] = CAMERAS, **stamp: Any) -> Path:
    """Three episodes, as `collect` writes them."""
    spec = DatasetSpec(cameras, 64, PROPRIO_NAMES, ACTION_NAMES)
    partial, rng = writer.begin(out, {}), np.random.default_rng(seed)
    for key in range(3):
        action = rng.uniform(-1, 1, (6, 7)).astype(np.float32)
        images = rng.integers(0, 256, (6, len(cameras), 64, 64, 3), dtype=np.uint8)
        state = rng.normal(size=(6, 8)).astype(np.float32)
        writer.add_episode(partial, spec, Episode(key, "turn on the stove", images, state, action, action))
    writer.finalize(out, spec, {"suite": "tabletop_goal", "split": "train", "train_states": STATES} | stamp)
    return out


def policy(**changes: Any) -> OpenVLAPolicy:
    return OpenVLAPolicy.fresh(nano(chunk_len=4, **changes), ["turn on the stove"])


def asks(*demos: Path | str) -> TrainConfig:
    return replace(TrainConfig(), demos=tuple(map(str, demos)), algorithm=PPOConfig(demo_coef=0.1))


def opened(config: TrainConfig, learns: Any = None, info: Any = INFO) -> RunDemos:
    return open_demos(config, learns or policy(), info, Console(quiet=True))


def test_demonstrations_are_read_for_the_policy(tmp_path: Path) -> None:
    one, two = collected(tmp_path / "one"), collected(tmp_path / "two", seed=1, train_states={})
    found = opened(asks(f"{one}:3", two))
    first, second = found.imitation.demos.mixture.parts
    assert [len(part.samples) for part in (first, second)] == [18, 18]
    assert (first.weight, second.weight) == (3, 1)
    assert first.samples.chunk_len == 4
    (batch,) = {part.samples.batch(np.arange(2)).images.shape for part in (first, second)}
    assert batch == (2, 2, 64, 64, 3)
    assert found.joined({"tabletop_goal/turn_on_the_stove": [1]}) == {"tabletop_goal/turn_on_the_stove": [1, 3, 5]}
    assert found.joined(None) is None


def test_states_that_nobody_recorded_leave_the_overlap_unknown(tmp_path: Path) -> None:
    found = opened(asks(make(tmp_path / "foreign", columns={}), collected(tmp_path / "one")))
    assert found.joined({}) is None


def test_the_digest_is_of_data_and_weights(tmp_path: Path) -> None:
    one = collected(tmp_path / "one")
    digests = [
        opened(asks(word)).imitation.digest for word in (one, one, f"{one}:2", collected(tmp_path / "b", seed=1))
    ]
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


@pytest.mark.parametrize(
    ("changes", "info", "said"),
    [
        ({"cameras": ("agentview",)}, {}, "has cameras: 1, and suite 'tabletop_goal' 2"),
        ({}, {"action_dim": 6}, "has numbers in an action: 7, and suite 'tabletop_goal' 6"),
        ({}, {"proprio_dim": 9}, "has numbers of proprio: 8, and suite 'tabletop_goal' 9"),
        ({}, {"control_hz": 10.0}, "acts 20 times a second, and suite 'tabletop_goal' takes 10 actions"),
        ({}, {"state_dim": 4}, "reads the simulator's state, which demonstrations have not"),
        ({"split": "heldout"}, {}, "read as embodied-rl sft does: .* starts from held-out states"),
        ({"keep": "all"}, {}, "holds failed attempts"),
    ],
)
def test_what_does_not_fit_the_suite_is_refused(
    tmp_path: Path, changes: dict[str, Any], info: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said) as refused:
        opened(asks(collected(tmp_path / "data", **changes)), info=replace(INFO, **info))
    assert "\n" not in str(refused.value)


def test_a_critic_reads_proprio_also_where_its_policy_does_not(tmp_path: Path) -> None:
    data, learns, info = collected(tmp_path / "data"), policy(use_proprio=False), replace(INFO, proprio_dim=9)
    opened(asks(data), learns, info)
    steered = replace(asks(data), algorithm=SteerConfig())
    with pytest.raises(UserError, match="has numbers of proprio: 8, and suite 'tabletop_goal' 9"):
        opened(steered, learns, info)


def test_data_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        opened(asks(tmp_path / "nowhere"))


def test_other_names_of_the_cameras_are_taken_in_the_data_sets_own_order(tmp_path: Path) -> None:
    data = collected(tmp_path / "data", cameras=("top", "hand"))
    (part,) = opened(asks(data)).imitation.demos.mixture.parts
    assert part.samples.data.camera_names == ["top", "hand"]
    one = collected(tmp_path / "wrist", cameras=("wrist", "agentview"))
    (part,) = opened(asks(one)).imitation.demos.mixture.parts
    assert part.samples.data.camera_names == ["agentview", "wrist"]


def test_a_policy_without_an_imitation_loss_is_refused(tmp_path: Path) -> None:
    data = collected(tmp_path / "data")

    class Refuses(OpenVLAPolicy):
        def sft_loss(self, *arguments: Any) -> torch.Tensor:
            raise NotImplementedError

    class Lacks(torch.nn.Module):
        pass

    for learns in (Refuses.fresh(nano(chunk_len=4), ["turn on the stove"]), Lacks()):
        with pytest.raises(UserError, match=f"{type(learns).__name__} has no imitation loss"):
            opened(asks(data), learns)


def test_pictures_of_a_policy_of_ones_own_are_not_resized(tmp_path: Path) -> None:
    class Own(torch.nn.Module):
        chunk_len = 2

        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))

        def sft_loss(self, images: torch.Tensor, *others: Any) -> torch.Tensor:
            return images.float().mean() * self.scale

        traits: Any = type("Traits", (), {"noisy_imitation": False})()

    data = asks(collected(tmp_path / "data"))
    assert opened(data, Own()).imitation.demos.mixture.parts[0].samples.chunk_len == 2
    with pytest.raises(UserError, match="has pixels: 64x64, and suite 'tabletop_goal' 32x32"):
        opened(data, Own(), replace(INFO, image_shape=(32, 32)))


@pytest.mark.parametrize("algorithm", [PPOConfig, GRPOConfig])
def test_one_without_the_other_is_refused(algorithm: Any) -> None:
    base = replace(TrainConfig(), algorithm=algorithm())
    base.check()
    with pytest.raises(UserError, match=re.escape("--demos are imitated by --algorithm.demo-coef")):
        replace(base, demos=("demos",)).check()
    with pytest.raises(UserError, match=re.escape("name them with --demos DATA")):
        replace(base, algorithm=algorithm(demo_coef=0.1)).check()
    replace(base, algorithm=algorithm(demo_coef=0.1), demos=("demos:2",)).check()
    with pytest.raises(UserError, match="DATA:WEIGHT with a weight above 0"):
        replace(base, algorithm=algorithm(demo_coef=0.1), demos=("demos:0",)).check()
    with pytest.raises(UserError, match="demos must be a list of names"):
        replace(base, demos="demos")
    with pytest.raises(UserError, match="demo_coef must not be negative"):
        algorithm(demo_coef=-1)
    for decay in (0, 1.5):
        with pytest.raises(UserError, match=r"demo_decay must lie in \(0, 1\]"):
            algorithm(demo_decay=decay)


def test_it_is_said_what_is_imitated() -> None:
    assert demos_words(TrainConfig()) == ""
    assert demos_words(asks("a", "b:2")) == (
        "a, b:2; weight of the imitation loss 0.1, times 0.95 after each update of the policy"
    )


@pytest.mark.parametrize("algorithm", [PPOConfig(), GRPOConfig()])
def test_a_run_of_before_goes_on(algorithm: Any) -> None:
    config = replace(TrainConfig(), algorithm=algorithm)
    before = to_dict(config)
    del before["demos"], before["algorithm"]["demo_coef"], before["algorithm"]["demo_decay"]
    for name in ("data", "robot", "robot_speed", *(key for key in before.copy() if key.startswith("people"))):
        del before[name]
    assert from_dict(with_later_options(before)) == config
    check_unchanged(config, before)
    with pytest.raises(UserError, match=r"demo_coef was 0\.0 and is 0\.1"):
        check_unchanged(replace(config, algorithm=replace(algorithm, demo_coef=0.1)), before)

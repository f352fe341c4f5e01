"""Cameras and joint states that come on time and say what is not so, over real ROS 2: the arm holds; see `spoilt.py`.

Nothing here is timed: the processes wait for each other's words, and the tool is where its joint states say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.real_robot.ros2.spoilt import MEASURED, SPOILT

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def spoilt(live: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return live("spoilt", "0.35", str(tmp_path_factory.mktemp("server")))


def test_an_arm_whose_messages_are_sound_runs_over_the_same_way(spoilt: dict[str, Any]) -> None:
    said = spoilt["nothing"]
    assert said["went"] == [True, True, True]
    assert said["state"] == "running"
    assert not [why for why in said["holds"] if any(words in why for words in SPOILT.values())]


@pytest.mark.parametrize("name", SPOILT)
def test_messages_that_say_what_is_not_so_make_the_arm_hold_and_are_named(name: str, spoilt: dict[str, Any]) -> None:
    said, (_, what), words = spoilt[name], name.split(), SPOILT[name]
    assert (said["held"], said["found"], said["diagnosed"]) == (True, True, True)
    begins = "tracking: robot0_joint" if what == "joints" else f"camera: {what}: {words}"
    (named,) = [fault for fault in said["status"] if any(one in fault for one in SPOILT.values())]
    assert named.startswith(begins)
    assert words in named
    assert begins in said["holds"][-1], "it is why the arm holds"
    done, why = said["refused"]
    assert not done
    assert words in why, "nobody resumes it before it is mended"


@pytest.mark.parametrize("name", SPOILT)
def test_an_arm_goes_on_when_its_messages_are_mended(name: str, spoilt: dict[str, Any]) -> None:
    assert spoilt[name]["moved"] == [True, True], "before and after"
    assert not spoilt[name]["after"]


def test_an_arm_that_went_unseen_is_armed_again_first(spoilt: dict[str, Any]) -> None:
    said = spoilt["frozen joints"]
    assert 0.01 < said["way"] < 0.15
    done, why = said["latched"]
    assert not done
    assert MEASURED in why
    assert "disarm and arm it" in why

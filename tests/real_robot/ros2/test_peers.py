"""The bridge's messages under other hands: rosbags decodes them, an arm on Cyclone DDS without ROS and one on another
ROS 2 (Jazzy and Kilted, either way round) obey them and are heard.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from embodied_rl.errors import UserError
from embodied_rl.real_robot.core.robot import robot_path
from embodied_rl.real_robot.ros2 import environment
from tests.real_robot.ros2.peers import arm as peer

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
PEERS = "tests.real_robot.ros2.peers"
DOMAIN = 10 + (os.getpid() + 40) % 80
KILTED, JAZZY = "ros2", "ros2-jazzy"
CASES = {
    "Cyclone DDS": (KILTED, f"{PEERS}.arm_cyclone", KILTED),
    "an arm on Jazzy": (KILTED, f"{PEERS}.arm_rclpy", JAZZY),
    "a bridge on Jazzy": (JAZZY, f"{PEERS}.arm_rclpy", KILTED),
}
"""By name: the ROS 2 of the bridge, the arm's module and its ROS 2."""


def ros(folder: str) -> dict[str, str]:
    """The environment of a process on one of the ROS 2 that CI installs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "wheels_folder", lambda: Path(sys.prefix) / folder)
        found = environment.ros_environment(domain=DOMAIN, loopback=True)
    return {**found, "PYTHONPATH": os.pathsep.join([str(ROOT), found.get("PYTHONPATH", "")])}


@pytest.fixture(scope="module")
def rosbags() -> Any:
    if importlib.util.find_spec("rosbags") is None or importlib.util.find_spec("cyclonedds") is None:
        missing("rosbags or cyclonedds is not installed")
    return importlib.import_module("rosbags.typesys")


def missing(what: str) -> None:
    """Skip here, fail in CI, which installs it (.ci/install-ros2-peers)."""
    if os.environ.get("CI"):
        raise RuntimeError(what)
    pytest.skip(what)


@pytest.fixture(scope="module", params=list(CASES))
def said(request: pytest.FixtureRequest, rosbags: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    bridge, module, arm = CASES[request.param]
    folder = tmp_path_factory.mktemp("peers")
    try:
        ours, theirs = ros(bridge), ros(arm)
    except UserError as error:
        missing(str(error))
        raise
    wanted = {
        "robot": str(patient_robot(folder)),
        "recording": str(folder / "run.mcap"),
        "module": module,
        "arguments": [str(DOMAIN)],
        "environment": theirs,
    }
    command = [sys.executable, "-m", f"{PEERS}.bridge", json.dumps(wanted)]
    done = subprocess.run(command, cwd=ROOT, env=ours, capture_output=True, text=True, timeout=3600, check=False)
    assert done.returncode == 0, done.stderr
    return {**json.loads(done.stdout.splitlines()[-1]), "recording": wanted["recording"], "bridge": bridge}


def patient_robot(folder: Path) -> Path:
    """The twin's file with limits of age that a busy computer keeps."""
    text = robot_path("twin").read_text(encoding="utf-8")
    keys = ("camera_age_s", "joint_state_age_s", "policy_silence_s", "tick_jitter_s")
    text += f"\noverrides: [{', '.join(f'watchdog.{key}' for key in keys if key != 'policy_silence_s')}]\n"
    for key in keys:
        before, _, after = text.partition(f"{key}: ")
        text = f"{before}{key}: 2.0{after[after.index(chr(10)) :]}"
    path = folder / "arm.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_arm_on_another_middleware_obeys_and_is_heard(said: dict[str, Any]) -> None:
    obeyed = said["arm"]["trajectories"]
    assert len(obeyed) >= peer.ENOUGH, "and its button ended it"
    assert all(one["names"] == list(peer.JOINTS) for one in obeyed)
    sent = {tuple(positions) for positions in said["sent"]}
    assert {tuple(one["points"][0]["positions"]) for one in obeyed} <= sent, "to the last bit"
    assert all(np.abs(one["points"][-1]["velocities"]).max() < 1e-9 for one in obeyed)
    assert obeyed[-1]["points"][0]["positions"] != obeyed[0]["points"][0]["positions"], "it moves"
    assert said["arm"]["width"]
    assert said["names"] == [[*peer.JOINTS, *peer.FINGERS]]
    heard = {tuple(positions[:7]) for positions in said["heard"]}
    assert peer.HOME in heard
    assert len(heard - {peer.HOME}) > 5, "the arm is where it was asked to be"
    assert heard - {peer.HOME} <= sent
    for camera, shown in enumerate(zip(*said["pictures"], strict=True)):
        assert set(shown) == {peer.image(camera, number).hex() for number in (0, 1)}


def test_rosbags_decodes_every_message_and_knows_its_type(said: dict[str, Any], rosbags: Any) -> None:
    store = rosbags.get_typestore(rosbags.Stores.ROS2_KILTED if said["bridge"] == KILTED else rosbags.Stores.ROS2_JAZZY)
    assert len(said["hashes"]) == 5, "what the bridge publishes, but for the joint states"
    for topic, digest in said["hashes"].items():
        assert digest == store.hash_rihs01(said["types"][topic]), topic
    decoded = {
        topic: [store.deserialize_cdr(bytes.fromhex(data), said["types"][topic]) for data in messages]
        for topic, messages in said["raw"].items()
    }
    sent = {tuple(positions) for positions in said["sent"]}
    heard = {(one["ns"], tuple(one["points"][0]["positions"])) for one in said["arm"]["trajectories"]}
    stamped = {
        (one.header.stamp.sec * 10**9 + one.header.stamp.nanosec, tuple(one.points[0].positions.tolist()))
        for one in decoded[f"/{peer.TRAJECTORIES}"]
    }
    assert {positions for _, positions in stamped} <= sent
    assert heard <= stamped, "the arm's middleware and rosbags read the same stamps and positions"
    assert {json.loads(one.data)["state"] for one in decoded["/embodied_rl/state"]} >= {"running", "e-stopped"}
    assert json.loads(decoded["/embodied_rl/status"][-1].data)["state"] == "e-stopped"
    assert decoded["/diagnostics"][-1].status[0].name == "embodied_rl bridge"
    assert all(len(one.data) == 1 for one in decoded[f"/{peer.GRIPPER}"])
    assert all(len(one.position) == 9 for one in decoded[f"/{peer.JOINT_STATES}"])


def test_rosbags_decodes_the_recordings_pictures_by_the_types_in_the_file(said: dict[str, Any], rosbags: Any) -> None:
    from mcap.reader import make_reader

    store, shown = rosbags.get_typestore(rosbags.Stores.EMPTY), dict[str, set[bytes]]()
    with Path(said["recording"]).open("rb") as file:
        for schema, channel, message in make_reader(file).iter_messages():
            if schema is None or schema.name != "sensor_msgs/msg/CompressedImage":
                continue
            if schema.name not in store.fielddefs:
                store.register(rosbags.get_types_from_msg(schema.data.decode(), schema.name))
            image = store.deserialize_cdr(message.data, schema.name)
            assert image.format == "png"
            assert image.header.stamp.sec * 10**9 + image.header.stamp.nanosec == message.log_time
            pixels = cv2.imdecode(image.data, cv2.IMREAD_COLOR)
            assert pixels is not None
            shown.setdefault(channel.topic, set()).add(pixels[..., ::-1].tobytes())
    names = ("agentview", "robot0_eye_in_hand")
    wanted = [{peer.image(camera, number) for number in (0, 1)} for camera in (0, 1)]
    assert shown == {f"/embodied_rl/camera/{name}": both for name, both in zip(names, wanted, strict=True)}

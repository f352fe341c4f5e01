"""Server, twin and bridge through faults, as a process that has rclpy: prints one JSON line for the tests.

python -m tests.real_robot.ros2.scenario SPEED FOLDER: recordings go into the folder.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from embodied_rl.benchmarks.deploy_faults import Drills
from embodied_rl.evaluation.evaluate import evaluate
from embodied_rl.policy import PolicyTraits
from embodied_rl.real_robot.deploy.episodes import patiently, run_episode, shadow_episode, to_idle
from embodied_rl.real_robot.deploy.launcher import Launcher, LauncherConfig
from embodied_rl.real_robot.deploy.processes import Process
from embodied_rl.real_robot.env.bridge import BridgeArm, TwinScene
from embodied_rl.real_robot.env.vec_env import LiveVecEnv
from embodied_rl.real_robot.ros2 import qos
from embodied_rl.real_robot.ros2.clock import Clock
from embodied_rl.real_robot.ros2.config import load_ros_config
from embodied_rl.real_robot.ros2.context import ACTION_DIM, PROPRIO_DIM, STEP_NS
from embodied_rl.real_robot.ros2.options import BridgeOptions, Mode
from embodied_rl.real_robot.ros2.session import Session
from embodied_rl.real_robot.twin.options import TwinOptions
from embodied_rl.rollout.recording import RecordingVecEnv
from embodied_rl.types import ActOutput, EpisodeSpec, Observation
from embodied_rl.vec_env import EnvInfo
from tests.real_robot.ros2.lifecycle import managed

TASK = "tabletop_object/pick_up_the_bottle_and_place_it_in_the_basket"


def main(speed: float, folder: Path) -> dict[str, Any]:
    """An episode, a takeover, every fault, a dry and a shadow run, the evaluator, and a managed node's states."""
    config = LauncherConfig(
        environment=os.environ,
        server=("tests.real_robot.ros2.moving_server",),
        bridge=BridgeOptions(port=0, speed=speed, record=str(folder / "live.mcap"), labelled_by="simulator"),
        twin=TwinOptions(suite="tabletop_object", speed=speed, image_size=32),
    )
    launcher = Launcher(config)
    try:
        assert launcher.twin is not None
        drills = Drills(launcher, TASK, speed)
        episode = run_episode(launcher.bridge, launcher.twin, drills.task, 50, 1.0)
        _take_over(launcher, Clock(speed))
        checks = [asdict(check) for check in launcher.bridge.preflight()]
        parameters = [_parameters(launcher, "robot", "horizon"), _parameters(launcher, "token")]
        second = _second_bridge(launcher)
        said = [drills.emergency_stop(), drills.drop_camera()]
        said += [drills.stop(name) for name in ("server", "twin", "bridge")]
        said += [drills.kill(name) for name in ("server", "twin", "bridge")]
        outcomes = launcher.bridge.status["outcomes"]
        modes = {mode: _without_sending(launcher, drills, mode) for mode in ("dry_run", "shadow")}
        modes["evaluated"] = _evaluated(launcher, drills, folder / "helped.mcap")
        modes["managed"] = managed(launcher, drills, speed)
        told = {"episode": asdict(episode), "checks": checks, "drills": [asdict(drill) for drill in said]}
        told |= {"parameters": parameters, "second": second}
        return {**told, **outcomes, **modes}
    finally:
        launcher.close()


def _take_over(launcher: Launcher, clock: Clock) -> None:
    """A person takes the running arm, moves it, gives it back, and says that it went well."""
    bridge = launcher.bridge
    assert launcher.twin is not None
    bridge.instruct(launcher.twin.begin(TASK, 51, 0))
    patiently(bridge, "arm")
    patiently(bridge, "start")
    _move_by_hand(launcher, clock)
    bridge.outcome("success")
    to_idle(bridge)


def _move_by_hand(launcher: Launcher, clock: Clock) -> None:
    """A person takes the running arm, moves it sideways for a second and lets it go."""
    from geometry_msgs.msg import TwistStamped
    from std_msgs.msg import Bool

    bridge, node = launcher.bridge, launcher.session.node
    engaged = node.create_publisher(Bool, "/embodied_rl/takeover/engaged", qos.event())
    twists = node.create_publisher(TwistStamped, "/embodied_rl/takeover/twist", qos.command())
    assert bridge.wait(lambda: bool(engaged.get_subscription_count() and twists.get_subscription_count()), 120.0)
    twist = TwistStamped()
    twist.twist.linear.y = 0.1
    for _ in range(40):
        engaged.publish(Bool(data=True))
        twists.publish(twist)
        clock.sleep_until(clock.now_ns() + 25_000_000)
    engaged.publish(Bool(data=False))
    clock.sleep_until(clock.now_ns() + 500_000_000)  # what is still on its way would take the arm again
    assert bridge.call("release")[0]
    assert bridge.wait(lambda: bridge.state != "human", 120.0)


def _second_bridge(launcher: Launcher) -> list[Any]:
    """How a bridge beside the first one ends: its exit code, its lines, and what the first one is then."""
    module, options = "embodied_rl.real_robot.ros2", BridgeOptions(port=launcher.port).to_json()
    with Process("second bridge", module, [options], launcher.config.environment, "bridge ready") as second:
        code = second.wait_end(60.0)
    return [code, list(second.lines), launcher.bridge.call("hold")[1]]


def _parameters(launcher: Launcher, *names: str) -> list[Any]:
    """What the bridge's parameters say; None where there is none."""
    from rcl_interfaces.srv import GetParameters
    from rclpy.parameter import parameter_value_to_python

    client = launcher.session.node.create_client(GetParameters, "/embodied_rl/get_parameters")
    assert client.wait_for_service(timeout_sec=120.0)
    answered = threading.Event()
    future = client.call_async(GetParameters.Request(names=names))
    future.add_done_callback(lambda _: answered.set())
    assert answered.wait(120.0)
    return [parameter_value_to_python(value) for value in future.result().values]


def _without_sending(launcher: Launcher, drills: Drills, mode: Mode) -> dict[str, Any]:
    """Half a second in a mode that sends nothing; `commands` is what another process heard of the bridge."""
    if "bridge" in launcher.processes:
        launcher.processes["bridge"].close()
    heard = len(drills.watch.commands)
    launcher.start_bridge(mode=mode)
    assert launcher.twin is not None
    assert launcher.bridge.wait(lambda: launcher.bridge.status["mode"] == mode, 120.0)
    run = run_episode if mode == "dry_run" else shadow_episode
    episode = run(launcher.bridge, launcher.twin, TASK, 50, 0.5)
    # the policy is asked on; a busy computer may answer after that half second
    assert launcher.bridge.wait(lambda: launcher.bridge.status["answers"] > 0, 120.0)
    refused = "" if mode == "dry_run" else launcher.bridge.call("arm")[1]
    status = launcher.bridge.status
    return {
        "episode": asdict(episode),
        "status": status,
        "refused": refused,
        "commands": len(drills.watch.commands) - heard,
    }


class Sideways:
    """A policy that pushes sideways, and keeps what it was shown."""

    chunk_len, action_dim, terms_per_step, with_value, traits = 4, 7, 7, False, PolicyTraits()

    def __init__(self) -> None:
        self.seen: list[list[float]] = []

    def act(self, obs: Observation, rng: object, mode: str) -> ActOutput:
        self.seen.append([float(obs.images.float().std()), *obs.proprio[0].tolist()])
        actions = torch.tensor([0, 0.6, 0, 0, 0, 0, -1.0]).expand(len(obs.proprio), 4, 7)
        return ActOutput(actions, torch.zeros(len(actions), 28), None, {})


def _evaluated(launcher: Launcher, drills: Drills, path: Path) -> dict[str, Any]:
    """Two short episodes by the evaluator, and one that a person ends: the environment is the twin, with the bridge in
    this process, recorded in `path`."""
    launcher.processes["bridge"].close()
    assert launcher.twin is not None
    assert launcher.config.twin is not None
    policy, heard = Sideways(), len(drills.watch.commands)
    with Session("embodied_rl") as session:
        options = BridgeOptions(speed=launcher.config.bridge.speed, record=str(path))
        arm = BridgeArm(session, options, TwinScene(launcher.twin))
        short, long = (LiveVecEnv([arm], twin_info(launcher.config.twin, steps)) for steps in (8, 4000))
        with closing(long):  # both have one arm
            specs = [EpisodeSpec(number, TASK, 50 + number, seed=number) for number in range(2)]
            report = evaluate(short, policy, specs, "greedy")  # type: ignore[arg-type]
            commands = len(drills.watch.commands) - heard
            helped = _helped(launcher, long)
    steps = [result.num_steps for result in report.results]
    return {"steps": steps, "seen": policy.seen, "commands": commands, "helped": helped}


def _helped(launcher: Launcher, arm: LiveVecEnv) -> dict[str, Any]:
    """An episode of a policy that stands still, until a person takes the arm, moves it and lets it go."""
    env, spec = RecordingVecEnv(arm), EpisodeSpec(9, TASK, 52, seed=9)
    env.reset([0], [spec])
    assert launcher.bridge.wait_state("running", 120.0)
    person = threading.Thread(target=_move_by_hand, args=(launcher, Clock(launcher.config.bridge.speed)))
    person.start()
    obs, ended, counted = env.new_observation(1), False, [0, 0]
    while not ended:
        assert not env.observe([0], obs)
        result = env.step([0], torch.zeros(1, 4, 7))
        counted = [counted[0] + int(result.steps_taken), counted[1] + int(result.human)]
        ended = bool(result.terminated | result.truncated | result.failed)
    person.join()
    episode = env.take(spec)
    return {
        "counted": counted,
        "ended": [bool(result.terminated), bool(result.success), bool(result.failed)],
        "human": episode.human,
        "actions": [action.tolist() for action in episode.action],
        "proprio": [proprio.tolist() for proprio in episode.proprio],
        "images": len({image.tobytes() for image in episode.images}),
    }


def twin_info(options: TwinOptions, steps: int) -> EnvInfo:
    """The twin as the environment that `LiveVecEnv` is; `steps`: control steps of an episode."""
    return EnvInfo(
        backend="live",
        suite=options.suite,
        simulator="twin",
        renderer="twin",
        cameras=tuple(camera.name for camera in load_ros_config("twin").cameras),
        image_shape=(options.image_size, options.image_size),
        proprio_dim=PROPRIO_DIM,
        action_dim=ACTION_DIM,
        action_low=(-1.0,) * ACTION_DIM,
        action_high=(1.0,) * ACTION_DIM,
        control_hz=1e9 / STEP_NS,
        max_episode_steps=steps,
    )


if __name__ == "__main__":
    print(json.dumps(main(float(sys.argv[1]), Path(sys.argv[2]))))

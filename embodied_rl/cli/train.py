"""`embodied-rl train BENCHMARK`: improve a policy with reinforcement learning; everything lands in one folder."""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

from embodied_rl.cli.launch import LAUNCHED, end_with_launcher, launch
from embodied_rl.cli.select import Selection, select
from embodied_rl.config.policies import PolicyObjectConfig
from embodied_rl.config.robot import TWIN, is_real
from embodied_rl.config.suites import suite_named
from embodied_rl.config.train import AUTO, TrainConfig, kind_of
from embodied_rl.errors import UserError
from embodied_rl.jobs.run_folder import CONFIG_FILE, existing_run, new_run
from embodied_rl.policies.checkpoints.hub import is_repository
from embodied_rl.policies.checkpoints.shipped import is_shipped
from embodied_rl.real_robot.core.robot import robot_path
from embodied_rl.real_robot.ros2.environment import enter, ros_environment
from embodied_rl.telemetry.trackers import need_tracker
from embodied_rl.utils.output import try_file, try_folder
from embodied_rl.utils.plugins import import_words
from embodied_rl.utils.ranks import ProcessRank
from embodied_rl.utils.strict_yaml import read_mapping

EXIT_BAD_INPUT, EXIT_INTERRUPTED = 2, 130


def main(argv: list[str]) -> int:
    """Run the command: 0 when training is done, 1 when it broke down, 130 when Ctrl-C stopped it."""
    place = ProcessRank.from_env()
    if not place.is_main:
        end_with_launcher()
        return _guarded(_train_as_worker, speaks=False)
    chosen = select(argv)
    if chosen.config is not None:
        _check(chosen.config, chosen.benchmark)
    processes = num_processes(chosen)
    if processes > 1 and not place.launched:
        return launch(processes, [sys.executable, "-m", "embodied_rl", "train", *argv, *import_words()])
    if robot := _in_file(chosen, "robot") if chosen.config is None else chosen.config.robot:
        twin = robot == TWIN
        environment = ros_environment(domain=1 + os.getpid() % 100 if twin else None, loopback=twin)
        enter("embodied_rl", ["train", *argv, *import_words()], environment)
    end_with_launcher()
    command = shlex.join(["embodied-rl", "train", *argv, *import_words()])
    if chosen.resume:
        claimed = existing_run(chosen.resume, chosen.iterations, chosen.episodes)
    else:
        assert chosen.config is not None
        claimed = new_run(chosen.config)
    with claimed as config:

        def train_as_main() -> None:
            # Only now torch and the simulator: a typing error should not wait for them.
            from embodied_rl.jobs.train import run

            if chosen.processes is not None:
                ranked = dataclasses.replace(config.learner, num_processes=chosen.processes)
                asked = dataclasses.replace(config, learner=ranked)
            else:
                asked = config
            run(asked, command, benchmark=chosen.benchmark, resume=chosen.resume is not None, start=chosen.start)

        return _guarded(train_as_main, speaks=True)


def num_processes(chosen: Selection) -> int:
    """How many ranks the command asks for; a resumed run has as many as it had, unless told."""
    if chosen.config is not None:
        return chosen.config.learner.num_processes
    if chosen.processes is not None:
        return chosen.processes
    learner = _in_file(chosen, "learner")
    found = learner.get("num_processes") if isinstance(learner, dict) else None
    return found if isinstance(found, int) else 1


def _in_file(chosen: Selection, key: str) -> object:
    """What the config of the run that is resumed says; what is wrong with the file is said when the run is claimed."""
    assert chosen.resume is not None
    path = chosen.resume / CONFIG_FILE
    return read_mapping(path).get(key) if path.is_file() else None


def _train_as_worker() -> None:
    from embodied_rl.jobs.ranks import WorkerRankError, train_as_worker_rank

    try:
        train_as_worker_rank()
    except WorkerRankError:
        raise SystemExit(EXIT_BAD_INPUT) from None
    except KeyboardInterrupt:
        raise SystemExit(EXIT_INTERRUPTED) from None


def _guarded(work: Callable[[], None], *, speaks: bool) -> int:
    """Do the work; 1 after a line if training broke down. speaks: this is the rank that says what all ranks find."""
    from embodied_rl.learner.distributed.collectives import RankError
    from embodied_rl.learner.types import NonFiniteError, RatioError

    try:
        work()
    except (NonFiniteError, RatioError, RankError) as error:
        # A launcher of ours says which rank was lost; under others each rank must.
        if LAUNCHED not in os.environ if isinstance(error, RankError) else speaks:
            print(f"embodied-rl: error: {error}", file=sys.stderr)
        return 1
    return 0


def _check(config: TrainConfig, benchmark: str) -> None:
    """Raise UserError for what can be refused without torch."""
    from embodied_rl.sim.libero.protocol import protocol

    if config.robot:
        robot_path(config.robot)
    anything = bool(config.data) or is_real(config.robot)
    suite = None if anything else suite_named(config.suite)  # before anything is said about it
    protocol(config.protocol)  # raises for an unknown one
    if config.trace:
        try_file("--trace", Path(config.trace))
    if config.output != AUTO:
        try_folder("--output", Path(config.output))
    if config.track != "none":
        need_tracker(config.track)
    if isinstance(config.policy, PolicyObjectConfig):
        raise UserError(
            f"policy {config.policy.class_name} was passed to embodied_rl.train as an object: register it "
            "(embodied_rl.register_policy) and name it with --policy."
        )
    needed = config.policy.observes == "images" and (suite is None or suite.observes == "images")
    if config.policy.checkpoint or needed:
        _check_checkpoint(kind_of("policy", config.policy), config.policy.checkpoint)


def _check_checkpoint(policy: str, checkpoint: str) -> None:
    if not checkpoint:
        raise UserError(
            f"no {policy} ships with the package: make one with embodied-rl sft --policy {policy}, or name "
            "a published one, with --policy.checkpoint."
        )
    if not is_shipped(checkpoint) and not Path(checkpoint).exists() and not is_repository(checkpoint):
        raise UserError(
            f"no checkpoint at {checkpoint}: name the folder that sft or train wrote, or OWNER/NAME on the "
            "Hugging Face hub."
        )

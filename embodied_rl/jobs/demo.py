"""Records a video of some episodes of a policy, one after another, as one MP4. Imports torch and the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from embodied_rl.config.env import ENVS, one_env
from embodied_rl.config.suites import suite_named
from embodied_rl.errors import UserError
from embodied_rl.evaluation.benchmark import interleaved
from embodied_rl.factory.backends import check_fits, check_observes, check_told_apart
from embodied_rl.factory.made_for import as_learned, need_as_learned, simulator_for, trained_env
from embodied_rl.factory.policies import open_policy, policy_folder
from embodied_rl.factory.suites import load, open_tasks
from embodied_rl.factory.view import view_of
from embodied_rl.jobs.videos import record_frames
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.telemetry.video import VideoWriter, caption_rows, captioned, write_gif
from embodied_rl.types import Array, EpisodeResult
from embodied_rl.utils.console import LastingConsole
from embodied_rl.utils.machine import pick_device
from embodied_rl.utils.words import counted, sentence
from embodied_rl.vec_env import SimulatorFailed

if TYPE_CHECKING:
    from embodied_rl.factory.policies import CheckpointOptions

_STILL_S = 0.6
"""Seconds for which the last picture of an episode stays."""


def run(
    options: CheckpointOptions, suite: str, names: Sequence[str], episodes: int, path: Path, *, gif: bool = False
) -> list[EpisodeResult]:
    """Record `episodes` episodes of the policy that `options` names, from held-out states of the tasks in turn.

    Args:
        names: short names of tasks (none: all of the suite).
        path: the MP4; with `gif` also a GIF of the same name.

    Returns:
        The recorded episodes.

    Raises:
        UserError: The checkpoint does not fit the suite, or the simulator draws no images.
    """
    console = LastingConsole()
    begun, key = options.checkpoint, options.unnorm_key
    trained = trained_env(begun, suite, key) if suite_named(suite).observes == "any" else None
    config = one_env(trained or as_learned(ENVS[simulator_for(begun, suite)](), names, begun, suite, key))
    tasks = load(suite, names, config)
    folder = policy_folder(options.checkpoint)
    policy = open_policy(options.checkpoint, pick_device("auto"), options.load_options(folder))
    check_observes(policy, tasks.suite, options.checkpoint)
    check_told_apart(policy.architecture, tasks.names)
    results: list[EpisodeResult] = []
    video: list[Array] = []
    with open_tasks(tasks, config, view_of(policy)) as env:
        check_fits(policy, env.info, options.checkpoint)
        key = getattr(policy, "unnorm_key", None)
        need_as_learned(read_provenance(folder), config, env.info, options.checkpoint, key)
        hz, flagged = env.info.control_hz, env.info.has_success
        for spec in interleaved(evaluation_specs(env.heldout_states, seed=0))[:episodes]:
            try:
                result, frames = record_frames(env, policy, spec, "greedy")
            except SimulatorFailed as error:
                console.say(f"  left out: {error}")
                continue
            except NotImplementedError as error:
                raise UserError(f"there is nothing to record: {error}") from error
            caption = sentence(spec.task)
            frames += frames[-1:] * round(_STILL_S * hz)
            # of all tasks: a video has one size
            rows = caption_rows(map(sentence, env.heldout_states), frames[0].shape[1], flagged=flagged)
            video += [captioned(frame, caption, result.success if flagged else None, rows) for frame in frames]
            results.append(result)
            console.say(f"  {_outcome(result, has_success=flagged)}  {caption}")
    with VideoWriter(path, hz) as writer:
        for frame in video:
            writer.write(frame)
    won = sum(result.success for result in results)
    total = f"{won} of {len(results)} episodes succeeded" if flagged else _mean(results)
    console.say(f"{total}; video: {path}")
    if gif:
        write_gif(path.with_suffix(".gif"), video[::2], hz / 2)
        console.say(f"GIF: {path.with_suffix('.gif')}")
    return results


def _outcome(result: EpisodeResult, *, has_success: bool) -> str:
    """'success', 'failure', or the return where tasks have no success flag."""
    if not has_success:
        return f"return {result.reward:.1f}"
    return "success" if result.success else "failure"


def _mean(results: Sequence[EpisodeResult]) -> str:
    mean = sum(result.reward for result in results) / max(1, len(results))
    return f"{counted(len(results), 'episode')}, mean return {mean:.1f}"

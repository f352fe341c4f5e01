"""Trains a reward model on demonstrations and writes its card. Imports torch."""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from embodied_rl.config.suites import usual_env
from embodied_rl.data import lerobot
from embodied_rl.data.chunks import held_out_episodes
from embodied_rl.data.lerobot import Demonstrations
from embodied_rl.errors import UserError
from embodied_rl.evaluation.benchmark import interleaved
from embodied_rl.factory.backends import check_observes
from embodied_rl.factory.made_for import need_control_rate
from embodied_rl.factory.policies import CheckpointOptions, open_policy, policy_folder
from embodied_rl.factory.suites import load, open_tasks
from embodied_rl.factory.view import view_of
from embodied_rl.policies.checkpoints.folder import read_provenance
from embodied_rl.policies.checkpoints.hub import is_repository, resolve
from embodied_rl.rewards.card import JudgedEpisode, demonstration_figures, judge_episode, rollout_figures
from embodied_rl.rewards.config import PromptConfig, RewardTrainConfig
from embodied_rl.rewards.judge import Judge
from embodied_rl.rewards.open import open_judge
from embodied_rl.rewards.progress import ProgressModel, load_progress, save_progress
from embodied_rl.rewards.rollouts import judge_rollouts
from embodied_rl.rewards.train import fit_progress
from embodied_rl.rollout.sampler import evaluation_specs
from embodied_rl.sim.mujoco.robot import PANDA
from embodied_rl.utils.machine import pick_device
from embodied_rl.utils.output import replace_text
from embodied_rl.utils.words import counted
from embodied_rl.version import __version__

_NUM_ENVS = 8


@dataclass(frozen=True, slots=True)
class CardSample:
    """The policy's episodes on a card: how many, 0 for none, and where ('': in the suite of the data set)."""

    episodes: int
    suite: str = ""


def train_reward(dataset: Path, out: Path, config: RewardTrainConfig, command: str, console: Console) -> None:
    """Train a progress model on `dataset`, into the folder `out`, and print how well it follows held-out episodes."""
    data = _load(dataset)
    sha256, began = lerobot.fingerprint(dataset), time.process_time()
    console.print(
        f"{dataset}: {counted(len(data), 'demonstration')}, {counted(len(data.images), 'frame')}, sha256 {sha256[:12]}",
        soft_wrap=True,
    )
    model = fit_progress(data, config, console)
    seconds = round(time.process_time() - began)
    provenance = {
        "command": command,
        "version": __version__,
        "config": dataclasses.asdict(config),
        "dataset": {"path": str(dataset), "sha256": sha256, "collected": data.source},
        "cameras": data.camera_names,
        "cpu_seconds": seconds,
    }
    save_progress(model, out, provenance)
    console.print(f"wrote {out} after {counted(seconds, 'CPU second')}", soft_wrap=True)
    held_out = _held_out(data, sha256, provenance)
    if len(held_out):
        console.print(
            f"held out: {demonstration_figures(_judge_demonstrations(model, data, held_out))}", soft_wrap=True
        )


def write_card(
    model: str, dataset: Path, options: CheckpointOptions, prompts: PromptConfig, sample: CardSample, console: Console
) -> dict[str, Any]:
    """Measure a reward model on held-out demonstrations and on a policy's episodes; print and return figures.

    card.json in its folder has them too, unless the folder is in the hub's cache. Of another data set than the one that
    it learned from, all demonstrations count.

    Raises:
        UserError: no demonstration is held out, the data set does not name its suite, or no episode could be judged.
    """
    folder, device = resolve(model), pick_device("auto")
    judge = open_judge(folder, prompts, device)
    data, sha256 = _load(dataset), lerobot.fingerprint(dataset)
    rows = list(range(len(data)))
    if isinstance(judge, ProgressModel):
        rows = _held_out(data, sha256, load_progress(folder)[1])
    if not rows:
        raise UserError(f"{folder} learned from all of {dataset}: train it with --validation, or name other data")
    figures: dict[str, Any] = {"dataset": sha256}
    demonstrated, unknown = _known(_judge_demonstrations(judge, data, rows), f"demonstration of {dataset}")
    figures |= demonstration_figures(demonstrated)
    if sample.episodes:
        suite = sample.suite or data.source.get("suite", "")
        if not suite:
            raise UserError(f"{dataset} does not say in which suite it was collected: name it with --suite")
        rolled, more = _known(_roll_out(judge, options, suite, sample.episodes), "episode of the policy")
        unknown += more
        figures |= rollout_figures(demonstrated, rolled) | {"policy": options.checkpoint, "suite": suite}
    if answers := judge.drain():
        figures |= {name.removeprefix("reward/"): int(count) for name, count in answers.items()}
        figures["episodes_left_out"] = unknown
    if not is_repository(model):
        _write(folder / "card.json", figures)
    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(name.replace("_", " "), f"{value:.3f}" if isinstance(value, float) else str(value))
    console.print(table)
    return figures


def _write(path: Path, figures: dict[str, Any]) -> None:
    try:
        replace_text(path, json.dumps(figures, indent=1) + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror})") from error


def _known(episodes: list[JudgedEpisode], what: str) -> tuple[list[JudgedEpisode], int]:
    """The episodes of which every frame was judged, and the number of the others."""
    known = [each for each in episodes if not (np.isnan(each.progress).any() or np.isnan(each.done).any())]
    if episodes and not known:
        raise UserError(f"the model's answers to not one {what} can all be read: it does not judge as asked")
    return known, len(episodes) - len(known)


def _load(dataset: Path) -> Demonstrations:
    data = lerobot.load(dataset)
    if "recordings" in data.source and not data.success.all():
        raise UserError(
            f"{dataset}: {int((~data.success).sum())} of {len(data)} episodes do not end in success, and a reward "
            "model takes each last frame for one: export successes only, of attempts in which the arm never held"
        )
    if data.source.get("split") == "heldout":
        raise UserError(
            f"{dataset} starts from held-out states, which evaluation needs unseen; collect with --split train"
        )
    return data


def _held_out(data: Demonstrations, sha256: str, provenance: dict[str, Any]) -> list[int]:
    """Numbers of the episodes that the model has not learned from."""
    if provenance["dataset"]["sha256"] != sha256:
        return list(range(len(data)))
    config = provenance["config"]
    return np.flatnonzero(held_out_episodes(data, validation=config["validation"], seed=config["seed"])).tolist()


def _judge_demonstrations(judge: Judge, data: Demonstrations, episodes: list[int]) -> list[JudgedEpisode]:
    judged = []
    for episode in episodes:
        rows = np.arange(data.starts[episode], data.starts[episode + 1])
        words = [data.instruction[row] for row in rows]
        judged.append(judge_episode(judge, torch.from_numpy(data.images[rows]), words, success=True))
    return judged


def _roll_out(judge: Judge, options: CheckpointOptions, suite: str, episodes: int) -> list[JudgedEpisode]:
    """So many judged episodes of a policy, from held-out states of a suite, task by task."""
    config = usual_env(suite, _NUM_ENVS)
    tasks = load(suite, (), config)
    folder = policy_folder(options.checkpoint)
    policy = open_policy(options.checkpoint, pick_device("auto"), options.load_options(folder))
    check_observes(policy, tasks.suite, options.checkpoint)
    need_control_rate(read_provenance(folder), PANDA.control_hz, options.checkpoint)
    specs = interleaved(evaluation_specs(tasks.heldout_states, seed=0))[:episodes]
    with open_tasks(tasks, config, view_of(policy)) as env:
        return judge_rollouts(judge, env, policy, specs)

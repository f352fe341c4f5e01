"""`embodied-rl reward ACTION`: make a reward model from demonstrations, and say how far it can be trusted."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from embodied_rl.cli.help import example_lines
from embodied_rl.cli.parse import parse, wants_help
from embodied_rl.errors import UserError, suggest
from embodied_rl.factory.policies import CheckpointOptions
from embodied_rl.policies.checkpoints.hub import resolve
from embodied_rl.rewards.config import PromptConfig, RewardTrainConfig
from embodied_rl.utils.output import try_output

ACTIONS = ("train", "card")
USAGE = """\
usage: embodied-rl reward train DATASET --out DIR
       embodied-rl reward card MODEL DATASET [--episodes N]

Make a reward model from demonstrations, and say how far it can be trusted.

  train    a small network that sees how far a task has come, and whether it is
           done, from demonstrations that `embodied-rl collect` made
  card     on demonstrations that it has not seen: does it follow time, does it
           know success? On a policy's episodes: does it reward failures?
           MODEL may also be a CLIP-like or an image-text-to-text model of
           transformers: a folder, or OWNER/NAME on the Hugging Face hub
"""


@dataclass(frozen=True, kw_only=True)
class TrainRewardCommand(RewardTrainConfig):
    """Train a progress model on demonstrations that end in success."""

    dataset: Annotated[str, tyro.conf.Positional]
    """Folder of the dataset, as `embodied-rl collect` makes it, or OWNER/NAME[@REVISION] on the Hugging Face hub."""
    out: Path
    """Folder of the model; it must not exist yet."""


@dataclass(frozen=True, kw_only=True)
class CardRewardCommand(CheckpointOptions, PromptConfig):
    """Measure a reward model on held-out demonstrations and on a policy's episodes."""

    model: Annotated[str, tyro.conf.Positional]
    """Folder of the reward model, where card.json will hold the figures, or OWNER/NAME[@REVISION] of one on the Hugging
    Face hub."""
    dataset: Annotated[str, tyro.conf.Positional]
    """The dataset, as of `train`; where the model learned from it, only the episodes that were held out count."""
    episodes: int = 100
    """Episodes of the policy, sampled from held-out initial states; 0: demonstrations alone."""
    suite: str = ""
    """Suite in which the policy acts ('': the one that the dataset was collected in)."""

    def __post_init__(self) -> None:
        CheckpointOptions.__post_init__(self)
        PromptConfig.__post_init__(self)


def main(argv: list[str]) -> int:
    """Run the action."""
    action, rest = (argv[0], argv[1:]) if argv else ("", [])
    if action not in ACTIONS and wants_help(argv):
        print(USAGE + "\n".join(example_lines("reward")))
        return 0
    if action not in ACTIONS:
        given = f"unknown action '{action}'.{suggest(action, ACTIONS)}" if action else "choose an action."
        raise UserError(f"reward: {given} There are {', '.join(ACTIONS)}.")
    return _train(rest) if action == "train" else _card(rest)


def _train(argv: list[str]) -> int:
    command = parse(TrainRewardCommand, argv, "reward train")
    try_output("--out", command.out)
    if command.out.exists():
        raise UserError(f"{command.out} already exists; choose another --out or remove it")
    from embodied_rl.jobs.reward import train_reward  # torch, only now
    from embodied_rl.utils.console import LastingConsole

    names = RewardTrainConfig.__dataclass_fields__
    config = RewardTrainConfig(**{name: getattr(command, name) for name in names})
    words = shlex.join(["embodied-rl", "reward", "train", *argv])
    train_reward(resolve(command.dataset, "dataset"), command.out, config, words, LastingConsole())
    return 0


def _card(argv: list[str]) -> int:
    command = parse(CardRewardCommand, argv, "reward card")
    if not 0 <= command.episodes <= 100_000:
        raise UserError(f"--episodes must lie in 0 to 100000, got {command.episodes}")
    from embodied_rl.jobs.reward import CardSample, write_card  # torch and the simulator, only now
    from embodied_rl.utils.console import LastingConsole

    sample = CardSample(command.episodes, command.suite)
    write_card(command.model, resolve(command.dataset, "dataset"), command, command, sample, LastingConsole())
    return 0

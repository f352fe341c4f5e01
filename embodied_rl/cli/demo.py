"""`embodied-rl demo`: records a policy at work; without options the one in the package, in about 20 seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from embodied_rl.cli.parse import flag_words, parse, value_of, with_tasks
from embodied_rl.cli.suites import with_suite
from embodied_rl.config.suites import is_custom
from embodied_rl.config.train import SUITE
from embodied_rl.errors import UserError
from embodied_rl.factory.made_for import import_modules_of, suite_of
from embodied_rl.factory.policies import CheckpointOptions
from embodied_rl.jobs.eval_request import SUITES_OF, suite_name
from embodied_rl.utils.output import try_file, try_folder

MAX_EPISODES = 100


@dataclass(frozen=True, kw_only=True)
class DemoCommand(CheckpointOptions):
    """Record some episodes of a policy as one MP4: by default of the small one in the package, on the tabletop."""

    suite: str = SUITE
    """Suite of tasks."""
    tasks: tuple[str, ...] = ()
    """Short names of the tasks (none given: all of the suite); --task NAME names one."""
    episodes: int = 3
    """Episodes, each of the next task, from held-out initial states."""
    out: Path = Path("demo.mp4")
    """The video; one that is there is replaced."""
    gif: bool = False
    """Also write a GIF beside it, for pages that play no MP4."""


def main(argv: list[str]) -> int:
    """Run the command."""
    words = with_suite(with_tasks(argv))
    checkpoint = value_of(words, "--checkpoint")
    import_modules_of(checkpoint)
    trained = suite_of(checkpoint) if checkpoint and "--suite" not in flag_words(words) else None
    if words and words[0] not in SUITES_OF and not words[0].startswith("-") and is_custom(words[0]):
        words = ["--suite", *words]
    elif trained is not None and is_custom(trained):
        words += ["--suite", trained]
    named = words[:1] if words and words[0] in SUITES_OF else []
    if named and "--suite" not in flag_words(words):
        words += ["--suite", suite_name(named[0], "spatial")]
    command = parse(DemoCommand, words[len(named) :], "demo")
    if not 1 <= command.episodes <= MAX_EPISODES:
        raise UserError(f"--episodes must lie in 1 to {MAX_EPISODES}, got {command.episodes}.")
    if command.out.suffix != ".mp4":
        raise UserError(f"--out {command.out}: a video's name ends in .mp4.")
    try_folder("--out", command.out.absolute().parent)
    if command.out.absolute().parent.is_dir():
        try_file("--out", command.out)
    from embodied_rl.jobs.demo import run  # torch and the simulator, only now

    run(command, command.suite, command.tasks, command.episodes, command.out, gif=command.gif)
    return 0

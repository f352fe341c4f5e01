"""The `embodied-rl` program: one table of commands, each in its own module, imported only when it is called."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence

from embodied_rl.errors import UserError, suggest
from embodied_rl.utils.kernel_cache import use_writable_cache
from embodied_rl.utils.plugins import import_modules
from embodied_rl.utils.signals import whole_imports
from embodied_rl.version import __version__, newer_mujoco

# Each name is a module of this package with `main(argv: list[str]) -> int`.
COMMANDS = {
    "train": "improve a policy with reinforcement learning in simulation",
    "eval": "measure a policy's success on held-out initial states",
    "leaderboard": "measure several checkpoints alike, and say which are better",
    "runs": "find a training run, and say whether it went as it should",
    "watch": "make a detector that says when an episode is going to fail",
    "explain": "say why two evaluations of one checkpoint differ",
    "view": "look at a policy at work in a browser, and take it over",
    "demo": "record a video of a policy at work, in about 20 seconds",
    "collect": "record demonstrations with the scripted expert",
    "sft": "train a policy on demonstrations (imitation)",
    "reward": "make a reward model from demonstrations, and say how far to trust it",
    "export": "write a policy, or a robot's recordings, as other programs read them",
    "serve": "answer robots' observations over the network",
    "deploy": "run a policy on an arm under ROS 2, or on its twin",
    "plan": "say what training a policy needs, and what fits on a GPU",
    "bench": "measure speed; prints a table, writes JSON",
    "assets": "install benchmark files that cannot be shipped (LIBERO, MetaWorld)",
    "doctor": "say what this machine can run, and why",
}

HELP = f"""\
embodied-rl {__version__}: reinforcement learning for vision-language-action robot policies.

usage: embodied-rl COMMAND [options]        (embodied-rl COMMAND --help lists a command's options)

commands:
{chr(10).join(f"  {name:<13}{summary}" for name, summary in COMMANDS.items())}

examples:
  embodied-rl train tabletop
      Improve a small OpenVLA with PPO. Works on a laptop: no GPU, no download.
  embodied-rl train libero --policy openvla
      The same on LIBERO-Spatial, once `embodied-rl assets install libero` has run; before it, on the tabletop.
  embodied-rl train tabletop --policy openvla --algorithm grpo --seed 1 --iterations 10
      The same policy with GRPO; any value of the config can be set as --name value.
  embodied-rl train my_suite --policy mlp --import my_package.my_module
      In a simulator of your own: the module registers it (with any command).
  embodied-rl train --resume runs/NAME
      Continue a stopped run exactly where its last checkpoint left it.
  source <(embodied-rl --print-completion bash)
      Complete commands and options with Tab; also zsh and fish.
"""

_GL = (
    "",
    "egl",
    "osmesa",
    "glx",
    "glfw",
    "disable",
    "disabled",
    "off",
    "false",
    "0",
    "on",
    "enable",
    "enabled",
    "true",
    "1",
)
"""What MUJOCO_GL may be; importing mujoco with another value fails."""
_OF_PATHS = (errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)
"""Errors of the file system that a user mends by naming another path."""
_LONGEST = 600

EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report it
EXIT_BROKEN_PIPE = 141  # 128 + SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code: 0 done, 2 bad input (one line on stderr), 130 interrupted."""
    # Idle OpenMP threads sleep: spinning takes the cores from others. It is read when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    args = list(sys.argv[1:] if argv is None else argv)
    _tolerate_any_character()
    try:
        with whole_imports():
            return _dispatch(args)
    except UserError as error:
        print(f"embodied-rl: error: {_short(str(error.args[0]))}", *error.choices, sep="\n", file=sys.stderr)
        return EXIT_BAD_INPUT
    except KeyboardInterrupt as interrupt:
        print(f"embodied-rl: {str(interrupt) or 'interrupted'}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except SystemExit as leave:  # tyro leaves this way after --help
        return int(leave.code or 0)
    except BrokenPipeError:
        # The reader left (`| head`): nobody is there to tell, and Python must not try again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, *_OF_PATHS):
            raise
        where = f" ({_short(str(error.filename))})" if error.filename else ""
        full = f"the disk is full{where}: free some space; a run can be resumed."
        text = full if error.errno == errno.ENOSPC else f"{error.strerror}{where}."
        print(f"embodied-rl: error: {text}", file=sys.stderr)
        return EXIT_BAD_INPUT


def _short(text: str) -> str:
    """One line of a length that can be read: a checkpoint that does not fit may name thousands of tensors."""
    line = " ".join(text.split())
    if len(line) <= _LONGEST:
        return line
    return f"{line[: _LONGEST - 150]} [...] {line[-100:]}"


def _dispatch(args: list[str]) -> int:
    if not args:
        print(HELP, end="", file=sys.stderr)
        return EXIT_BAD_INPUT
    args, modules = take_imports(args)
    command, rest = args[0] if args else "help", args[1:]
    if command in ("-h", "--help", "help"):
        print(HELP, end="")
        return 0
    if command == "--version":
        print(__version__)
        if note := newer_mujoco():
            print(note)
        return 0
    if command == "--print-completion":
        print(importlib.import_module("embodied_rl.cli.completion").script(rest))
        return 0
    if command not in COMMANDS:
        raise UserError(f"unknown command '{command}'.{suggest(command, COMMANDS)}")
    if os.environ.get("MUJOCO_GL", "").lower().strip() not in _GL:
        names = ", ".join(name for name in _GL if name.isalpha())
        raise UserError(f"MUJOCO_GL={os.environ['MUJOCO_GL']}: MuJoCo knows no such backend; unset it, or use {names}.")
    if moved := use_writable_cache():
        print(f"embodied-rl: {moved}", file=sys.stderr)
    import_modules(modules)
    return int(importlib.import_module(f"embodied_rl.cli.{command}").main(rest) or 0)


def take_imports(args: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words without `--import MODULE`, which any command takes, and the modules."""
    rest, modules, coming = list[str](), list[str](), iter(args)
    for word in coming:
        name, equals, value = word.partition("=")
        if name != "--import":
            rest.append(word)
            continue
        modules.append(value if equals else next(coming, ""))
        if not modules[-1] or modules[-1].startswith("-"):
            raise UserError("--import needs the name of a module, such as my_package.my_module.")
    return rest, modules


def _tolerate_any_character() -> None:
    """Let stdout and stderr write what a terminal that is not UTF-8 lacks as `\\xNN` or `?`, and not fail."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")

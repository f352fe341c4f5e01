"""What `--help` prints: the options that most people need. `--help-all` prints the expert options too.

Options are the fields of a command's dataclass; their texts are the strings below the fields. `reference.py` makes
docs/reference/cli.md and docs/reference/config.md of the same tables.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import shutil
import textwrap
import types
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

from embodied_rl.utils.options import EXPERT

SHOWN_BY = {
    "BenchmarkCommand": ("env.render-quality",),
    "CardRewardCommand": ("goal-prompt", "baseline-prompt", "projection"),
}
"""Expert options that the help of a command shows all the same, by the name of its dataclass."""

EXAMPLES: dict[str, tuple[tuple[str, str], ...]] = {
    "train": (
        ("embodied-rl train tabletop", "PPO on the policy in the package; no GPU, no download"),
        ("embodied-rl train tabletop --algorithm grpo --seed 1 --iterations 10", "GRPO, ten updates, another seed"),
        ("embodied-rl train tabletop --policy pi0 --policy.checkpoint pi0-start", "a policy that `sft` made"),
        ("embodied-rl train gymnasium --task Pendulum-v1", "a small policy of the state of a gymnasium task"),
        ("embodied-rl train --resume runs/NAME", "go on where the last checkpoint left off"),
    ),
    "eval": (
        ("embodied-rl eval --checkpoint runs/NAME --states-per-task 10", "a quick look at a run's newest policy"),
        ("embodied-rl eval tabletop --suite goal --output runs/goal", "a whole suite, with a report and videos"),
        ("embodied-rl eval --resume runs/goal", "finish one that was stopped"),
    ),
    "leaderboard": (
        ("embodied-rl leaderboard tabletop.yaml", "into runs/leaderboard-tabletop; again: goes on where it stopped"),
        ("embodied-rl leaderboard tabletop.yaml --output board", "into a folder of your own"),
        ("embodied-rl leaderboard tabletop.yaml --jobs 4", "four evaluations side by side"),
    ),
    "watch": (
        (
            "embodied-rl watch start --demos demos --out detector.safetensors",
            "100 episodes, and a table beside a clock",
        ),
        ("embodied-rl watch --kept runs/kept --demos demos --out d.safetensors", "of episodes that are there already"),
    ),
    "explain": (
        ("embodied-rl explain mine.yaml theirs.yaml", "which difference costs how much success"),
        ("embodied-rl explain runs/eval-a runs/eval-b --episodes 200", "two evaluations that were run here"),
        ("embodied-rl explain mine.yaml --perturb camera light", "what each perturbation costs, on the same states"),
    ),
    "runs": (
        ("embodied-rl runs list", "what is in runs/"),
        ("embodied-rl runs compare runs/NAME", "is it inside the interval of its recipe's reference runs?"),
        ("embodied-rl runs compare runs/A runs/B", "what differs, and success on the same states"),
    ),
    "view": (
        ("embodied-rl view tabletop", "the policy in the package, in a browser"),
        ("embodied-rl view runs/NAME --port 0 --no-browser", "a run's newest; open the address that it prints"),
    ),
    "demo": (
        ("embodied-rl demo", "record the policy in the package"),
        ("embodied-rl demo --checkpoint runs/NAME --episodes 2 --gif", "a trained one, as a GIF too"),
    ),
    "collect": (("embodied-rl collect tabletop_spatial --out demos", "demonstrations of a suite"),),
    "sft": (
        ("embodied-rl sft demos --out start", "imitate them, from scratch"),
        ("embodied-rl sft demos --checkpoint start --out more", "go on from a policy, ours or published"),
        ("embodied-rl sft so100 --policy pi0 --gripper none --out start", "another robot's joints"),
        ("embodied-rl sft a:3 b:1 --policy pi0 --out both", "two data sets, three samples to one"),
    ),
    "reward": (
        ("embodied-rl reward train demos --out reward", "a small network that sees progress and success"),
        ("embodied-rl reward card reward demos", "does it follow time, know success, reward failures?"),
    ),
    "export": (
        ("embodied-rl export --checkpoint runs/NAME --out exported", "the layout of the policy's own project"),
        ("embodied-rl export run.mcap --to lerobot --out demos", "a robot's recording, as a data set for sft"),
        ("embodied-rl export demos --push OWNER/NAME", "a data set, with its card, on the Hugging Face hub"),
    ),
    "serve": (
        ("embodied-rl serve shipped --port 8000", "the policy in the package, for programs of this machine"),
        ("embodied-rl serve runs/NAME --host 0.0.0.0 --token SECRET", "a trained one, for robots on the network"),
    ),
    "deploy": (
        ("embodied-rl deploy shipped --robot twin --episodes 5", "a simulated arm over real ROS 2"),
        ("embodied-rl deploy --robot arm.yaml --instruction 'open it' --dry-run", "nothing moves"),
        ("embodied-rl deploy start --detector d.safetensors", "a person is asked for; else it holds"),
    ),
    "plan": (
        ("embodied-rl plan --policy openvla --gpu 80", "what fits on an 80 GiB GPU"),
        ("embodied-rl plan tabletop", "which scheduler suits this machine"),
    ),
    "bench": (
        ("embodied-rl bench sim --quick", "see that it runs"),
        ("embodied-rl bench loop --json loop.json", "figures of the whole training loop"),
    ),
    "assets": (
        ("embodied-rl assets install libero", "download LIBERO's files and export its tasks"),
        ("embodied-rl assets install metaworld", "fetch MetaWorld, 37 MB"),
        ("embodied-rl assets status libero", "what is installed"),
    ),
    "doctor": (
        ("embodied-rl doctor", "what this machine can run"),
        ("embodied-rl doctor --policy runs/NAME", "is a policy read as it was trained?"),
        ("embodied-rl doctor libero --suite spatial", "do LIBERO's initial states hold what the tasks say?"),
    ),
}

_INDENT = 30
_MAX_WIDTH = 100
_WRAP: dict[str, Any] = {"break_on_hyphens": False, "break_long_words": False}


@dataclass(frozen=True, slots=True)
class Option:
    """One option: `name` without dashes ('env.num-envs'), `value` as shown in the help ('INT'), `default` or ''."""

    name: str
    value: str
    text: str
    default: str
    positional: bool = False
    expert: bool = False

    @property
    def flag(self) -> str:
        """As it is typed: '--env.num-envs INT', '--compile, --no-compile' or 'NAME'."""
        if self.positional:
            return self.name.upper()
        if self.value:
            return f"--{self.name} {self.value}"
        head, _, tail = self.name.rpartition(".")
        return f"--{self.name}, --{head}{'.' if head else ''}no-{tail}"


def options(source: Any) -> Iterator[tuple[str, str, list[Option]]]:
    """Groups of options of a dataclass, or of an instance whose values are then the defaults.

    Yields (title, text, options): the class's own first, those that it inherits from each base, then nested ones.
    """
    cls = source if isinstance(source, type) else type(source)
    owners = {name: base for base in reversed(cls.__mro__) for name in inspect.get_annotations(base)}
    nested = [item for item in dataclasses.fields(cls) if dataclasses.is_dataclass(_value(source, item))]
    for base in cls.__mro__:
        names = [
            item
            for item in dataclasses.fields(cls)
            if owners[item.name] is base and _is_flag(item) and item not in nested
        ]
        if names:
            title = "options" if base is cls else _first_line(base)
            yield title, "", [_option(source, cls, item, "") for item in names]
    for item in nested:
        part = _value(source, item)
        rows = [_option(part, type(part), inner, f"{item.name}.") for inner in dataclasses.fields(part)]
        if rows:
            yield item.name, _first_line(type(part)), rows


def _is_flag(item: dataclasses.Field[Any]) -> bool:
    """Whether the field is an option of the command; another flag may have read it already."""
    return "flag" not in item.metadata


def help_text(source: Any, command: str, *, usage: str = "", everything: bool = False) -> str:
    """The whole help of `command` ('train tabletop'); `usage` replaces the lines at its top."""
    width = max(60, min(shutil.get_terminal_size().columns, _MAX_WIDTH))
    cls = source if isinstance(source, type) else type(source)
    lines = [usage.rstrip() or f"usage: embodied-rl {command} [options]\n\n{_filled(inspect.getdoc(cls) or '', width)}"]
    hidden, always = 0, SHOWN_BY.get(cls.__name__, ())
    for title, text, rows in options(source):
        shown = [row for row in rows if everything or not row.expert or row.name in always]
        hidden += len(rows) - len(shown)
        if shown:
            lines.append("\n" + textwrap.fill(f"{title.rstrip('.')}:{' ' if text else ''}{text}", width))
            lines += [_entry(row, width) for row in shown]
    lines += example_lines(command.split()[0])
    if hidden:
        lines.append(f"\n[..] is the default. {hidden} more options, for experts: --help-all")
    return "\n".join(lines) + "\n"


def example_lines(command: str) -> list[str]:
    """The examples of a command, each with what it does below it."""
    return ["\nexamples:", *(f"  {line}\n      {text}" for line, text in EXAMPLES[command])]


@cache
def field_texts(cls: type) -> dict[str, str]:
    """The string below each field of a dataclass and of its bases, on one line."""
    texts: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base) or not inspect.get_annotations(base):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        assert isinstance(body, ast.ClassDef)
        for item, below in itertools.pairwise(body.body):
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and isinstance(below, ast.Expr):
                texts[item.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return texts


def _option(source: Any, cls: type, item: dataclasses.Field[Any], prefix: str) -> Option:
    import tyro

    hint = hints(cls)[item.name]
    marks = hint.__metadata__ if typing.get_origin(hint) is Annotated else ()
    value = _value(source, item)
    positional, required = tyro.conf.Positional in marks, value is dataclasses.MISSING
    if required:
        default = "" if positional else "required"
    else:
        default = "" if value in (None, ()) else _shown(value)
    text = field_texts(cls).get(item.name, "")
    name = (prefix + item.name).replace("_", "-")
    return Option(name, _metavar(hint), text, default, positional, EXPERT in marks)


@cache
def hints(cls: type) -> dict[str, Any]:
    """The annotations of a class's fields, with their marks."""
    return typing.get_type_hints(cls, include_extras=True)


def _value(source: Any, item: dataclasses.Field[Any]) -> Any:
    """What the field has, or would have; MISSING where it must be given."""
    if not isinstance(source, type):
        return getattr(source, item.name)
    return item.default_factory() if item.default_factory is not dataclasses.MISSING else item.default


def _metavar(hint: Any) -> str:
    """'INT', 'a|b', 'NAME ...'; '' for a switch."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _metavar(args[0])
    if origin in (typing.Union, types.UnionType):
        words = [_metavar(arg) or "True|False" for arg in args if arg is not type(None)]
        return "|".join(words)
    if origin is Literal:
        return "|".join(map(str, args))
    if origin is tuple:
        return f"{_metavar(args[0])} ..." if args[-1] is Ellipsis else " ".join(map(_metavar, args))
    return {bool: "", int: "INT", float: "NUMBER", str: "TEXT", Path: "PATH"}[hint]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _entry(row: Option, width: int) -> str:
    text = f"{row.text} [{row.default}]" if row.default else row.text
    head, pad = f"  {row.flag}", " " * _INDENT
    if len(head) < _INDENT - 1:
        return textwrap.fill(text, width, initial_indent=head.ljust(_INDENT), subsequent_indent=pad, **_WRAP)
    return f"{head}\n{textwrap.fill(text, width, initial_indent=pad, subsequent_indent=pad, **_WRAP)}"


def _first_line(cls: type) -> str:
    return " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())


def _filled(doc: str, width: int) -> str:
    """Paragraphs filled; lines of a list ('sim: ...') stay lines."""
    return "\n\n".join(_paragraph(part.splitlines(), width) for part in doc.split("\n\n"))


def _paragraph(lines: Iterable[str], width: int) -> str:
    rows = list(lines)
    if all(": " in line for line in rows):
        return "\n".join(textwrap.fill(row, width, initial_indent="  ", subsequent_indent="      ") for row in rows)
    return textwrap.fill(" ".join(rows), width)

"""Command-line options from a dataclass: tyro reads them, errors become one UserError line with a suggestion."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import itertools
import math
import re
from collections.abc import Container, Sequence
from typing import Any, TypeVar

import tyro

from embodied_rl.cli.help import help_text, hints, options
from embodied_rl.errors import UserError
from embodied_rl.utils.options import Expert

T = TypeVar("T")
_LARGEST = 2**63 - 1
_NUMBERS = {"NUMBER": "a number", "INT": "a whole number"}


def parse(cls: type[T], argv: Sequence[str], command: str, default: T | None = None, usage: str = "") -> T:
    """Build a `cls` from command-line words.

    Args:
        cls: a dataclass; each of its fields is an option, those of nested dataclasses are `--outer.inner-name`.
        argv: the words after the command.
        command: the words after `embodied-rl` in messages, such as 'train tabletop'.
        default: values of options that are not named (None: those of the class).
        usage: replaces the first lines of the help.

    Raises:
        UserError: an unknown option, or a value that its option cannot have.
        SystemExit: with code 0, after `--help` and `--help-all`.
    """
    prog, source = f"embodied-rl {command}", cls if default is None else default
    if wants_help(argv):
        print(help_text(source, command, usage=usage, everything="--help-all" in argv), end="")
        raise SystemExit(0)
    known = flags(source)
    for flag in flag_words(argv):
        if flag not in known:
            raise UserError(f"{prog}: unknown option '{flag}'.{suggest_flag(flag, known)}")
    parsed = _quiet_tyro(cls, argv, prog, default)
    _check_numbers(parsed, prog)
    for flag in flag_words(argv):
        if _named(parsed, flag) == () == _named(source, flag):  # it may empty what a file or a recipe names
            raise UserError(f"{prog}: {flag} needs a value, or several.")
    return parsed


def _named(part: Any, flag: str) -> Any:
    """The value of an option in a dataclass, an instance or a class; None where it has none."""
    for name in flag[2:].replace("-", "_").split("."):
        part = getattr(part, name, None)
    return part


def _check_numbers(part: Any, prog: str, prefix: str = "--") -> None:
    """Raise UserError for numbers that no option can have."""
    for item in dataclasses.fields(part):
        value, name = getattr(part, item.name), prefix + item.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            _check_numbers(value, prog, f"{name}.")
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, float) and not math.isfinite(number):
                raise UserError(f"{prog}: {name} must be a finite number, got {number}.")
            if isinstance(number, int) and not -_LARGEST <= number <= _LARGEST:
                raise UserError(f"{prog}: {name} must lie in -2^63 to 2^63 - 1.")


def wants_help(argv: Sequence[str]) -> bool:
    """Whether the help is asked for, in short or in full."""
    return not {"-h", "--help", "--help-all"}.isdisjoint(argv)


def flag_words(argv: Sequence[str]) -> list[str]:
    """The `--name` parts of `argv`, with `_` written as `-` (tyro takes both)."""
    return ["--" + word[2:].split("=", 1)[0].replace("_", "-") for word in argv if re.match(r"--[a-zA-Z]", word)]


def flags(source: Any, prefix: str = "") -> set[str]:
    """Every option that tyro makes from a dataclass (or instance): nested ones are `--outer.inner-name`."""
    found: set[str] = set()
    kinds = hints(source if isinstance(source, type) else type(source))
    for field in dataclasses.fields(source):
        if "flag" in field.metadata:  # read from the command line by that flag, before this one
            continue
        dotted = prefix + field.name.replace("_", "-")
        value = getattr(source, field.name, None) if not isinstance(source, type) else _default(field)
        if dataclasses.is_dataclass(value):
            found |= flags(value, dotted + ".")
            continue
        found.add("--" + dotted)
        if kinds[field.name] in (bool, Expert[bool]):
            head, _, tail = dotted.rpartition(".")
            found.add(f"--{head}.no-{tail}" if head else f"--no-{tail}")
    return found


def split_off(argv: Sequence[str], names: Container[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """The words of `argv` without the options `names`, and each of these with its value ('' where there is none).

    They are given as `--name value` or `--name=value`.
    """
    rest: list[str] = []
    found: list[tuple[str, str]] = []
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        if name in names:
            value = value if equals else next(words, "")
            found.append((name, "" if value.startswith("--") else value))
        else:
            rest.append(word)
    return rest, found


def with_tasks(argv: Sequence[str]) -> list[str]:
    """`argv` with every `--task NAME` taken together as `--tasks NAME ...`; UserError if both are given."""
    rest, found = split_off(argv, ("--task",))
    tasks = [name for _, name in found]
    if "" in tasks:
        raise UserError("--task needs the name of a task.")
    if tasks and "--tasks" in flag_words(rest):
        raise UserError("--task and --tasks are the same option: give one of them.")
    return [*rest, "--tasks", *tasks] if tasks else rest


def value_of(words: Sequence[str], flag: str) -> str | None:
    """What `words` gives for `flag`, as `--flag value` or `--flag=value`; the last one counts."""
    found = None
    for word, after in zip(words, [*words[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == flag:
            found = value if equals else after
    return found


def suggest_flag(flag: str, known: set[str]) -> str:
    """What to write for an unknown option: its name of today, its last part or the beginning of it, or one alike."""
    leaves = {name.rpartition(".")[2].lstrip("-"): name for name in sorted(known, reverse=True)}
    leaf = flag.rpartition(".")[2].lstrip("-")
    now = flag.removesuffix(leaf) + _name_today(leaf)
    if now != flag and now in known:
        return f" It is {now} now."
    close = [leaves[leaf]] if "." not in flag and leaf in leaves else difflib.get_close_matches(flag, known, 1, 0.75)
    close = close or sorted(leaves[name] for name in leaves if len(leaf) > 2 and name.startswith(leaf))
    close = close or [leaves[name] for name in difflib.get_close_matches(leaf, leaves, 1, 0.75)]
    return f" Did you mean '{close[0]}'?" if close else " --help lists the options."


def _name_today(leaf: str) -> str:
    from embodied_rl.config.earlier import RENAMED

    names = {before: now for (_, before), now in RENAMED.items()}
    return names.get(leaf.replace("-", "_"), leaf).replace("_", "-")


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else None


def _quiet_tyro(cls: type[T], argv: Sequence[str], prog: str, default: T | None) -> T:
    """Run tyro and turn its error box into one line."""
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            if default is None:
                return tyro.cli(cls, args=list(argv), prog=prog, config=(tyro.conf.AvoidSubcommands,))
            return tyro.cli(cls, args=list(argv), prog=prog, config=(tyro.conf.AvoidSubcommands,), default=default)
    except SystemExit:
        one = " One GPU of several: CUDA_VISIBLE_DEVICES=1 and --device cuda." if "'cuda:" in box.getvalue() else ""
        said = _one_line(box.getvalue())
        raise UserError(f"{prog}: {_wrong_value(cls if default is None else default, argv, said)}{one}") from None
    except (ValueError, OverflowError) as error:
        raise UserError(f"{prog}: {error}") from None


def _wrong_value(source: Any, argv: Sequence[str], said: str) -> str:
    """tyro's `said`; where it is what Python says of a word that is no number, what the option takes and was given."""
    of = re.match(r"Error parsing (--[\w.-]+):", said)
    taken = {f"--{row.name}": row.value for _, _, rows in options(source) for row in rows}
    value = taken.get(of[1], "") if of else ""
    kinds = value.replace(" ...", "").split()
    if of is None or not kinds or not set(kinds) <= set(_NUMBERS):
        return said
    at = max(i for i, word in enumerate(argv) if flag_words([word]) == [of[1]])
    _, equals, given = argv[at].partition("=")
    after = itertools.takewhile(lambda word: not flag_words([word]), argv[at + 1 :])
    words = [given] if equals else [*after]
    what = f"{len(kinds)} numbers" if len(kinds) > 1 else f"{_NUMBERS[kinds[0]]}{', or several' * ('...' in value)}"
    return f"{of[1]} takes {what}, got '{' '.join(words)}'"


def _one_line(box: str) -> str:
    """The message inside tyro's box, up to its first rule, without frame or colour.

    Where the terminal has no lines to draw with, the box is a title, a rule of '-', the message and another rule.
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", box)
    parts: list[list[str]] = [[]]
    for line in plain.splitlines():
        text = line.strip("│| ")
        if len(text) > 3 and not set(text) - set("─-"):
            parts.append([])
        elif not re.match(r"[╭╰]", text):
            parts[-1].append(text)
    message = parts[0] if "╭" in plain or len(parts) < 2 else parts[1]
    return re.sub(r"\s+", " ", " ".join(message)).strip()

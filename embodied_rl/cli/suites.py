"""Suites as users type them, the same for every command: `tabletop_goal`, `tabletop --suite goal`."""

from __future__ import annotations

from collections.abc import Sequence

from embodied_rl.cli.parse import flag_words, split_off, value_of
from embodied_rl.config.earlier import RENAMED
from embodied_rl.config.env import EnvConfig, as_simulator
from embodied_rl.config.suites import SUITES
from embodied_rl.config.train import KINDS, belongs_to, kind_of, selectable
from embodied_rl.errors import UserError, suggest
from embodied_rl.jobs.eval_request import SUITES_OF, suite_name
from embodied_rl.utils.suites import ALOHA_SUITES, OFFICIAL_SUITES, PRO_SUITES, TABLETOP_SUITES

ALOHA = "aloha"
_WHOLE = (*TABLETOP_SUITES, *OFFICIAL_SUITES, *PRO_SUITES)


def with_suite(argv: Sequence[str]) -> list[str]:
    """`tabletop_goal ...` and `tabletop --suite goal ...` as `tabletop --suite tabletop_goal ...`.

    `aloha --suite insertion` is `aloha_insertion`. Words that begin otherwise, and suites that the benchmark has not,
    stay as they are.

    Raises:
        UserError: A suite is named twice.
    """
    first, rest = next(iter(argv), ""), list(argv[1:])
    if first == ALOHA:
        return [_aloha(rest), *split_off(rest, ("--suite",))[0]]
    if first in _WHOLE:
        if "--suite" in flag_words(rest):
            raise UserError(f"{first} is a suite already: leave --suite out.")
        return [first.partition("_")[0], "--suite", first, *rest]
    if first not in SUITES_OF:
        return list(argv)
    words = [first]
    for word, before in zip(rest, ["", *rest], strict=False):
        head, equals, value = word.partition("=")
        if before == "--suite":
            words.append(whole_suite(first, word))
        else:
            words.append(f"{head}={whole_suite(first, value)}" if equals and head == "--suite" else word)
    return words


def _aloha(words: Sequence[str]) -> str:
    """The suite that `aloha` stands for, each of one task; the first where none is named."""
    named = value_of(words, "--suite") or ALOHA_SUITES[0]
    whole = named if named.startswith(f"{ALOHA}_") else f"{ALOHA}_{named}"
    if whole not in ALOHA_SUITES:
        raise UserError(f"aloha has no suite '{named}'.{suggest(whole, ALOHA_SUITES)}")
    return whole


def as_positional(argv: Sequence[str]) -> list[str]:
    """`tabletop --suite tabletop_goal ...` as `tabletop_goal ...`, for commands whose first word is the suite."""
    words = with_suite(argv)
    for index, word in enumerate(words[1:], 1):
        head, equals, value = word.partition("=")
        if head == "--suite" and (equals or index + 1 < len(words)):
            return [value or words[index + 1], *words[1:index], *words[index + (1 if equals else 2) :]]
    return words


def whole_suite(benchmark: str, suite: str) -> str:
    """'goal' of tabletop is 'tabletop_goal'; a suite that the benchmark has not stays as it is."""
    short = suite.removeprefix(f"{benchmark}_")
    return suite_name(benchmark, suite) if short in SUITES_OF[benchmark] else suite


def refuse_moved(words: Sequence[str]) -> None:
    """UserError for an option that has another name now."""
    if "--env.simulator" in flag_words(words):
        raise UserError("--env.simulator is --env now: write --env warp (or --env mujoco, which is the usual one).")
    for (part, before), now in RENAMED.items():
        flag = f"--{part}.{before.replace('_', '-')}"
        is_own = any(before in cls.__dataclass_fields__ for cls in KINDS.get(part, {}).values())  # of a registered kind
        if flag in flag_words(words) and not is_own:
            raise UserError(f"{flag} is --{part}.{now.replace('_', '-')} now.")


def take_simulator(words: Sequence[str]) -> tuple[list[str], str | None]:
    """Split off `--env NAME`, the simulator, from the options of `eval`; UserError where there is none of that name."""
    refuse_moved(words)
    rest, found = split_off(words, ("--env",))
    for _, name in found:
        if name not in selectable("env"):
            raise UserError(f"--env takes a simulator, got '{name}'.{suggest(name, selectable('env'))}")
    return rest, found[-1][1] if found else None


def refuse_others(words: Sequence[str], env: EnvConfig) -> None:
    """UserError for an option of another simulator than that of `env`."""
    kind = kind_of("env", env)
    for flag in flag_words(words):
        part, _, key = flag[2:].partition(".")
        other = belongs_to(part, key.removeprefix("no-").replace("-", "_"), kind) if part == "env" else None
        if other:
            raise UserError(f"{flag} does not apply to {kind} (it belongs to {other}).")


def env_of(suite: str, simulator: str | None, env: EnvConfig) -> EnvConfig:
    """The options of the simulator that the user names, else of the one that `suite` usually runs in."""
    return as_simulator(env, simulator or SUITES[suite].simulators[0])

"""The first step of `train`: benchmark, policy and algorithm choose a preset; then its values become options."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from embodied_rl import configs as recipes
from embodied_rl.algorithms.config import GRPOConfig
from embodied_rl.cli.parse import flag_words, flags, parse, split_off, value_of, wants_help, with_tasks
from embodied_rl.cli.suites import refuse_moved, with_suite
from embodied_rl.config.earlier import as_written_today
from embodied_rl.config.policies import POLICIES, OpenVLAConfig
from embodied_rl.config.robot_run import as_real_arm, on_robot
from embodied_rl.config.suites import STATE_SUITES, SUITE, SUITES, custom_suites, is_custom, register_hint, suite_named
from embodied_rl.config.train import (
    KINDS,
    TrainConfig,
    as_offline,
    belongs_to,
    from_dict,
    iterations_of,
    kind_of,
    known_kind,
    selectable,
)
from embodied_rl.errors import UserError, suggest
from embodied_rl.factory.made_for import family_name, is_published_format, suite_of
from embodied_rl.factory.tasks import LIBERO_SUITES, libero_bundles
from embodied_rl.policies.checkpoints.shipped import SHIPPED, require_shipped_for, shipped_for
from embodied_rl.utils.plugins import imported
from embodied_rl.utils.strict_yaml import read_mapping

BENCHMARKS = recipes.BENCHMARKS
_MINIBATCH_EPISODES = 16
"""Their rows are about as many as the presets' minibatches of rows."""
_SELECTORS = ("--recipe", "--env", "--policy", "--algorithm", "--scheduler", "--config", "--resume", "--from")


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 80, initial_indent=" " * 20, subsequent_indent=" " * 20, break_on_hyphens=False).lstrip()


USAGE = f"""\
usage: embodied-rl train BENCHMARK [--policy NAME] [--algorithm NAME] [options]
       embodied-rl train --recipe NAME [options]
       embodied-rl train --data DATA ... --policy.checkpoint DIR [options]
       embodied-rl train --resume DIR [--iterations N] [--from CHECKPOINT]

Improve a policy with reinforcement learning, or by imitation, in simulation. A
folder under runs/ gets checkpoints, metrics, videos and report.html; Ctrl-C
saves and stops.

  BENCHMARK         {_wrapped(", ".join(BENCHMARKS))}
  --task NAME       {
    _wrapped(
        f"task to train on, where the suite has many ({', '.join(STATE_SUITES)}): its id; may be given several times"
    )
}
  --policy NAME     {_wrapped(", ".join(selectable("policy")) + " (openvla if not given, mlp for a task's state)")}
  --algorithm NAME  {", ".join(KINDS["algorithm"])} (ppo if not given)
  --scheduler NAME  {", ".join(KINDS["scheduler"])} (serial if not given)
  --demos DATA ...  {_wrapped("demonstrations, which --algorithm imitate and steer need, as sft reads them")}
  --people expert   {_wrapped("with these two: the scripted expert takes over what is not solved (--help-all: when)")}
  --data DATA ...   {_wrapped("learn without a simulator: demonstrations, and episodes that export wrote")}
  --robot ARM       {_wrapped("run the episodes on an arm over ROS 2: twin, a simulated one, or your arm's file")}
  --episodes N      {_wrapped("how many training episodes, in place of --iterations: so many iterations as have them")}
  --env NAME        {_wrapped("simulator of the built-in suites and LIBERO's: mujoco, or warp (mujoco if not given)")}
  --recipe NAME     {_wrapped(", ".join(recipes.names()))}
  --config FILE     {_wrapped("YAML with any of the values below, such as the config.yaml of an earlier run")}
  --resume DIR      {
    _wrapped(
        "continue the run in DIR, with its own config, exactly where its last checkpoint left it; with --iterations N "
        "go on to more iterations than it had (learning rates stay where they fell to), with --from iter-000010 go "
        "back to that one of DIR/checkpoints (the newer ones are deleted), with --learner.num-processes N in another "
        "number of ranks"
    )
}

--policy, --algorithm, --scheduler and --env: options are of the names chosen.
"""


def _usage(words: Sequence[str]) -> str:
    """With what users registered, where help is asked for."""
    if not wants_help(words):
        return USAGE
    suites = custom_suites()  # of installed packages too: these may bring policies
    policies = [name for name, cls in POLICIES.items() if name in selectable("policy") and cls.observes == "any"]
    registered = ", ".join([*suites, *(f"--policy {name}" for name in policies)])
    return USAGE + (f"\nRegistered by modules of your own: {registered}\n" if registered else "")


@dataclass(frozen=True, slots=True)
class Selection:
    """What the command line asks for: a new run of `benchmark` with `config`, or one to `resume`."""

    benchmark: str = ""
    config: TrainConfig | None = None
    resume: Path | None = None
    """Folder of the run to continue; then `benchmark` and `config` are unset."""
    iterations: int | None = None
    """Of the resumed run, in all; None: as many as it was to have."""
    episodes: int | None = None
    """The same in training episodes."""
    start: str | None = None
    """Checkpoint that the resumed run goes on from; None: the newest."""
    processes: int | None = None
    """Ranks of the resumed run; None: as many as it had."""


def select(argv: Sequence[str]) -> Selection:
    """Read the words after `embodied-rl train`. UserError for anything unknown, inapplicable or ill-fitting."""
    words, chosen = _take(argv)
    if "--resume" in chosen:
        return _resume(words, chosen)
    if "--data" in flag_words(words) or ("--config" in chosen and read_mapping(Path(chosen["--config"])).get("data")):
        return _offline(words, chosen)
    words, episodes = _episodes(with_suite(with_tasks(words)))
    benchmark = words.pop(0) if words and not words[0].startswith("-") else None
    if "--from" in chosen:
        raise UserError("--from names a checkpoint of a run that is resumed: give --resume DIR too.")
    named = _recipe(benchmark, chosen)
    if named is not None:
        benchmark = chosen["--recipe"]
    if benchmark is None and wants_help(words):
        benchmark = BENCHMARKS[0]
    custom = benchmark is not None and benchmark not in BENCHMARKS and named is None and is_custom(benchmark)
    if benchmark is None:
        raise UserError(f"train needs a benchmark ({', '.join(BENCHMARKS)}): embodied-rl train {BENCHMARKS[0]}")
    refuse_moved(words)
    file = _file(chosen, benchmark)
    usual = "mlp" if benchmark in STATE_SUITES or custom else "openvla"
    if custom and not ("--policy" in chosen or "policy" in file or wants_help(words)):
        raise UserError(f"train {benchmark} needs a policy for your suite: --policy {', '.join(selectable('policy'))}.")
    policy = _kind("policy", chosen, file, usual if named is None else kind_of("policy", named.policy))
    algorithm = _kind("algorithm", chosen, file, "ppo" if named is None else kind_of("algorithm", named.algorithm))
    scheduler = _kind("scheduler", chosen, file, "serial")
    if named is None:
        if not custom:
            _known("benchmark", benchmark, [*BENCHMARKS, *custom_suites()])
        _suits(benchmark, policy, algorithm)
        named = _begun_from(benchmark, policy, algorithm, words)
    simulator = _kind("env", chosen, file, kind_of("env", named.env))
    base = from_dict({"env": {"name": simulator}}, _scheduled(named, scheduler))
    config = from_dict(file, base, chosen.get("--config", "config"))
    config = replace(config, imports=tuple(dict.fromkeys((*config.imports, *imported()))))
    kinds = {"policy": policy, "algorithm": algorithm, "scheduler": scheduler, "env": simulator}
    _check_applicable(words, kinds, flags(config))
    suited = _suited(config, named, file, words)
    if (robot := value_of(words, "--robot")) and not file.get("robot"):
        suited = on_robot(suited, robot, value_of(words, "--suite"))
    config = as_real_arm(parse(TrainConfig, words, f"train {benchmark}", suited, _usage(words)))
    if episodes is not None:
        config = replace(config, iterations=iterations_of(config, episodes))
    config.check()
    return Selection(benchmark, config)


def _offline(words: list[str], chosen: dict[str, str]) -> Selection:
    """A run that learns from data on disk; its recipe is that of its policy and the algorithm."""
    words, found = split_off(words, ("--episodes",))
    if found and found[-1][1] != "0":
        raise UserError(
            f"--episodes {found[-1][1]}: --data learns from what lies on disk and runs no episodes: leave it out, or "
            "give 0. Beside episodes of its own a run learns from --demos."
        )
    elsewhere = [words[0]] if words and not words[0].startswith("-") else []
    elsewhere += [name for name in ("--recipe", "--env", "--scheduler", "--from") if name in chosen]
    if elsewhere:
        raise UserError(
            f"--data learns without a simulator: leave {elsewhere[0]} out; embodied-rl eval measures the policy "
            "afterwards."
        )
    file, help_only = _file(chosen, SUITE), wants_help(words)
    checkpoint = value_of(words, "--policy.checkpoint")
    if "--policy" in chosen or "policy" in file or help_only or checkpoint is None:
        usual = "openvla"
    else:
        usual = family_name(checkpoint)
    policy = _kind("policy", chosen, file, usual)
    algorithm = _kind("algorithm", chosen, file, "imitate" if help_only else "ppo")
    if algorithm not in ("imitate", "steer"):
        raise UserError(f"--data is learned from by --algorithm imitate or steer, not {algorithm}: give one of them.")
    if POLICIES[policy].observes != "images":
        raise UserError(f"--data is for policies that see images and ship with the package, not {policy}.")
    base = as_offline(recipes.get(_recipe_of("tabletop", policy, algorithm, words)))
    config = from_dict(file, base, chosen.get("--config", "config"))
    config = replace(config, imports=tuple(dict.fromkeys((*config.imports, *imported()))))
    _check_applicable(words, {"policy": policy, "algorithm": algorithm}, flags(config))
    config = parse(TrainConfig, words, "train --data", config, _usage(words))
    config.check()
    return Selection("", config)


def _episodes(words: Sequence[str]) -> tuple[list[str], int | None]:
    """The words without --episodes, and its number; None where it is not given."""
    rest, found = split_off(words, ("--episodes",))
    if not found:
        return rest, None
    value = found[-1][1]
    if not value.isdecimal():
        raise UserError(f"--episodes takes a whole number, got '{value}'.")
    if "--iterations" in flag_words(rest):
        raise UserError("--episodes and --iterations both say how long: give one of them.")
    return rest, int(value)


def _file(chosen: Mapping[str, str], benchmark: str) -> dict[str, object]:
    """What --config names, as it is written today."""
    if "--config" not in chosen:
        return {}
    path = Path(chosen["--config"])
    usual = benchmark if benchmark in SUITES else SUITE
    return as_written_today(read_mapping(path), usual, str(path))


def _suits(benchmark: str, policy: str, algorithm: str) -> None:
    """UserError for a policy or an algorithm that has nothing to do with the benchmark."""
    reads = POLICIES[policy].observes
    if benchmark in SUITES and SUITES[benchmark].observes == "state" and reads == "images":
        raise UserError(f"--policy {policy} sees images, and {benchmark} has a state: leave --policy out (mlp).")
    if benchmark in BENCHMARKS and benchmark not in STATE_SUITES and reads == "state":
        raise UserError(
            f"--policy {policy} learns in suites of tasks with a state ({', '.join(STATE_SUITES)}). {benchmark} "
            "has a state for programs only (make_vec_env with state=True): choose another --policy."
        )
    if reads == "state" and algorithm != "ppo":
        raise UserError(f"--algorithm {algorithm} is not offered for {policy}: leave --algorithm out (ppo).")


def _begun_from(benchmark: str, policy: str, algorithm: str, words: Sequence[str]) -> TrainConfig:
    """The recipe of these three; where one of them is a user's own, that of others like them."""
    if benchmark not in BENCHMARKS or (benchmark in STATE_SUITES and POLICIES[policy].observes == "images"):
        return recipes.for_suite(suite_named(benchmark), policy, algorithm)
    kind, there = POLICIES[policy], _at_hand(benchmark, words)
    if kind.observes != "any":
        return recipes.get(_recipe_of(there, policy, algorithm, words))
    like = "mlp" if benchmark in STATE_SUITES else "openvla"
    return replace(recipes.get(f"{there}_{like}_{algorithm}"), policy=kind())


def _recipe_of(benchmark: str, policy: str, algorithm: str, words: Sequence[str]) -> str:
    """The recipe of these three; for published weights, which are large, the one for them where there is one."""
    large = f"{benchmark}_{policy}_7b_{algorithm}"
    published = is_published_format(value_of(words, "--policy.checkpoint") or SHIPPED)
    return large if published and large in recipes.names() else f"{benchmark}_{policy}_{algorithm}"


def _suited(config: TrainConfig, recipe: TrainConfig, file: dict[str, object], words: Sequence[str]) -> TrainConfig:
    """`config` on the suite that the user names, else the one that the checkpoint to train was made for.

    The recipe's tasks stay only with the recipe's suite, and where --suite is not given. A run that is to begin with a
    shipped policy gets the one for its suite.

    Raises:
        UserError: None ships for the suite, and none is named.
    """
    given = value_of(words, "--suite")
    suite = given or config.suite
    if given is None and "suite" not in file:
        suite = _made_for(value_of(words, "--policy.checkpoint") or config.policy.checkpoint, recipe.suite)
    states = config.train_states
    if states == "fresh" and "train_states" not in file and value_of(words, "--train-states") is None:
        states = "fresh" if suite in SUITES and SUITES[suite].draws_states else "train"
    keep = suite == config.suite and ("tasks" in file or (given is None and suite == recipe.suite))
    policy = config.policy
    if isinstance(policy, OpenVLAConfig) and policy.checkpoint.partition(":")[0] == SHIPPED:
        named = value_of(words, "--policy.checkpoint") is not None or wants_help(words)
        if suite in LIBERO_SUITES and libero_bundles() is not None and not named:
            require_shipped_for(suite, "--policy.checkpoint")
        policy = replace(policy, checkpoint=shipped_for(suite) or SHIPPED)
    tasks = config.tasks if keep else ()
    return replace(config, suite=suite, tasks=tasks, train_states=states, policy=policy)


def _made_for(checkpoint: str, suite: str) -> str:
    """The suite that a checkpoint was made for where it is of the same benchmark as `suite`, else `suite`."""
    if is_custom(suite):
        return suite
    made_for = suite_of(checkpoint)
    return made_for if made_for is not None and made_for.startswith(suite.partition("_")[0] + "_") else suite


def _take(argv: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Split off the options of the first step."""
    rest, found = split_off(argv, _SELECTORS)
    for name, value in found:
        if not value:
            raise UserError(f"{name} needs a value.")
    return rest, dict(found)


def _recipe(benchmark: str | None, chosen: dict[str, str]) -> TrainConfig | None:
    """The config that --recipe names; UserError beside a benchmark, a policy or an algorithm, which it names too."""
    if "--recipe" not in chosen:
        return None
    for word in (benchmark, *(option for option in ("--policy", "--algorithm") if option in chosen)):
        if word:
            raise UserError(f"--recipe {chosen['--recipe']} says what is trained: leave {word} out.")
    return recipes.get(chosen["--recipe"])


def _resume(words: list[str], chosen: dict[str, str]) -> Selection:
    folder = Path(chosen["--resume"])
    words, episodes = _episodes(words)
    rest, found = split_off(words, ("--iterations", "--learner.num-processes"))
    extra = [*rest, *(name for name, value in found if not value.isdecimal())]
    extra += [name for name in chosen if name not in ("--resume", "--from")]
    if extra:
        raise UserError(
            f"--resume continues a run with its own config, so '{extra[0]}' does not apply: "
            f"{shlex.join(['embodied-rl', 'train', '--resume', str(folder)])} (and --iterations N or --episodes N to "
            "go on for longer, --from CHECKPOINT to go back, --learner.num-processes N for another number of ranks)"
        )
    numbers = {name: int(value) for name, value in found}
    return Selection(
        resume=folder,
        iterations=numbers.get("--iterations"),
        episodes=episodes,
        start=chosen.get("--from"),
        processes=numbers.get("--learner.num-processes"),
    )


def _kind(part: str, chosen: dict[str, str], file: dict[str, object], default: str) -> str:
    """The name of the policy or algorithm: the command line's, else the file's, else `default`."""
    section = file.get(part)
    in_file = section.get("name") if isinstance(section, dict) else None
    in_words = chosen.get(f"--{part}")
    if in_file and in_words and in_file != in_words:
        file_name = chosen["--config"]
        raise UserError(f"{file_name} is for {part} {in_file}, not {in_words}: drop --{part} or that part of the file.")
    name = str(in_words or in_file or default)
    if name != default:
        known_kind(part, name)  # looks among installed packages too
        _known(part, name, selectable(part))
    return name


def _scheduled(preset: TrainConfig, scheduler: str) -> TrainConfig:
    """The recipe with that scheduler; a pipelined one begins updates with whole groups: minibatches are of them."""
    config = from_dict({"scheduler": {"name": scheduler}}, preset)
    if scheduler == "serial":
        return config
    size = config.algorithm.group_size if isinstance(config.algorithm, GRPOConfig) else 1
    learner = replace(config.learner, minibatch_size=None, minibatch_groups=max(1, _MINIBATCH_EPISODES // size))
    return replace(config, learner=learner)


def _at_hand(benchmark: str, words: Sequence[str]) -> str:
    """The benchmark whose recipe is taken: the tabletop's for its suites, and where LIBERO's are not installed."""
    tabletop = (value_of(words, "--suite") or "").startswith("tabletop") or libero_bundles() is None
    return "tabletop" if benchmark == "libero" and tabletop else benchmark


def _known(what: str, name: str, known: Iterable[str]) -> None:
    names = list(known)
    if name not in names:
        hint = register_hint() if what in ("benchmark", "policy") else ""
        raise UserError(f"unknown {what} '{name}'.{suggest(name, names)}{hint}")


def _check_applicable(words: Sequence[str], kinds: dict[str, str], known: set[str]) -> None:
    """Refuse options of a policy or algorithm that was not chosen, and those that only `eval` has."""
    for flag in flag_words(words):
        part, _, key = flag[2:].partition(".")
        if part == "efficient":
            own = " To act compiled in training: --policy.compile." if key == "compile" else ""
            raise UserError(f"{flag} is an option of embodied-rl eval, and not of train.{own}")
        if flag not in known and part in kinds:
            other = belongs_to(part, key.removeprefix("no-").replace("-", "_"), kinds[part])
            if other:
                raise UserError(f"{flag} does not apply to {kinds[part]} (it belongs to {other}).")

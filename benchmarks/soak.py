"""Does a training run survive whatever happens to it? `python -m embodied_rl.benchmarks.soak --kills 200`.

Trains a small policy on a gymnasium task by the real `train` command, in processes that are killed, interrupted, run
out of disk or memory, stall, or live through a jump of the clock; between them checkpoints are corrupted and files
torn. In every fourth run the envs are in a process of their own, which is killed too. With `--algorithm imitate` the
shipped policy learns a tabletop task from demonstrations and its own successes, with `--people expert` from a person's
help too. Each run is resumed until it ends, and must then have the metrics, the episode counts and the weights of a run
that nothing happened to, byte for byte. Exits with 1 if one has not, if a resume is refused for another reason than a
damaged checkpoint, or if a run that ended needed more memory than the undisturbed one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro

from embodied_rl.benchmarks.soak_faults import FAULTS, WORKER, corrupt, live_through, tear
from embodied_rl.cli import main as command
from embodied_rl.jobs.run_info import is_finished
from embodied_rl.rng import philox
from embodied_rl.telemetry.metrics import read_metrics

MEMORY_MARGIN = 1.25
"""What a run that was disturbed may need of the undisturbed one's memory."""
_PPO = (
    *("train", "gymnasium", "--task", "CartPole-v1", "--videos", "0", "--num-threads", "1"),
    *("--evaluation.states-per-task", "1", "--evaluation.every", "2"),
    *("--rollout.episodes-per-iteration", "4", "--algorithm.epochs", "1"),
    *("--checkpoint.every", "1", "--checkpoint.keep", "2"),
)
_TASK = ("--tasks", "turn_on_the_stove")
_IMITATE = (
    *("train", "tabletop", "--suite", "tabletop_goal", *_TASK, "--videos", "0", "--num-threads", "1"),
    *("--algorithm", "imitate", "--algorithm.steps", "4", "--learner.minibatch-size", "4"),
    *("--learner.microbatch-size", "4", "--evaluation.states-per-task", "1", "--evaluation.every", "0"),
    *("--rollout.episodes-per-iteration", "2", "--checkpoint.every", "1", "--checkpoint.keep", "2"),
)
_TIMED = ("time/", "cpu/", "speed/")
_WATCHED, _START = 4, 8.0
"""One in so many runs has its envs in a process of their own, whose start takes so much longer (s)."""
FAILED = 70
"""Exit code of a process that an exception ended."""


@dataclass(frozen=True, kw_only=True)
class Soak:
    """Disturb small training runs, and see that each ends as if nothing had happened."""

    kills: int = 200
    """Go on until so many processes were killed."""
    algorithm: Literal["ppo", "imitate"] = "ppo"
    """What trains."""
    people: Literal["none", "expert"] = "none"
    """With imitate: who takes episodes over."""
    iterations: int = 3
    """Updates of a run."""
    seed: int = 0
    """Of what happens, and when."""
    json: Path | None = None
    """File for the figures."""


@dataclass(frozen=True, slots=True)
class End:
    """What a finished run is compared by. metrics: without times; ledger: the sampler's counts; weights: SHA-256."""

    metrics: list[dict[str, Any]]
    ledger: dict[str, Any]
    weights: str


@dataclass
class Tally:
    """What happened. happened: by name; refused: resumes that a damaged checkpoint stopped, as it must; wrong: what was
    not as promised; peak_mib: largest memory of a process that ended a run."""

    happened: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    resumes: int = 0
    refused: int = 0
    wrong: list[str] = field(default_factory=list)
    peak_mib: float = 0.0


def main(given: Soak) -> int:
    """Soak; 1 if something is not as promised, 2 for a person where nobody learns of one."""
    if given.people != "none" and given.algorithm != "imitate":
        print("--people goes with --algorithm imitate: leave it out", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="embodied-rl-soak-") as place:
        root = Path(place)
        with _silent():  # imports what every process that is forked from this one then has
            if given.algorithm == "imitate":
                command(["collect", "tabletop_goal", *_TASK, "--episodes-per-task", "2", "--out", str(_demos(root))])
            command(_begin(root / "warm", given))
        whole: dict[bool, End] = {}
        for watched in (True, False) if given.algorithm == "ppo" else (False,):
            began = time.perf_counter()
            code, calm_mib = _attempt(_begin(root / f"calm{watched}", given, watched), None, given.seed, 0)
            duration = time.perf_counter() - began
            if code != 0:
                print(f"the undisturbed run ended with exit code {code}", file=sys.stderr)
                return 1
            whole[watched] = end_of(root / f"calm{watched}")
        tally = Tally()
        while tally.happened["kill"] < given.kills and not tally.wrong:
            _one_run(root / f"run{tally.runs}", given, whole[_is_watched(given, tally.runs)], duration, tally)
            print(f"{tally.runs} runs, {tally.resumes} resumes, {tally.happened['kill']} kills", flush=True)
    if tally.peak_mib > MEMORY_MARGIN * calm_mib:
        tally.wrong.append(f"memory: {tally.peak_mib:.0f} MiB, undisturbed {calm_mib:.0f}")
    figures = {
        "runs": tally.runs,
        "resumes": tally.resumes,
        "refused": tally.refused,
        **{f"happened_{name}": count for name, count in sorted(tally.happened.items())},
        "calm_mib": round(calm_mib),
        "peak_mib": round(tally.peak_mib),
        "wrong": tally.wrong,
    }
    print("\n".join(f"{name:<28}{value}" for name, value in figures.items()))
    if given.json is not None:
        given.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 1 if tally.wrong else 0


def _is_watched(given: Soak, number: int) -> bool:
    return given.algorithm == "ppo" and number % _WATCHED == _WATCHED - 1


def _demos(root: Path) -> Path:
    return root / "demos"


def _begin(folder: Path, given: Soak, watched: bool = False) -> list[str]:
    end = ["--iterations", str(given.iterations), "--output", str(folder)]
    if given.algorithm == "imitate":
        # One env, so that the rest of a round that was cut is decided in batches of the same number of rows: see below.
        people = () if given.people == "none" else ("--people", given.people, "--people-after", "40")
        return [*_IMITATE, "--env.num-envs", "1", "--demos", str(_demos(folder.parent)), *people, *end]
    # One env in the process that is killed: beside others its episode would run again among fewer rows than before, and
    # a matrix product of another number of rows rounds differently.
    envs = ["--env.num-envs", "1", "--env.processes", "1"] if watched else ["--env.num-envs", "2"]
    return [*_PPO, *envs, *end]


def _one_run(folder: Path, given: Soak, whole: End, duration: float, tally: Tally) -> None:
    """Begin a run and disturb it until it ends."""
    number, damaged, ended = tally.runs, False, False
    watched = _is_watched(given, number)
    words = begin = _begin(folder, given, watched)
    for attempt in itertools.count():
        draw = philox(given.seed, 31, number, attempt)
        fault = FAULTS[int(draw.integers(len(FAULTS)))]
        if watched and draw.random() < 0.5:
            fault = WORKER
        if attempt:
            damaged = _disturb_files(folder, draw, tally, damaged)
            words = _resume(folder, begin)
            ended = words[1] == "--resume" and is_finished(folder)
            tally.resumes += words[1] == "--resume"
        longest = duration + (_START if watched else 0.0)
        code, mib = _attempt(words, fault, int(draw.integers(2**31)), float(draw.uniform(0, longest)))
        if code == 0 and (ended or not damaged):  # a run that has ended needs no more of its checkpoint than the policy
            tally.peak_mib = max(tally.peak_mib, mib)
            break
        if code == 2 and damaged:
            tally.refused += 1
            _go_back(folder, tally)
            damaged = False
        elif code in EXPECTED.get(fault, (-signal.SIGKILL,)):
            tally.happened["kill" if code == -signal.SIGKILL else fault] += 1
            tally.happened[fault] += fault in ("slow disk", "clock jump")
        else:
            state = ", from a damaged checkpoint" if damaged else ""
            tally.wrong.append(f"run {number}, attempt {attempt}: exit code {code} after '{fault}'{state}")
            return
    tally.runs += 1
    end = end_of(folder)
    if watched:  # episodes of a worker that was killed run again, and are counted
        tally.happened[WORKER] += end.ledger["reissued"] > 0
        end, whole = _without_reissues(end), _without_reissues(whole)
    if end != whole:
        parts = [name for name in ("metrics", "ledger", "weights") if getattr(end, name) != getattr(whole, name)]
        tally.wrong.append(f"run {number} ended with other {', '.join(parts)}")
    shutil.rmtree(folder)


EXPECTED = {
    "interrupt": (130, -signal.SIGTERM),
    "disk full": (2, -signal.SIGKILL),
    "out of memory": (2, FAILED, -signal.SIGABRT, -signal.SIGKILL),
    WORKER: (),
}
"""How a process may end that had this fault: SIGTERM saves and says 130, and ends one that is still starting. One whose
worker is killed goes on to the end."""


def _without_reissues(end: End) -> End:
    """What must be equal where episodes had to run again."""
    rows = [{name: value for name, value in row.items() if name != "rollout/requeued_total"} for row in end.metrics]
    return End(rows, end.ledger | {"reissued": 0}, end.weights)


def _resume(folder: Path, begin: list[str]) -> list[str]:
    """How the user goes on: a run that was killed before it wrote its config begins again."""
    if not (folder / "config.yaml").is_file():
        return begin
    return ["train", "--resume", str(folder)]


def _disturb_files(folder: Path, draw: np.random.Generator, tally: Tally, damaged: bool) -> bool:
    """Sometimes tear the metrics file or corrupt the newest checkpoint; whether that is corrupt now."""
    chance = draw.random()
    if chance < 0.1 and tear(folder / "metrics.jsonl"):
        tally.happened["torn metrics"] += 1
    if chance > 0.9 and not damaged and corrupt(folder / "checkpoints", draw):
        tally.happened["corrupt checkpoint"] += 1
        return True
    return damaged


def _go_back(folder: Path, tally: Tally) -> None:
    """What the refusal says to do: go on from the older checkpoint, or begin anew where there is none."""
    from embodied_rl.learner.checkpoint import Checkpoints

    checkpoints = folder / "checkpoints"
    names = Checkpoints(checkpoints, 1).names()
    newest = (checkpoints / "latest").read_text().strip() if (checkpoints / "latest").is_file() else names[-1]
    older = [name for name in names if name != newest]
    if not older:
        shutil.rmtree(checkpoints)
        return
    shutil.rmtree(checkpoints / newest)
    (checkpoints / "latest").write_text(older[-1] + "\n")
    tally.happened["went back"] += 1


def _attempt(words: list[str], fault: str | None, seed: int, kill_after: float) -> tuple[int, float]:
    """Run one command in a process of its own: exit code (negative: the signal), and its largest memory in MiB."""
    child = os.fork()
    if child == 0:
        _be_the_run(words, fault, seed)
    if fault in ("kill", "interrupt"):
        _wait(child, kill_after)
        os.kill(child, signal.SIGKILL if fault == "kill" else signal.SIGTERM)
    elif (
        fault is not None and fault != WORKER
    ):  # it is lived through; the kill comes later, so that the run goes on a while
        _wait(child, kill_after * 2)
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    return os.waitstatus_to_exitcode(status), usage.ru_maxrss / 1024


def _wait(child: int, seconds: float) -> None:
    """Wait until the time is over or the child has ended, which stays to be waited for."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None:
            return
        time.sleep(0.01)


def _be_the_run(words: list[str], fault: str | None, seed: int) -> None:
    """In the child: run the command and leave."""
    code = FAILED
    try:
        with _silent(), live_through(fault, seed):
            code = command(words)
    finally:
        os._exit(code)


@contextmanager
def _silent() -> Iterator[None]:
    """A `with` block whose output goes nowhere."""
    sys.stdout.flush()
    nowhere, kept = os.open(os.devnull, os.O_WRONLY), [os.dup(1), os.dup(2)]
    try:
        for stream in (1, 2):
            os.dup2(nowhere, stream)
        yield
    finally:
        for stream, old in enumerate(kept, 1):
            os.dup2(old, stream)
            os.close(old)
        os.close(nowhere)


def end_of(folder: Path) -> End:
    """What the finished run in `folder` is compared by."""
    rows = [
        {name: value for name, value in row.items() if not name.startswith(_TIMED)}
        for row in read_metrics(folder / "metrics.jsonl")
    ]
    newest = folder / "checkpoints" / (folder / "checkpoints" / "latest").read_text().strip()
    sampler = json.loads((newest / "state.json").read_text())["state"]["sampler"]
    ledger = {name: sampler[name] for name in ("next_group", "issued", "finished", "reissued")}
    with open(newest / "policy" / "model.safetensors", "rb") as file:
        return End(rows, ledger, hashlib.file_digest(file, "sha256").hexdigest())


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Soak)))

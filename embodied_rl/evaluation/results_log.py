"""Episodes that an evaluation has finished, on disk as they end: after a kill none is lost and none runs twice."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from embodied_rl.errors import UserError
from embodied_rl.types import EpisodeResult, EpisodeSpec
from embodied_rl.utils.lock import LOCK, locked

REQUEST, EPISODES = "evaluation.json", "episodes.jsonl"
_NOT_MEASURED = "not_measured"


@dataclass(frozen=True, slots=True)
class EpisodeOutcome:
    """A finished episode. at_end: the goal held after its last step, None where episodes stop at success.

    perturbation: what a perturbation changed in this episode. motion: how smooth it was, as
    `evaluation.actions.smoothness`; empty where nobody recorded it.
    """

    result: EpisodeResult
    at_end: bool | None = None
    perturbation: Mapping[str, Any] = field(default_factory=dict)
    motion: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> EpisodeOutcome:
        """The inverse of `to_json`."""
        result = dict(data["result"])
        spec = EpisodeSpec(**result.pop("spec"))
        return EpisodeOutcome(EpisodeResult(spec=spec, **result), data["at_end"], data["perturbation"], data["motion"])


@dataclass(frozen=True, slots=True)
class Finished:
    """Episodes that need not run any more, by id.

    outcomes: of those that were measured. not_measured: those that broke the simulator.
    """

    outcomes: dict[int, EpisodeOutcome] = field(default_factory=dict)
    not_measured: dict[int, EpisodeSpec] = field(default_factory=dict)

    def spec(self, episode: int) -> EpisodeSpec | None:
        """The episode under an id; None where it is not finished."""
        found = self.outcomes.get(episode)
        return self.not_measured.get(episode) if found is None else found.result.spec

    def __len__(self) -> int:
        return len(self.outcomes) + len(self.not_measured)

    def __contains__(self, episode: int) -> bool:
        return episode in self.outcomes or episode in self.not_measured


class EpisodeResultsLog:
    """The folder of one evaluation: what was asked, on which machine, and its finished episodes.

    with EpisodeResultsLog.open(folder, request, fingerprint) as ledger:
        run those that are not in ledger.finished
        ledger.add(outcome)
    """

    def __init__(self, folder: Path, finished: Finished, file: IO[bytes]) -> None:
        self.folder = folder
        self.finished = finished
        self._file = file

    @property
    def outcomes(self) -> dict[int, EpisodeOutcome]:
        """Of the episodes that were measured, by id."""
        return self.finished.outcomes

    @staticmethod
    @contextmanager
    def open(folder: Path, request: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> Iterator[EpisodeResultsLog]:
        """Begin an evaluation in `folder`, or continue the one there.

        request: what fixes the episodes and their outcomes; fingerprint: what draws and computes here. UserError when
        the folder holds another evaluation, one begun under another fingerprint (a score must not mix two renderers),
        or one that another process is running.

        What is refused inside, before its first episode has ended, leaves nothing behind: a resume would only be
        refused again.
        """
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        head = json.loads(json.dumps({"request": request, "fingerprint": fingerprint}))
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise
            raise UserError(f"cannot write into {folder}: {error.strerror}; choose another --output.") from error
        try:
            with locked(folder / LOCK, f"evaluating into {folder}"), (folder / EPISODES).open("ab") as file:
                new = not (folder / REQUEST).exists()
                _check_head(folder, head)
                ledger = EpisodeResultsLog(folder, _read(folder / EPISODES), file)
                try:
                    yield ledger
                except UserError:
                    if new and not ledger.finished:
                        for name in (REQUEST, EPISODES):
                            (folder / name).unlink()
                    raise
        except UserError:
            for path in made:
                if path.is_dir() and not any(path.iterdir()):
                    path.rmdir()
            raise

    @staticmethod
    def read(folder: Path) -> Finished:
        """The finished episodes in `folder`, which nobody else is writing; none where it has none yet."""
        return _read(folder / EPISODES) if (folder / EPISODES).exists() else Finished()

    @staticmethod
    def fingerprint(folder: Path) -> dict[str, Any]:
        """Under what the evaluation in `folder` was begun; UserError when there is none."""
        read_request(folder)
        return json.loads((folder / REQUEST).read_bytes())["fingerprint"]

    def add(self, outcome: EpisodeOutcome) -> None:
        """Record a finished episode; it is on disk when this returns. ValueError if it was recorded before."""
        number = outcome.result.spec.episode_id
        self._write(number, outcome.to_json())
        self.outcomes[number] = outcome

    def add_broken(self, spec: EpisodeSpec) -> None:
        """Record an episode that broke the simulator in every attempt; as `add`."""
        self._write(spec.episode_id, {_NOT_MEASURED: asdict(spec)})
        self.finished.not_measured[spec.episode_id] = spec

    def _write(self, number: int, row: Mapping[str, Any]) -> None:
        if number in self.finished:
            raise ValueError(f"episode {number} is in the ledger already")
        self._file.write(json.dumps(row).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def read_request(folder: Path) -> dict[str, Any]:
    """What the evaluation in `folder` was asked for; UserError when there is none."""
    path = folder / REQUEST
    if not path.is_file():
        raise UserError(f"{folder} is not the folder of an evaluation: it has no {REQUEST}.")
    try:
        return json.loads(path.read_bytes())["request"]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}): start the evaluation again with another --output.") from error


def _check_head(folder: Path, head: Mapping[str, Any]) -> None:
    path = folder / REQUEST
    if not path.is_file():
        if (folder / EPISODES).stat().st_size:
            raise UserError(f"{folder} has {EPISODES} but no {REQUEST}: choose another --output.")
        new = path.with_suffix(".new")
        new.write_text(json.dumps(head, indent=1), encoding="utf-8")
        new.replace(path)
        return
    if read_request(folder) != head["request"]:
        raise UserError(f"{folder} holds another evaluation: choose another --output, or --resume {folder} alone.")
    before = json.loads(path.read_bytes())["fingerprint"]
    for name in sorted({*before, *head["fingerprint"]}):
        was, now = before.get(name), head["fingerprint"].get(name)
        if was != now:
            raise UserError(
                f"{folder} was begun with {name} {was}, and here it is {now}: a score must not mix the two; "
                "continue where it was begun, or start again with another --output."
            )


def _read(path: Path) -> Finished:
    """The finished episodes; a last line that a kill cut short is removed: that episode runs again."""
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole != len(data):
        with path.open("r+b") as file:
            file.truncate(whole)
    finished = Finished()
    for number, line in enumerate(data[:whole].splitlines(), 1):
        try:
            row = json.loads(line)
            outcome = None if _NOT_MEASURED in row else EpisodeOutcome.from_json(row)
            spec = EpisodeSpec(**row[_NOT_MEASURED]) if outcome is None else outcome.result.spec
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path} line {number} is damaged ({error}): start again with another --output.") from error
        if spec.episode_id in finished:
            raise UserError(f"{path} has episode {spec.episode_id} twice: start again with another --output.")
        if outcome is None:
            finished.not_measured[spec.episode_id] = spec
        else:
            finished.outcomes[spec.episode_id] = outcome
    return finished

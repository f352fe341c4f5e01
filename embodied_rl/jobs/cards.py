"""Cards of exported policies and of data sets: README.md for the Hugging Face hub, made from fields."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied_rl.data.layout import NAMESPACE
from embodied_rl.data.lerobot import fingerprint
from embodied_rl.data.metadata import read_metadata, short_name
from embodied_rl.errors import UserError
from embodied_rl.evaluation.benchmark import Tally
from embodied_rl.evaluation.overlap import TRAINED_STATES
from embodied_rl.jobs.describe import eval_words, policy_words, run_words
from embodied_rl.jobs.run_info import RUN_INFO
from embodied_rl.jobs.run_records import RunRecord, read_record
from embodied_rl.learner.checkpoint import POLICY, iteration_of
from embodied_rl.policies.checkpoints.hub import CARD, repository_of
from embodied_rl.policies.checkpoints.integrity import file_sha256
from embodied_rl.telemetry.info import VERSION, EvalInfo, PolicyInfo, RunInfo
from embodied_rl.telemetry.observer import evaluation_path, read_evaluation
from embodied_rl.telemetry.pages import render
from embodied_rl.utils.dataclass_io import read_dataclass
from embodied_rl.utils.output import replace_text
from embodied_rl.utils.words import sentence
from embodied_rl.version import __version__

if TYPE_CHECKING:
    from huggingface_hub import EvalResult

_LIBRARY, _ROBOTICS = "embodied-rl", "robotics"
_REPORTS = ("report.json", "report.html")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardEvaluation:
    """An evaluation of the weights that are exported.

    Args:
        folder: its own, or that of the run that made it; the reports in it go along.
        settings: what the scores depend on, as the card's metadata have it.
        tasks: by name, with their suite.
        words: all that ran, by name.
    """

    folder: Path
    suite: str
    settings: Mapping[str, Any]
    overall: Tally
    tasks: Mapping[str, Tally]
    words: Mapping[str, str]


def run_of(source: Path) -> RunRecord | None:
    """The run among whose checkpoints the policy in `source` is; None of one that lies elsewhere."""
    above = source.absolute().parents
    is_of_run = source.name == POLICY and len(above) > 2 and (above[2] / RUN_INFO).is_file()
    return read_record(above[2]) if is_of_run else None


def evaluations_of(
    source: Path, run: RunRecord | None, folders: Sequence[Path], digest: str | None
) -> list[CardEvaluation]:
    """The evaluations in `folders`; without one, what the run itself found for the checkpoint `source`, if it did.

    digest: of the policy, as `PolicyInfo` has it.

    Raises:
        UserError: a folder is that of no finished evaluation, or of one of other weights.
    """
    if folders or run is None:
        return [_evaluation(folder, digest) for folder in folders]
    updates, config = iteration_of(source.absolute().parent), run.config
    if not evaluation_path(run.folder, updates).is_file():
        return []
    found = read_evaluation(run.folder, updates)
    settings = {"protocol": config.protocol, "physics_version": getattr(config.env, "physics_version", None)}
    return [
        CardEvaluation(
            folder=run.folder,
            suite=config.suite,
            settings=settings | {"states": "heldout", "mode": found.mode},
            overall=Tally(found.overall, None),
            tasks={name: Tally(score, None) for name, score in found.tasks.items()},
            words=run_words(run.sessions[-1], config),
        )
    ]


def _evaluation(folder: Path, digest: str | None) -> CardEvaluation:
    path = folder / _REPORTS[0]
    if not path.is_file():
        raise UserError(f"--evaluations: {folder} is not the folder of a finished evaluation: it has no {path.name}.")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        scores = {"": data["overall"], **data["tasks"]}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error!r}): evaluate again.") from error
    if data.get("version") != VERSION:
        raise UserError(f"{path} is of another version than {VERSION}, which this embodied-rl reads: evaluate again.")
    known = {item.name: data[item.name] for item in fields(EvalInfo) if item.name in data}
    info = read_dataclass(EvalInfo, known, where="report", source=str(path))
    if info.policy.digest != digest:
        raise UserError(f"--evaluations: {folder} measured other weights than these: name one of this checkpoint.")
    tallies = {name: read_dataclass(Tally, item, where="scores", source=str(path)) for name, item in scores.items()}
    settings = {"protocol": info.protocol["name"], "physics_version": info.simulator.physics_version}
    settings |= {name: list(getattr(info, name)) or None for name in ("deviations", "perturb")}
    return CardEvaluation(
        folder=folder,
        suite=info.suite,
        settings=settings | {"states": info.states, "mode": info.mode},
        overall=tallies.pop(""),
        tasks=tallies,
        words=eval_words(info),
    )


def write_model_card(
    out: Path,
    name: str,
    command: str,
    policy: PolicyInfo,
    said: Mapping[str, Any],
    run: RunRecord | None,
    evaluations: Sequence[CardEvaluation],
    license: str | None,
) -> None:
    """Write README.md into an exported policy's folder, and copies of the evaluations' reports beside it.

    Args:
        out: the folder.
        name: OWNER/NAME on the hub, or the folder's.
        command: that exported it.
        policy: as it was before.
        said: the provenance of its checkpoint.
        run: that trained it; None of one that lies elsewhere.
        evaluations: of these weights.
        license: as the hub names it; None where nobody says.
    """
    from huggingface_hub import ModelCardData

    reports = []
    for number, evaluation in enumerate(evaluations, 1):
        place = out / "reports" / f"{number}-{evaluation.suite}"
        place.mkdir(parents=True)
        there = [name for name in _REPORTS if (evaluation.folder / name).is_file()]
        reports.append([Path(shutil.copy(evaluation.folder / name, place)).relative_to(out) for name in there])
    trained, data = said.get("offline", said).get("config", {}), _data(said)
    start = trained["policy"] if isinstance(trained.get("policy"), Mapping) else {"checkpoint": None}
    begins = str(start["checkpoint"] or said.get("checkpoint", {}).get("path", ""))
    front = ModelCardData(
        license=license,
        library_name=_LIBRARY,
        pipeline_tag=_ROBOTICS,
        tags=[_ROBOTICS, _LIBRARY, policy.family],
        base_model=repository_of(begins),
        datasets=[item["repository"] for item in data if item["repository"]] or None,
        model_name=name.rpartition("/")[2] if evaluations else None,
        eval_results=[result for each in evaluations for result in _results(each)] or None,
    )
    session = run.sessions[-1] if run else None
    tasks = session.task_names if isinstance(session, RunInfo) else said.get(TRAINED_STATES, ())
    weights = sorted(path for path in out.rglob("*") if path.suffix in (".safetensors", ".pt"))
    text = render(
        "model_card.md",
        front=front.to_yaml(),
        name=name,
        policy=policy_words(policy),
        digest=policy.digest,
        version=__version__,
        evaluations=list(zip(evaluations, reports, strict=True)),
        said={**said, "protocol": trained.get("protocol"), "begins": repository_of(begins) or Path(begins).name},
        tasks="; ".join(said.get("instructions") or map(sentence, tasks)),
        commands=[*([each.command for each in run.sessions] if run else [said.get("command")]), command],
        data=data,
        files={str(path.relative_to(out)): file_sha256(path) for path in weights},
    )
    replace_text(out / CARD, text + "\n")


def _data(said: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The data sets that a checkpoint says it learned from; of demonstrations beside a run it knows the names alone."""
    first = [said["dataset"]] if "dataset" in said else []
    known = [*(said.get("datasets") or first), *said.get("offline", {}).get("data", ())]
    found = [item | {"repository": repository_of(item["path"])} for item in known]
    found += [{"path": name, "repository": None} for name in said.get("config", {}).get("demos", ())]
    return [item | {"name": item["repository"] or Path(item["path"]).name} for item in found]


def _results(evaluation: CardEvaluation) -> Iterator[EvalResult]:
    """The scores of all tasks together, as the hub's metadata have them; nothing where no episode was measured."""
    from huggingface_hub import EvalResult

    once, suite = evaluation.overall.once, evaluation.suite
    scores = {"success_rate" if once.has_success else "mean_return": once}
    scores |= {} if evaluation.overall.at_end is None else {"success_rate_at_end": evaluation.overall.at_end}
    for name, score in scores.items():
        ends = (score.low, score.high) if score.has_success else score.return_interval
        found = {"episodes": score.episodes, "interval_95": [round(end, 4) for end in ends]}
        if score.episodes:
            value, args = round(score.value, 4), {**evaluation.settings, **found}
            yield EvalResult(_ROBOTICS, suite, suite, name, value, metric_args=args)


def write_dataset_card(folder: Path, name: str, license: str | None) -> str:
    """Write README.md into a data set's folder that has none; return the version of its layout.

    Args:
        folder: of the data set; nothing else in it changes.
        name: OWNER/NAME on the hub, or the folder's.
        license: as the hub names it; None where nobody says.

    Raises:
        UserError: it is no data set, or a damaged one; or its card is there already, so that `license` is not in it.
    """
    from huggingface_hub import DatasetCardData

    meta = read_metadata(folder)
    front = DatasetCardData(
        license=license,
        task_categories=[_ROBOTICS],
        tags=["LeRobot", _LIBRARY],
        configs=[{"config_name": "default", "data_files": "data/*/*.parquet"}],
    )
    if license and (folder / CARD).exists():
        raise UserError(f"{folder / CARD} stays as it is: name the license in it, and leave --license out.")
    if not (folder / CARD).exists():
        text = render(
            "dataset_card.md",
            front=front.to_yaml(),
            name=name,
            meta=meta,
            cameras=", ".join(map(short_name, meta.cameras)),
            said=meta.info.get(NAMESPACE, {}),
            sha256=fingerprint(folder),
        )
        replace_text(folder / CARD, text + "\n")
    return meta.info["codebase_version"]

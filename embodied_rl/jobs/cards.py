"""Cards of exported policies and of data sets: README.md for the Hugging Face hub, made from fields."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied_rl.data.layout import NAMESPACE
from embodied_rl.data.lerobot import fingerprint
from embodied_rl.data.metadata import read_metadata, short_name
from embodied_rl.errors import UserError
from embodied_rl.evaluation.benchmark import Tally
from embodied_rl.evaluation.evaluate import Score
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
        settings: what a score depends on, as the card's metadata have it.
        tasks: by name, with their suite.
        words: all that ran, by name.
    """

    folder: Path
    suite: str
    settings: Mapping[str, Any]
    overall: Tally
    tasks: Mapping[str, Tally]
    words: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What the card of a policy is made from.

    Args:
        name: OWNER/NAME on the hub, or the folder's.
        command: that exports.
        license: as the hub names it; None where nobody says.
        policy: as it was before the export.
        provenance: what its checkpoint says of itself.
        run: that trained it; None of one that lies elsewhere.
    """

    name: str
    command: str
    license: str | None
    policy: PolicyInfo
    provenance: Mapping[str, Any]
    run: RunRecord | None
    evaluations: Sequence[CardEvaluation]


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
        version, scores = data["version"], {"": data["overall"], **data["tasks"]}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged, or of an earlier version ({error!r}): evaluate again.") from error
    if version != VERSION:
        raise UserError(f"{path} is of version {version}, and this embodied-rl reads {VERSION}: evaluate again.")
    known = {item.name: data[item.name] for item in fields(EvalInfo) if item.name in data}
    info = read_dataclass(EvalInfo, known, where="report", source=str(path))
    if info.policy.digest != digest:
        raise UserError(
            f"--evaluations: {folder} measured other weights (sha256 {info.policy.digest}) than these ({digest}): "
            "name an evaluation of this checkpoint."
        )
    tallies = {name: read_dataclass(Tally, item, where="scores", source=str(path)) for name, item in scores.items()}
    settings = {"protocol": info.protocol["name"], "physics_version": info.simulator.physics_version}
    return CardEvaluation(
        folder=folder,
        suite=info.suite,
        settings=settings | {"states": info.states, "mode": info.mode, "perturb": list(info.perturb) or None},
        overall=tallies.pop(""),
        tasks=tallies,
        words=eval_words(info),
    )


def write_model_card(out: Path, card: ModelCard) -> None:
    """Write README.md into an exported policy's folder, and copies of the evaluations' reports beside it."""
    from huggingface_hub import ModelCardData

    said, reports = card.provenance, list[list[Path]]()
    for number, evaluation in enumerate(card.evaluations, 1):
        place = Path("reports") / f"{number}-{evaluation.suite}"
        (out / place).mkdir(parents=True)
        there = [name for name in _REPORTS if (evaluation.folder / name).is_file()]
        reports.append([Path(shutil.copy(evaluation.folder / name, out / place)).relative_to(out) for name in there])
    trained, data = said.get("offline", said).get("config", {}), _data(said)
    start = trained["policy"] if isinstance(trained.get("policy"), Mapping) else {"checkpoint": None}
    begins = str(start["checkpoint"] or said.get("checkpoint", {}).get("path", ""))
    front = ModelCardData(
        license=card.license,
        library_name=_LIBRARY,
        pipeline_tag=_ROBOTICS,
        tags=[_ROBOTICS, _LIBRARY, card.policy.family],
        base_model=repository_of(begins),
        datasets=[item["repository"] for item in data if item["repository"]] or None,
        model_name=card.name.rpartition("/")[2] if card.evaluations else None,
        eval_results=[result for each in card.evaluations for result in _results(each)] or None,
    )
    weights = sorted(path for path in out.rglob("*") if path.suffix in (".safetensors", ".pt"))
    text = render(
        "model_card.md",
        card=card,
        front=front.to_yaml(),
        policy=policy_words(card.policy),
        version=__version__,
        made={
            "suite": said.get("suite"),
            "tasks": "; ".join(said.get("instructions") or map(sentence, _tasks(card))),
            "protocol": trained.get("protocol"),
            "physics version": said.get("era"),
            "begins from": repository_of(begins) or Path(begins).name,
            "seed": said.get("seed"),
            "embodied-rl": said.get("version"),
            "SHA-256 before the export": card.policy.digest,
        },
        commands=[each.command for each in card.run.sessions] if card.run else [said.get("command")],
        data=data,
        files={str(path.relative_to(out)): file_sha256(path) for path in weights},
        reports=reports,
    )
    replace_text(out / CARD, text + "\n")


def _tasks(card: ModelCard) -> Iterable[str]:
    """Names of the tasks that it was trained on, as far as somebody says."""
    session = card.run.sessions[-1] if card.run else None
    return session.task_names if isinstance(session, RunInfo) else card.provenance.get(TRAINED_STATES, ())


def _data(said: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The data sets that a checkpoint says it learned from; of demonstrations beside a run it knows the names alone."""
    first = [said["dataset"]] if "dataset" in said else []
    known = [*(said.get("datasets") or first), *said.get("offline", {}).get("data", ())]
    found = [item | {"repository": repository_of(item["path"])} for item in known]
    found += [{"path": name, "repository": None} for name in said.get("config", {}).get("demos", ())]
    return [item | {"name": item["repository"] or Path(item["path"]).name} for item in found]


def _results(evaluation: CardEvaluation) -> list[EvalResult]:
    """The scores of all tasks together, as the hub's metadata have them; nothing where no episode was measured."""
    from huggingface_hub import EvalResult

    once, at_end = evaluation.overall.once, evaluation.overall.at_end
    scores = {"success_rate" if once.has_success else "mean_return": once, "success_rate_at_end": at_end}
    return [
        EvalResult(
            task_type=_ROBOTICS,
            dataset_type=evaluation.suite,
            dataset_name=evaluation.suite,
            metric_type=name,
            metric_value=round(score.value, 4),
            metric_args={
                **evaluation.settings,
                "episodes": score.episodes,
                "interval_95": [round(end, 4) for end in _interval(score)],
            },
        )
        for name, score in scores.items()
        if score is not None and score.episodes
    ]


def _interval(score: Score) -> tuple[float, float]:
    return (score.low, score.high) if score.has_success else score.return_interval


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
    said = meta.info.get(NAMESPACE, {})
    if license and (folder / CARD).exists():
        raise UserError(f"{folder / CARD} stays as it is: name the license in it, and leave --license out.")
    if not (folder / CARD).exists():
        text = render(
            "dataset_card.md",
            front=front.to_yaml(),
            name=name,
            about={
                "robot": meta.info.get("robot_type"),
                "episodes": len(meta.episodes),
                "frames": sum(episode.length for episode in meta.episodes),
                "frames a second": f"{meta.fps:g}",
                "cameras": ", ".join(map(short_name, meta.cameras)),
                **{word: said.get(word) for word in ("suite", "expert", "split", "keep")},
                "physics version": said.get("era"),
                "SHA-256": fingerprint(folder),
            },
            instructions=sorted({*meta.tasks.values()}),
            command=said.get("command"),
        )
        replace_text(folder / CARD, text + "\n")
    return meta.info["codebase_version"]

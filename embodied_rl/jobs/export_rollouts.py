"""From the episodes that a training run or an evaluation kept to a LeRobot v3 data set."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from embodied_rl.config.train import load_yaml
from embodied_rl.data.episodes import EpisodeInfo, open_store
from embodied_rl.errors import UserError
from embodied_rl.evaluation.overlap import TRAINED_STATES
from embodied_rl.evaluation.results_log import REQUEST, read_request
from embodied_rl.jobs.eval_request import suite_name
from embodied_rl.jobs.run_folder import CONFIG_FILE
from embodied_rl.training.filtered_bc import STORE
from embodied_rl.utils.plugins import import_modules


def export_rollouts(run: Path, out: Path, stamp: dict[str, Any], *, successes: bool) -> int:
    """Write the episodes of the run or evaluation in `run`; return how many.

    Args:
        run: its folder.
        out: the data set's folder, which must not exist.
        stamp: what info.json says of where it comes from.
        successes: only those in which the policy reached the goal alone.

    Raises:
        UserError: no episodes were stored, or none is a success.
    """
    if not (run / STORE).is_dir():
        raise UserError(
            f"{run} has no stored episodes: runs of --algorithm imitate and steer have, and evaluations with --keep"
        )
    store, (suite, split) = open_store(run / STORE), _from(run)
    infos = {key: store.info(key) for key in store.keys()}  # noqa: SIM118
    kept = {key: info for key, info in infos.items() if info.success == 1 or not successes}
    if not kept:
        raise UserError(f"{run} has no episode to export: none of its {len(infos)} is a success")
    about = {"suite": suite, "keep": "successes" if successes else "all", "split": split}
    return store.export(out, stamp | about | {TRAINED_STATES: _states(kept.values())}, kept.keys())


def _from(run: Path) -> tuple[str, str]:
    """(suite, which initial states) of a run or an evaluation."""
    if not (run / REQUEST).is_file():
        config = load_yaml(run / CONFIG_FILE)
        return config.suite, config.train_states
    request = read_request(run)
    import_modules(request["options"].get("imports", ()), str(run))
    return suite_name(request["benchmark"], request["options"]["suite"]), request["options"]["states"]


def _states(infos: Iterable[EpisodeInfo]) -> dict[str, list[int]]:
    found: dict[str, set[int]] = {}
    for info in infos:
        found.setdefault(info.task, set()).add(info.init_state)
    return {task: sorted(states) for task, states in found.items()}

"""What the premise check found, kept beside the exported tasks, once a task and era; never part of a fingerprint.

premises/ERA/FINGERPRINT.json      one file a task
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.sim.libero.exported import write_atomically
from embodied_rl.sim.libero.premises import Failure, Premises

FOLDER = "premises"
RULES = 1
"""Number of the rules in `premises`: what other rules found is not read."""


def premise_path(root: Path, fingerprint: str, era: str) -> Path:
    """Where the premises of an exported task are kept."""
    return root / FOLDER / era / f"{fingerprint}.json"


def read_premises(root: Path, fingerprint: str, era: str) -> Premises | None:
    """What was found for an exported task under an era; None when it was not looked at, or by other rules.

    UserError when the file can't be read.
    """
    path = premise_path(root, fingerprint, era)
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return _unpack(kept) if kept["rules"] == RULES else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"can't read {path} ({error!r}); remove it, and it is made again") from None


def write_premises(root: Path, name: str, fingerprint: str, era: str, found: Premises) -> None:
    """Keep what was found for the exported task of task `name` under an era."""
    failures = {str(row): [[each.premise, each.text] for each in rows] for row, rows in found.failures.items()}
    kept = {
        "rules": RULES,
        "task": name,
        "states": found.states,
        "failures": failures,
        "unsolvable": list(found.unsolvable),
        "unjudged": list(found.unjudged),
    }
    write_atomically(premise_path(root, fingerprint, era), (json.dumps(kept, indent=1) + "\n").encode())


def _unpack(kept: dict[str, Any]) -> Premises:
    failures = {int(row): tuple(Failure(*each) for each in rows) for row, rows in kept["failures"].items()}
    return Premises(kept["states"], failures, tuple(kept["unsolvable"]), tuple(kept["unjudged"]))

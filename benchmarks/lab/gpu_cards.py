"""One-GPU recipe cards, a table of docs/scale.md: `python -m embodied_rl.benchmarks.lab.gpu_cards [POLICY ...]`.

Memory is counted as `embodied-rl plan` counts it, for published sizes, and kept in docs/results/gpu_cards.json.
Time is what `bench vla` measured, where it was. Named policies are counted again; the table is written from the file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from embodied_rl.autotune.memory import GIB, Mode, Need, modes, need
from embodied_rl.errors import UserError
from embodied_rl.factory.policies import FAMILIES
from embodied_rl.policies.family import TrainingMode, pick

ROOT = Path(__file__).resolve().parents[2]
COUNTED = ROOT / "docs" / "results" / "gpu_cards.json"
PAGE = ROOT / "docs" / "scale.md"
BEGIN, END = "<!-- gpu cards, made by benchmarks/lab/gpu_cards.py -->", "<!-- end of gpu cards -->"
CARDS = (24, 40, 80)
"""Memory of the GPUs, GiB."""
POLICIES = {
    "OpenVLA-7B": ("openvla", "7b", 32),
    "OpenVLA-OFT-7B": ("openvla_oft", "7b", 32),
    "pi0": ("pi0", "pi0_base", 0),
    "pi0.5": ("pi0", "pi05_base", 0),
    "SmolVLA": ("smolvla", "smolvla_base", 0),
}
"""Family, preset and LoRA rank; 0: the action expert trains."""
ENVS, MOST_ROWS, EPOCHS = 32, 32, 1
MEASURED_MS = {"OpenVLA-7B": {"act": 24.7, "forward": 22.6, "update": 94.7}}
"""Milliseconds a decision on an H100, of docs/benchmarks.md: 32 at once, log-probs computed again, one epoch."""
MEASURED_ON = 80
DECISIONS = 1000


def count(name: str) -> Need:
    """What training the policy needs: bfloat16, activations computed again. Minutes of CPU time for the large ones."""
    family, preset, rank = POLICIES[name]
    ways = modes(rank or 1, expert=not rank)
    mode: Mode = next(way for way in ways if way.train_expert_only == (not rank))
    found = FAMILIES[family]
    config = found.preset(preset, "official")
    return need(mode, found.measure(config, pick(TrainingMode, mode)), found.cache_bytes(config, 2))


def batch(counted: Need, gib: int) -> tuple[int, int]:
    """Rows of a micro-batch, a power of two, and worlds that are decided for at once, on a GPU; 0 where none fits."""
    rows, envs = counted.most_rows(gib * GIB), counted.most_envs(gib * GIB)
    return (min(MOST_ROWS, 1 << (rows.bit_length() - 1)) if rows else 0), min(ENVS, envs)


def table(counted: dict[str, Need]) -> str:
    """The cards in Markdown."""
    lines = [
        "| policy | trains | GPU, GiB | `--learner.microbatch-size` | `--env.num-envs` | memory, GiB (predicted) "
        f"| s for {DECISIONS} decisions |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, each in counted.items():
        for gib in CARDS:
            rows, envs = batch(each, gib)
            what = f"LoRA {each.mode.lora_rank}" if each.mode.lora_rank else "action expert"
            if rows and envs:
                cells = [str(rows), str(envs), f"{each.total(rows, envs) / GIB:.1f}", _seconds(name, gib)]
            else:
                cells = ["does not fit", "", f"{each.total(1, 1) / GIB:.1f} for one", ""]
            lines.append(f"| {' | '.join([name, what, str(gib), *cells])} |")
    return "\n".join(lines) + "\n"


def _seconds(name: str, gib: int) -> str:
    times = MEASURED_MS.get(name)
    if times is None or gib != MEASURED_ON:
        return "not measured"
    each = times["act"] + times["forward"] + EPOCHS * times["update"]
    return f"{each * DECISIONS / 1000:.0f} (predicted from parts measured on an H100)"


def read() -> dict[str, Need]:
    """What was counted."""
    data = json.loads(COUNTED.read_text(encoding="utf-8")) if COUNTED.is_file() else {}
    return {name: Need(**values | {"mode": Mode(**values["mode"])}) for name, values in data.items()}


def written(page: str, cards: str) -> str:
    """The page with the cards between their marks."""
    head, rest = page.split(BEGIN)
    return head + BEGIN + "\n\n" + cards + "\n" + END + rest.split(END)[1]


def main(argv: Sequence[str]) -> int:
    """Count what is named, all where nothing is on file, and write the table."""
    for name in argv:
        if name not in POLICIES:
            raise UserError(f"unknown policy '{name}': choose {', '.join(POLICIES)}.")
    counted = read()
    for name in POLICIES:
        if name in argv or name not in counted:
            print(f"counting {name}", flush=True)
            counted[name] = count(name)
            data: dict[str, Any] = {key: asdict(counted[key]) for key in POLICIES if key in counted}
            COUNTED.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), table(counted)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        sys.exit(f"gpu_cards: error: {error}")

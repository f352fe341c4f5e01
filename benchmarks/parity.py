"""OpenVLA and OpenVLA-OFT against their authors' own code: random weights, full-size vision towers, a small Llama.

    python -m embodied_rl.benchmarks.parity openvla --reference DIR
    python -m embodied_rl.benchmarks.parity openvla_oft --reference DIR --transformers DIR

DIR: checkouts of github.com/openvla/openvla, or of github.com/moojink/openvla-oft and its fork
github.com/moojink/transformers-openvla-oft. Their code is run, not copied. Exit code 1 where a difference is larger
than rounding. Takes 4 GB of memory, 4 GB of disk and some minutes.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from embodied_rl.benchmarks.parity_authors import BOS, KEY, Authors, Cases, Decisions, Which, revision, versions
from embodied_rl.errors import UserError
from embodied_rl.policies.openvla.checkpoint import load_policy
from embodied_rl.policies.openvla.hf_format import LoadOptions
from embodied_rl.policies.openvla.policy import OpenVLAPolicy
from embodied_rl.policies.openvla_oft.config import VARIANTS, Variant
from embodied_rl.policies.preprocessing.text import PromptTokenizer, build_word_tokenizer
from embodied_rl.policies.preprocessing.tokens import decode_tokens, unnormalise_actions
from embodied_rl.rng import DecisionRng
from embodied_rl.types import Observation

INSTRUCTIONS = ["pick up the black bowl on the plate", "open it"]
SIZE = 224
_APPEND = 29871
LIMITS = {"log-prob": 3e-5, "action": 1e-5}
"""Largest difference that is rounding: nats, and normalised units times the data set's range."""


def make_cases(cameras: int) -> tuple[Cases, PromptTokenizer]:
    """Coarse random pictures, prompts of different lengths, proprio that partly leaves its range."""
    draw = np.random.default_rng(0)
    coarse = draw.integers(0, 256, (len(INSTRUCTIONS), cameras, 16, 16, 3), dtype=np.uint8)
    images = coarse.repeat(SIZE // 16, axis=2).repeat(SIZE // 16, axis=3)
    proprio = (draw.uniform(-1.2, 1.2, (len(INSTRUCTIONS), 8)) * [0.5, 0.5, 1.4, 3.6, 3, 1.2, 0.04, 0.04]).astype("f4")
    tokenizer = PromptTokenizer(build_word_tokenizer(INSTRUCTIONS, 31744), _APPEND)
    ids = [[BOS, *tokenizer.ids(text)] for text in INSTRUCTIONS]
    return Cases(images, proprio, INSTRUCTIONS, ids), tokenizer


def decide(policy: OpenVLAPolicy, cases: Cases) -> list[Decisions]:
    """Ours, greedily: as it acts, all rows in one batch; of tokens also what the update computes."""
    policy.eval()
    seen = Observation.from_numpy(cases.images, cases.proprio, cases.instructions)
    rows = len(cases.instructions)
    with torch.no_grad():
        out = policy.act(seen, DecisionRng(np.arange(rows), np.zeros(rows, np.int64)), "greedy")
    tokens = out.replay["tokens"].numpy().astype(np.int64) if "tokens" in out.replay else None
    normalised = out.replay["actions"].numpy() if tokens is None else decode_tokens(tokens)
    shape = (rows, policy.chunk_len, policy.action_dim)
    actions = unnormalise_actions(normalised.reshape(shape), policy.statistics)
    if tokens is None:
        return [Decisions(actions)]
    acted = Decisions(actions, tokens, out.log_prob.numpy())
    with torch.no_grad():
        again = policy.evaluate(seen.images, seen.proprio, cases.instructions, out.replay)
    return [acted, replace(acted, log_prob=again.log_prob.numpy())]


def differences(theirs: Decisions, ours: Decisions) -> dict[str, float]:
    """The largest differences, and the number of tokens that are others."""
    found = {"action": float(np.abs(theirs.actions - ours.actions).max())}
    if theirs.tokens is not None and theirs.log_prob is not None:
        found["other tokens"] = float((theirs.tokens != ours.tokens).sum())
        found["log-prob"] = float(np.abs(theirs.log_prob - ours.log_prob).max())
    return found


def judge(label: str, theirs: Decisions, ours: Decisions) -> bool:
    """Print the differences; whether all are rounding."""
    found = differences(theirs, ours)
    good = all(number <= LIMITS.get(name, 0.0) for name, number in found.items())
    numbers = ", ".join(f"{name} {number:.2g}" for name, number in found.items())
    actions = theirs.actions
    spread = f"{len(np.unique(actions))} of {actions.size} numbers differ, {actions.min():.2f} to {actions.max():.2f}"
    print(f"{label}: largest differences: {numbers} ({spread}){'' if good else ' - NOT rounding'}")
    return good


def compare(which: Which, reference: Path, transformers: Path | None, folder: Path) -> bool:
    """Decide with both, by way of a checkpoint in `folder`; whether they agree."""
    two, tokenizer = make_cases(cameras=2)
    one = replace(two, images=two.images[:, :1])
    authors = Authors(which, reference, transformers)
    print(f"with {versions()}")
    if which == "openvla":
        theirs = {None: authors.decide_tokens(one)}
    else:
        theirs = {
            name: authors.decide_chunks(two if name == "official" else one, l1=name == "official") for name in _OFT
        }
    authors.save(folder)
    (folder / "tokenizer.json").write_text(tokenizer.tokenizer.to_str(), encoding="utf-8")
    del authors
    gc.collect()  # both at once would take twice the memory
    good = True
    for name, decided in theirs.items():
        label, variant = which, None
        if name is not None:
            label, variant = f"{which}, variant {name}", _uncropped(name)
            if variant.head == "tokens":  # its checkpoints have none of these files
                for part in folder.glob("*_checkpoint.pt"):
                    part.unlink()
        policy = load_policy(folder, LoadOptions(architecture=which, unnorm_key=KEY, variant=variant))
        ours = decide(policy, one if policy.config.num_cameras == 1 else two)
        del policy
        for what, decisions in zip(("acting", "in the update"), ours, strict=False):
            good &= judge(f"{label}, {what}", decided, decisions)
    return good


_OFT = ("official", "simplevla")


def _uncropped(name: str) -> Variant:
    """Cutting out the middle is their robot scripts' TensorFlow, not their network."""
    return replace(VARIANTS[name], center_crop=None)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare as the command line says; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m embodied_rl.benchmarks.parity",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("which", choices=["openvla", "openvla_oft"])
    parser.add_argument("--reference", type=Path, required=True, help="checkout of the authors' repository")
    parser.add_argument("--transformers", type=Path, help="checkout of the OFT authors' fork of transformers")
    given = parser.parse_args(argv)
    try:
        if (given.which == "openvla_oft") is not (given.transformers is not None):
            raise UserError("openvla_oft needs --transformers, its authors' fork; openvla is for transformers 4.40.1.")
        for folder in filter(None, (given.reference, given.transformers)):
            print(f"{folder.resolve().name}: {revision(folder)}")
        with tempfile.TemporaryDirectory() as scratch:
            return 0 if compare(given.which, given.reference, given.transformers, Path(scratch)) else 1
    except UserError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

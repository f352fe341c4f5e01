"""What the authors' own OpenVLA and OpenVLA-OFT decide: their code, imported from a checkout, with random weights.

Vision towers have the published sizes, the Llama is small, everything is float32. The weights are written in the
published layout, for ours to read.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch

from embodied_rl.errors import UserError
from embodied_rl.types import Array

Which = Literal["openvla", "openvla_oft"]
KEY = "random_no_noops"
PAD_TO, BINS, BOS = 64, 256, 1
VOCAB, DIM = 32064, 256
NEEDED = "transformers==4.40.1 tokenizers==0.19.1 timm==0.9.16 huggingface-hub==0.25.2 torchvision"
# Imported without the code of their __init__, which wants TensorFlow and the training stack.
_PACKAGES = ("", ".extern", ".extern.hf", ".models", ".training", ".vla")


@dataclass(frozen=True, slots=True)
class Cases:
    """What both decide from. images: uint8 [N, V, H, W, 3]; proprio: float32 [N, P]; ids: prompts with BOS."""

    images: Array
    proprio: Array
    instructions: list[str]
    ids: list[list[int]]


@dataclass(frozen=True, slots=True)
class Decisions:
    """Row by row: actions float [N, K, A] before clipping; tokens int64 [N, L] in 0..255 and their log-probs.

    An L1 head has no tokens.
    """

    actions: Array
    tokens: Array | None = None
    log_prob: Array | None = None


def statistics() -> dict[str, Any]:
    """Statistics of a data set whose actions stay within [-1, 1]."""
    low, high = [-0.6, -0.7, -0.8, -0.1, -0.2, -0.15, 0.0], [0.9, 0.8, 0.7, 0.12, 0.2, 0.3, 1.0]
    action = {"q01": low, "q99": high, "mask": [True] * 6 + [False]}
    low, high = [-0.5, -0.4, 0.2, 1.0, -3.0, -1.0, 0.0, -0.04], [0.4, 0.5, 1.4, 3.6, 3.0, 1.2, 0.04, 0.0]
    rest = {"mean": 0.0, "std": 1.0, "min": -1.0, "max": 1.0}
    return {
        KEY: {
            "action": action | {name: [number] * 7 for name, number in rest.items()},
            "proprio": {"q01": low, "q99": high} | {name: [number] * 8 for name, number in rest.items()},
            "num_transitions": 1,
            "num_trajectories": 1,
        }
    }


def revision(folder: Path) -> str:
    """The commit of a checkout, its date, and whether its files were changed.

    Raises:
        UserError: It is no checkout of git.
    """
    try:
        commit = _git(folder, "show", "-s", "--format=%H of %cs", "HEAD")
        return commit + (", changed" if _git(folder, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        raise UserError(f"{folder} is no checkout of git, so nobody knows which code it is: git clone it.") from None


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Authors:
    """Their model, processor and parts.

    Args:
        which: whose code `reference` is a checkout of.
        transformers: a checkout of the OFT authors' fork, whose Llama attends both ways; None for the installed one.

    Raises:
        UserError: Their code can't be imported.
    """

    def __init__(self, which: Which, reference: Path, transformers: Path | None) -> None:
        with _imported_from(reference, transformers):
            hf = {name: _import(f"prismatic.extern.hf.{name}_prismatic") for name in ("configuration", "modeling")}
            self._processing = _import("prismatic.extern.hf.processing_prismatic")
            self._parts: list[ModuleType] = []
            if which == "openvla_oft":
                _placeholder("diffusers.schedulers.scheduling_ddim", DDIMScheduler=object)  # for a head not used here
                self._parts = [_import(f"prismatic.models.{name}") for name in ("action_heads", "projectors")]
        config = hf["configuration"].OpenVLAConfig(
            norm_stats=statistics(),
            vision_backbone_id="dinosiglip-vit-so-224px",
            llm_backbone_id="llama2-7b-pure",
            arch_specifier="no-align+fused-gelu-mlp",
            image_resize_strategy="resize-naive",
            text_config={
                "vocab_size": VOCAB,
                "hidden_size": DIM,
                "intermediate_size": 688,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "pad_token_id": 32000,
                "torch_dtype": "float32",
            },
        )
        self.model = hf["modeling"].OpenVLAForActionPrediction(config).eval()
        self._head: Any = None
        self._projector: Any = None
        if self._parts:
            heads, projectors = self._parts
            self._head = heads.L1RegressionActionHead(input_dim=DIM, hidden_dim=DIM, action_dim=7).eval()
            self._projector = projectors.ProprioProjector(llm_dim=DIM, proprio_dim=8).eval()
        self._randomise()

    @torch.no_grad()
    def _randomise(self) -> None:
        """Numbers that all matter. Only action tokens have a row in the head, so that only they are decided for."""
        generator = torch.Generator().manual_seed(1)
        for module in filter(None, (self.model, self._head, self._projector)):
            for name, parameter in module.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                if parameter.ndim < 2 or any(word in name for word in ("embed_tokens", "pos_embed", "token", "latent")):
                    parameter.add_(noise, alpha=0.05)
                else:
                    sharper = 2.0 if "q_proj" in name or "k_proj" in name else 1.0  # attention that tells tokens apart
                    parameter.copy_(noise * sharper / parameter[0].numel() ** 0.5)
        head = self.model.get_output_embeddings().weight
        head[: _first_row()] = 0.0
        head[VOCAB - PAD_TO :] = 0.0

    def save(self, folder: Path) -> None:
        """Write the checkpoint in the published layout."""
        self.model.save_pretrained(folder, max_shard_size="1GB")
        (folder / "dataset_statistics.json").write_text(json.dumps(statistics()))
        for name, part in (("action_head", self._head), ("proprio_projector", self._projector)):
            if part is not None:
                state = {f"module.{key}": tensor for key, tensor in part.state_dict().items()}
                torch.save(state, folder / f"{name}--1_checkpoint.pt")

    def decide_tokens(self, cases: Cases) -> Decisions:
        """OpenVLA: greedy tokens one after the other, and their log-probs from one pass over all of them."""
        actions, tokens, scores = [], [], []
        generate, made = self.model.generate, []

        def record(*given: Any, **options: Any) -> torch.Tensor:
            made.append(generate(*given, **options))
            return made[-1]

        self.model.generate = record
        for pixels, ids in zip(self._pixels(cases.images), cases.ids, strict=True):
            prompt = torch.tensor([ids])
            with torch.no_grad():
                mask = torch.ones_like(prompt)
                options = {"pixel_values": pixels, "attention_mask": mask, "do_sample": False}
                actions.append(self.model.predict_action(prompt, unnorm_key=KEY, **options))
                whole = made[-1][:, :-1]
                out = self.model(input_ids=whole, attention_mask=torch.ones_like(whole), pixel_values=pixels)
            chosen = made[-1][0, len(ids) :] - _first_row()
            tokens.append(chosen)
            scores.append(_scores(out.logits[0, -len(chosen) :], chosen))
        del self.model.generate
        return Decisions(np.stack(actions)[:, None], torch.stack(tokens).numpy(), torch.stack(scores).numpy())

    def decide_chunks(self, cases: Cases, *, l1: bool) -> Decisions:
        """OpenVLA-OFT: with L1 head and proprio, or the tokens of the language model's own head."""
        self.model.vision_backbone.set_num_images_in_input(cases.images.shape[1])
        low, high = (np.array(statistics()[KEY]["proprio"][name]) for name in ("q01", "q99"))
        logits: list[torch.Tensor] = []
        hook = self.model.language_model.register_forward_hook(lambda *call: logits.append(call[2].logits[0]))
        actions, tokens, scores = [], [], []
        for pixels, ids, proprio in zip(self._pixels(cases.images), cases.ids, cases.proprio, strict=True):
            prompt = torch.tensor([ids])
            options: dict[str, Any] = {"pixel_values": pixels, "attention_mask": torch.ones_like(prompt)}
            if l1:
                seen = np.clip(2 * (proprio - low) / (high - low + 1e-8) - 1, -1, 1)  # as their robot scripts do
                options |= {"proprio": seen, "proprio_projector": self._projector, "action_head": self._head}
            with torch.no_grad():
                actions.append(self.model.predict_action(prompt, unnorm_key=KEY, **options)[0])
            chunk = logits[-1][-(actions[-1].size + 2) : -2]  # each is read one place before its own; then comes </s>
            tokens.append(chunk[:, _first_row() : _first_row() + BINS].argmax(-1))
            scores.append(_scores(chunk, tokens[-1]))
        hook.remove()
        if l1:
            return Decisions(np.stack(actions))
        return Decisions(np.stack(actions), torch.stack(tokens).numpy(), torch.stack(scores).numpy())

    def _pixels(self, images: Array) -> Iterator[torch.Tensor]:
        """Each row's pictures through their image processor: float32 [1, 6 V, 224, 224]."""
        image = importlib.import_module("PIL.Image")
        processor = self._processing.PrismaticImageProcessor(
            use_fused_vision_backbone=True,
            image_resize_strategy="resize-naive",
            input_sizes=[(3, 224, 224)] * 2,
            interpolations=["bicubic"] * 2,
            means=[(0.485, 0.456, 0.406), (0.5, 0.5, 0.5)],
            stds=[(0.229, 0.224, 0.225), (0.5, 0.5, 0.5)],
        )
        for row in images:
            seen = [processor(image.fromarray(frame), return_tensors="pt")["pixel_values"] for frame in row]
            yield torch.cat(seen, dim=1)


def versions() -> str:
    """Of the packages that both ran on."""
    names = ("torch", "transformers", "timm", "tokenizers")
    return ", ".join(f"{name} {importlib.import_module(name).__version__}" for name in names)


def _first_row() -> int:
    """Vocabulary id of action token 0."""
    return VOCAB - PAD_TO - BINS


def _scores(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """log-probs [L] of action tokens among the 256, from logits [L, VOCAB]."""
    among = logits[:, _first_row() : _first_row() + BINS].log_softmax(-1)
    return among.gather(1, tokens[:, None])[:, 0]


@contextmanager
def _imported_from(reference: Path, transformers: Path | None) -> Iterator[None]:
    """Their packages by name, without the code of any __init__; their constants are told to be LIBERO's."""
    for name in _PACKAGES:
        _placeholder(f"prismatic{name}").__path__ = [str(reference / f"prismatic{name}".replace(".", "/"))]
    if transformers is not None:
        sys.path.insert(0, str(transformers / "src"))
    given, sys.argv = sys.argv, ["libero"]
    try:
        yield
    finally:
        sys.argv = given


def _placeholder(name: str, **attributes: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(attributes)
    sys.modules[name] = module
    return module


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"the authors' code cannot be imported ({error}): give a checkout of it, and in an environment of its own, "
            f"beside embodied-rl: pip install --no-deps {NEEDED}"
        ) from error

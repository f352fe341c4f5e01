"""Models and processors of transformers in a folder: what they are, and reading them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from embodied_rl.errors import UserError

CONFIG = "config.json"
READS = ("*.json", "*.safetensors", "*.model", "*.jinja", "*.txt")
"""Files of a model's folder that decide what it says."""


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a reward model's folder, of whatever kind.

    Raises:
        UserError: there is none.
    """
    path = folder / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(
            f"no reward model in {folder}: make one with embodied-rl reward train DATASET --out DIR, or name one of "
            "transformers"
        ) from error
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}): restore it, or train the reward model again") from error
    if not isinstance(config, dict):
        raise UserError(f"{path} must hold a JSON object: restore it, or train the reward model again")
    return config


def load_pretrained(folder: Path, auto: str, device: str) -> tuple[Any, Any]:
    """A model in evaluation mode on `device` and its processor; float32 on a CPU, else as the weights were saved.

    Code of the folder is never run, and only safetensors are read.

    Args:
        auto: class of transformers that finds the model's own, such as AutoModel.

    Raises:
        UserError: transformers is not installed, or the folder is not whole.
    """
    transformers = need_transformers()
    transformers.utils.logging.disable_progress_bar()
    try:
        processor = transformers.AutoProcessor.from_pretrained(folder, local_files_only=True)
        model = getattr(transformers, auto).from_pretrained(
            folder,
            local_files_only=True,
            use_safetensors=True,
            dtype=torch.float32 if device == "cpu" else "auto",
            output_loading_info=True,
        )
    except ImportError as error:
        raise UserError(
            f"the reward model in {folder} needs what is not installed ({_short(error)}): install it beside this "
            "torch, or choose another model"
        ) from error
    except Exception as error:  # whatever a damaged file makes transformers say
        raise UserError(f"the reward model in {folder} cannot be read ({_short(error)}): get it again") from error
    model, loading = model
    lacking = [*loading["missing_keys"], *loading["mismatched_keys"]]
    if lacking:
        raise UserError(
            f"the reward model in {folder} lacks {len(lacking)} of its weights, such as {lacking[0]}: get it again"
        )
    return model.to(device).eval().requires_grad_(False), processor


def need_transformers() -> Any:
    """The library.

    Raises:
        UserError: it is not installed.
    """
    try:
        import PIL  # noqa: F401  # image processors draw with it
        import transformers
    except ImportError as error:
        raise UserError(f"reward models of transformers need {error.name}: pip install 'embodied-rl[vlm]'") from error
    return transformers


def first_camera(images: torch.Tensor) -> list[Any]:
    """Uint8 arrays [H, W, 3], one a frame, of the first camera of images [N, V, H, W, 3]."""
    return list(images[:, 0].cpu().numpy())


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:160] or type(error).__name__

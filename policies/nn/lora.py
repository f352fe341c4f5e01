"""LoRA (Hu et al. 2022) through peft, in place on any policy network, and what trains in which number format.

OpenVLA's recipe: rank 32, alpha 16, every linear layer of the vision towers, projector and language model; of pi0 and
its kin also of the action expert. Not adapted: `lm_head`, of which only 256 rows are read, past any adapter; small
heads and the projections of states and actions, which train whole; and layers that never run. Dropout is left out:
`act` and `evaluate` must agree.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from embodied_rl.errors import UserError
from embodied_rl.policies.checkpoints.folder import check_keys, read_json, read_weights, to_json
from embodied_rl.policies.nn.checkpointing import set_gradient_checkpointing

if TYPE_CHECKING:
    from peft import LoraConfig

_MAX_ALPHA = 16
_ADAPTER = "default"
_PEFT_PREFIX = "base_model.model."
ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Parts that are small or new in fine-tuning: they train whole.
_WHOLE = re.compile(
    r"(^|\.)(value_head|noise_head|action_head|proprio_projector|state_proj|action_(in|out)_proj"
    r"|(action_)?time_mlp_(in|out)|blocks\.\d+\.(scale|shift))(\.|$)"
)
_NEVER = re.compile(r"(^|\.)(lm_head|attn_pool)(\.|$)")


def add_lora(network: nn.Module, rank: int, *, seed: int = 0, whole: Collection[str] = ()) -> None:
    """Give `network` adapters of `rank`, which change nothing yet, and freeze all else but the heads that train whole.

    Args:
        network: what is frozen in it gets no adapter.
        rank: at least 1.
        seed: of the adapters' random half.
        whole: further parameters that train whole.

    Raises:
        UserError: The rank is not positive, or the network has adapters already.
    """
    if rank < 1:
        raise UserError(f"the rank of LoRA must be at least 1, got {rank}.")
    if has_lora(network):
        raise UserError("this policy has LoRA adapters already, whose rank cannot change: leave --policy.lora-rank out")
    heads = {name for name, p in network.named_parameters() if _WHOLE.search(name) and p.requires_grad}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _inject(network, _targets(network), rank, heads | set(whole))


def _inject(network: nn.Module, targets: list[str], rank: int, whole: Collection[str]) -> None:
    """Put adapters on the layers `targets`; only they and the parameters `whole` train."""
    from peft import inject_adapter_in_model

    kept = [parameter for name, parameter in network.named_parameters() if name in whole]
    inject_adapter_in_model(_config(targets, rank), network, adapter_name=_ADAPTER)
    network.requires_grad_(False)
    for name, parameter in network.named_parameters():
        if ".lora_" in name:
            parameter.requires_grad_(True)
    for parameter in kept:
        parameter.requires_grad_(True)


def has_lora(network: nn.Module) -> bool:
    """Whether `network` carries adapters."""
    return any(".lora_" in name for name, _ in network.named_parameters())


def merge_lora(network: nn.Module) -> None:
    """Fold the adapters into the weights they adapt, in place: the same function as a plain network."""
    from peft.tuners.lora import LoraLayer

    for name, module in list(network.named_modules()):
        if isinstance(module, LoraLayer):
            module.merge()
            parent, _, leaf = name.rpartition(".")
            setattr(network.get_submodule(parent), leaf, module.get_base_layer())


def lora_files(network: nn.Module, rank: int) -> dict[str, bytes]:
    """The adapters as peft's files, which `peft.PeftModel.from_pretrained` reads beside the same base."""
    state = {
        _PEFT_PREFIX + name.replace(f".{_ADAPTER}.", "."): tensor.detach().cpu().contiguous()
        for name, tensor in network.state_dict().items()
        if ".lora_" in name
    }
    targets = sorted({name.partition(".lora_")[0].removeprefix(_PEFT_PREFIX) for name in state})
    with tempfile.TemporaryDirectory() as folder:
        _config(targets, rank).save_pretrained(folder)
        settings = read_json(Path(folder) / ADAPTER_CONFIG)
    return {ADAPTER_CONFIG: to_json(settings | {"target_modules": targets}), ADAPTER_WEIGHTS: save(state)}


def load_lora(network: nn.Module, folder: Path, rank: int, whole: Collection[str]) -> None:
    """Put the adapters of `lora_files` onto the layers of `network` that they are for.

    Args:
        network: without adapters.
        folder: of peft's files.
        rank: of the adapters.
        whole: parameters that train beside them.

    Raises:
        UserError: The files are not those of such a network.
    """
    targets = read_json(folder / ADAPTER_CONFIG).get("target_modules")
    linear = {name for name, module in network.named_modules() if isinstance(module, nn.Linear)}
    if not isinstance(targets, list) or not targets or not linear.issuperset(targets):
        raise UserError(f"{folder / ADAPTER_CONFIG} adapts other layers than this policy has: restore the file")
    _inject(network, targets, rank, whole)
    found = {
        f"{name.removeprefix(_PEFT_PREFIX).removesuffix('.weight')}.{_ADAPTER}.weight": tensor
        for name, tensor in read_weights(folder / ADAPTER_WEIGHTS).items()
    }
    own = {name: tensor for name, tensor in network.state_dict().items() if ".lora_" in name}
    check_keys(own, found, folder / ADAPTER_WEIGHTS)
    network.load_state_dict(found, strict=False)


def trained_whole(network: nn.Module) -> dict[str, Tensor]:
    """The parameters that train beside the adapters."""
    return {
        name: parameter.detach().cpu().contiguous()
        for name, parameter in network.named_parameters()
        if parameter.requires_grad and ".lora_" not in name
    }


def set_formats(network: nn.Module, precision: str) -> None:
    """'float32': every parameter. 'bfloat16': the frozen ones; those that train stay float32 and multiply in bfloat16.

    AdamW's steps are smaller than bfloat16 can add to a weight.
    """
    for parameter in network.parameters():
        half = precision == "bfloat16" and not parameter.requires_grad
        parameter.data = parameter.data.to(torch.bfloat16 if half else torch.float32)


def set_training(policy: Any, precision: str, *, recompute: bool) -> None:
    """Number formats of `policy.model` and of its products, and gradient checkpointing, as training has them."""
    set_formats(policy.model, precision)
    policy.mixed_precision = precision == "bfloat16"
    set_gradient_checkpointing(policy, recompute)


def _config(targets: list[str], rank: int) -> LoraConfig:
    from peft import LoraConfig

    return LoraConfig(
        r=rank, lora_alpha=min(rank, _MAX_ALPHA), lora_dropout=0.0, target_modules=targets, init_lora_weights="gaussian"
    )


def _targets(network: nn.Module) -> list[str]:
    """Names of the linear layers to adapt."""
    frozen = {name.rpartition(".")[0] for name, parameter in network.named_parameters() if not parameter.requires_grad}
    idle: Collection[str] = getattr(network, "idle_layers", ())
    return [
        name
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear) and not _WHOLE.search(name) and not _NEVER.search(name) and name not in frozen
        if name not in idle
    ]

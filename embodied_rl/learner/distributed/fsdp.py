"""FSDP2: each rank holds a shard of the weights, gradients and optimiser state, for policies that do not fit.

A module's weights are gathered while it computes, so all ranks take every forward and backward pass together.
Every rank also keeps the whole policy, which acts; rank 0's is saved.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor

from embodied_rl.learner.distributed.collectives import Collectives
from embodied_rl.learner.types import moving_tensors
from embodied_rl.types import RolloutBatch


class FSDPCollectives(Collectives):
    """`Collectives` whose `prepare` returns a sharded copy of the policy."""

    example_rows = 1
    """A rank without rows takes the others' passes with this one."""

    def pad(self, batch: RolloutBatch, index: Tensor, rows: int, pieces: Sequence[Tensor]) -> list[tuple[Tensor, bool]]:
        """Pad this rank's pieces with a row that does not count, so that all ranks run equally many passes."""
        own = super().pad(batch, index, rows, pieces)
        # Known without asking the others.
        most = max(-(-count // rows) for count in self.owners(batch, index).bincount().tolist())
        return own + [(_spare_row(batch), False)] * (most - len(own))

    def prepare(self, policy: Any) -> Any:
        """The sharded model, with rank 0's weights."""
        super().refresh(policy, policy)
        model = copy.deepcopy(policy)
        mesh = init_device_mesh(next(model.parameters()).device.type, (self.size,))
        # Layers are brought together one by one; what is not in a list of layers, with the policy as a whole.
        layers = [layer for module in model.modules() if isinstance(module, nn.ModuleList) for layer in module]
        for module in [*[layer for layer in layers if next(layer.parameters(), None) is not None], model]:
            fully_shard(module, mesh=mesh, reshard_after_forward=True)
            if hasattr(module, "keys_values"):  # of a decoder's layer, called in place of the whole
                register_fsdp_forward_method(module, "keys_values")
            assert isinstance(module, FSDPModule)
            module.set_gradient_divide_factor(1.0)  # gradients are sums: weights of rows add up to 1 over all ranks
            module.set_force_sum_reduction_for_comms(True)
        register_fsdp_forward_method(model, "evaluate")
        if hasattr(model, "sft_loss"):
            register_fsdp_forward_method(model, "sft_loss")
        # Losses never change the policy's outputs in place.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        return model

    def refresh(self, policy: Any, model: Any) -> None:
        """Give every rank its shard of the weights that rank 0's `policy` has now, and its buffers whole."""
        super().refresh(policy, model)
        with torch.no_grad():
            for part, whole in _pairs(model, policy):
                part.copy_(_cut(whole.detach(), part) if isinstance(part, DTensor) else whole)

    def publish(self, policy: Any, model: Any) -> None:
        """Gather the weights in every rank's `policy`; its buffers are its own, which nothing in `model` changes."""
        with torch.no_grad():
            for part, whole in _pairs(model, policy):
                if isinstance(part, DTensor):
                    whole.copy_(part.full_tensor())

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Every backward pass has added them up."""

    def backward(self, loss: Tensor, moving: Sequence[nn.Parameter]) -> None:
        """As `Collectives.backward`. Shards get the gradients of all parameters; `OptimizerStep` drops the others."""
        loss.backward()

    def clip(self, moving: Sequence[nn.Parameter], most: float) -> float:
        """As `Collectives.clip`, the norm over all shards."""
        norm = nn.utils.clip_grad_norm_(moving, most)
        return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)

    def gather_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """As `Collectives.gather_state`; every rank must call it."""
        state = optimizer.state_dict()
        return state | {"state": {key: _each(values, _together) for key, values in state["state"].items()}}

    def scatter_state(self, state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """This rank's shard of a whole state."""
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        return state | {
            "state": {
                key: _each(values, lambda value, like=parameters[key]: _cut(value, like))
                for key, values in state["state"].items()
            }
        }


def _spare_row(batch: RolloutBatch) -> Tensor:
    """A row with its frames here, int64 [1]: if possible one of finite numbers, for which the policy's are finite."""
    here = torch.ones(len(batch), dtype=torch.bool) if batch.frame_row is None else batch.frame_row >= 0
    finite = batch.log_prob.isfinite().all(dim=1) & batch.proprio.cpu().isfinite().all(dim=1)
    return (here & finite if bool((here & finite).any()) else here).nonzero()[:1, 0]


def _pairs(model: nn.Module, policy: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
    """What training changes in the sharded model, with the same of the whole policy."""
    return zip(moving_tensors(model).values(), moving_tensors(policy).values(), strict=True)


def _each(values: dict[str, Any], change: Any) -> dict[str, Any]:
    return {name: change(value) if isinstance(value, Tensor) else value for name, value in values.items()}


def _together(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _cut(whole: Tensor, like: Any) -> Tensor:
    """This rank's shard of `whole`, sharded as the parameter `like`; numbers such as a step stay."""
    if whole.shape != like.shape:
        return whole
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=None)

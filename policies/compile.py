"""Hot parts of acting through `torch.compile`: kernels of its own on a CPU, CUDA graphs on a GPU.

A part is a function of a module and of tensors whose first dimension is the rows of the batch. It changes none of them
(a CUDA graph must not write to what it is given) and returns new ones. The module's parameters are read at each call,
so weights that are updated in place, as the optimiser and the schedulers do it, count at once; a replica of the policy
runs the same code.

On a CPU the number of rows is a variable of the compiled code: one compilation serves all batches but those of one row,
and nothing is computed in vain. A CUDA graph holds for one shape only, so there rows are padded to the next power of
two (repeating the last one): a rollout with up to 64 envs has at most 7 graphs for each width of the prompt.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn import functional as F

from embodied_rl.errors import UserError

Part = Callable[..., tuple[Tensor, ...]]
"""(module, *tensors [N, ...] or None) -> tensors [N, ...]."""

PROMPT_STEP = 16
"""On a GPU prompts are padded to a multiple of so many tokens, or each length would be a CUDA graph."""
_MOST_SHAPES = 64


class Compiled:
    """`part`, compiled when it is first called. For several threads; results are never overwritten by a later call."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self._run: dict[str, Part] = {}

    def __call__(self, module: object, *tensors: Tensor | None) -> tuple[Tensor, ...]:
        """`part(module, *tensors)`, which must run without gradients; the first tensor is not None.

        UserError if it cannot be compiled, for want of a compiler for instance.
        """
        assert tensors[0] is not None
        device, rows = tensors[0].device.type, len(tensors[0])
        run = self._run.get(device)
        if run is None:
            run = self._run.setdefault(device, _compile(self.part, device))
        if graphs := uses_graphs(device):
            tensors = tuple(pad_rows(tensor, next_power(rows)) for tensor in tensors)
            _graphs_in_this_thread()
            torch.compiler.cudagraph_mark_step_begin()
        else:
            for tensor in tensors:
                if tensor is not None:
                    torch._dynamo.maybe_mark_dynamic(tensor, 0)
        try:
            found = run(module, *tensors)
        except _failures() as error:
            raise UserError(_explain(error)) from error
        # the graph's next run writes to the same memory
        return tuple(tensor[:rows].clone() for tensor in found) if graphs else tuple(found)


def _compile(part: Part, device: str) -> Part:
    import torch._dynamo  # takes seconds: only where it is asked for

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_SHAPES)
    if uses_graphs(device):
        return torch.compile(part, fullgraph=True, dynamic=False, mode="reduce-overhead")
    return torch.compile(part, fullgraph=True)


def _graphs_in_this_thread() -> None:
    """Let CUDA graphs work outside the main thread, where torch 2.11 fails with an AssertionError; 2.13 does not."""
    from torch._inductor import cudagraph_trees as trees

    if not hasattr(trees, "_initialize_tls") and not hasattr(trees.local, "tree_manager_containers"):
        trees.local.tree_manager_containers = {}
        trees.local.tree_manager_locks = defaultdict(threading.Lock)


def _failures() -> tuple[type[Exception], ...]:
    from torch._dynamo import exc

    return exc.TorchDynamoException, exc.FailOnRecompileLimitHit


def _explain(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (
        f"torch.compile failed ({lines[0] if lines else type(error).__name__}): act without it (leave out "
        "--policy.compile or --efficient.compile), or mend what it names"
    )


def uses_graphs(device: str) -> bool:
    """Whether compiled code runs as CUDA graphs there, which hold for one shape only."""
    return device == "cuda"


def next_power(count: int) -> int:
    """The smallest power of two that is not smaller; count: at least 1."""
    return 1 << (count - 1).bit_length()


def pad_rows(tensor: Tensor | None, rows: int) -> Tensor | None:
    """[N, ...] -> [rows, ...], the last row repeated."""
    if tensor is None or len(tensor) == rows:
        return tensor
    return torch.cat([tensor, tensor[-1:].expand(rows - len(tensor), *tensor.shape[1:])])


def pad_prompt(ids: Tensor) -> Tensor:
    """Prompt ids [N, T] as compiled code reads them: on a GPU with a multiple of `PROMPT_STEP` slots."""
    return F.pad(ids, (0, -ids.shape[1] % PROMPT_STEP)) if uses_graphs(ids.device.type) else ids


def need_compiler(device: str) -> None:
    """UserError where `torch.compile` has nothing to compile with for `device` ('cpu' or 'cuda')."""
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler) is None:
        raise UserError(
            f"compiling needs a C++ compiler, and there is no {compiler} here: install one (apt install g++), name "
            "another with the environment variable CXX, or leave out --policy.compile and --efficient.compile."
        )
    if device == "cuda" and find_spec("triton") is None:
        raise UserError(
            "compiling for a GPU needs triton: pip install triton, or leave out --policy.compile and "
            "--efficient.compile."
        )

"""Joining the other ranks that accelerate, torchrun or `--learner.num-processes` started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import distributed

from embodied_rl.errors import UserError
from embodied_rl.learner.distributed.collectives import SINGLE_PROCESS, Collectives, RankError, lost
from embodied_rl.utils.ranks import ProcessRank

TIMEOUT = timedelta(hours=6)
"""How long a rank waits for the others: they may still roll out. A rank that has died is noticed at once."""


@contextmanager
def joined(place: ProcessRank) -> Iterator[Collectives]:
    """The ranks of this process's run for the `with` block; on GPUs, `cuda` is this rank's own within it.

    Raises:
        RankError: another rank did not come, or was lost in the block.
    """
    if place.size == 1:
        yield SINGLE_PROCESS
        return
    # Gradients go by the backend of their device, everything else by gloo; NCCL takes a GPU for one rank only.
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpus:
        torch.cuda.set_device(place.local_rank % gpus)
    backend = "cpu:gloo,cuda:nccl" if gpus >= place.local_size else "gloo"
    try:
        distributed.init_process_group(backend, rank=place.rank, world_size=place.size, timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        raise RankError(lost(error)) from error
    try:
        yield Collectives(place.rank, place.size)
    except RuntimeError as error:
        if "gloo" in str(error).lower() or isinstance(error, distributed.DistError):  # FSDP's own collectives
            raise RankError(lost(error)) from error
        raise
    finally:
        distributed.destroy_process_group()


def for_learner(collectives: Collectives, *, fsdp: bool) -> Collectives:
    """The same ranks, as the learner that `fsdp` asks for needs them.

    Raises:
        UserError: there is nobody to shard over.
    """
    if not fsdp:
        return collectives
    if collectives.size == 1:
        raise UserError(
            "--learner.fsdp needs ranks to shard over: give --learner.num-processes 2, start it with torchrun, or set "
            "learner.fsdp: false in the config."
        )
    from embodied_rl.learner.distributed.fsdp import FSDPCollectives

    return FSDPCollectives(collectives.rank, collectives.size)

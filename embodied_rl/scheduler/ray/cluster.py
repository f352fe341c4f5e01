"""The connection to a Ray cluster."""

from __future__ import annotations

import socket
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.scheduler.config import RayConfig

_KNOCK_SECONDS = 5.0


def connect(config: RayConfig) -> Any:
    """The `ray` module, connected to the cluster at `config.address` (None: one is started on this machine).

    UserError if Ray is not installed, the cluster does not answer, or it is too small for the workers.
    """
    try:
        import ray
    except ImportError as error:
        raise UserError("--scheduler ray needs Ray: pip install 'embodied-rl[ray]'.") from error
    if not ray.is_initialized():
        address = config.address or "local"  # 'local': never whatever RAY_ADDRESS names
        alone: dict[str, Any] = {} if config.address else {"include_dashboard": False}
        try:
            _knock(address)
            ray.init(address=address, log_to_driver=False, configure_logging=False, **alone)
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise UserError(
                f"no Ray cluster answers at --scheduler.address {address} ({reason}): start one with `ray start "
                "--head`, or leave the address out to use this machine alone."
            ) from error
    _check_size(ray, config)
    return ray


def _knock(address: str) -> None:
    """OSError if nobody listens at HOST:PORT; Ray itself would try again for minutes, with a page of warnings."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_SECONDS).close()


def _check_size(ray: Any, config: RayConfig) -> None:
    """UserError if the workers could never all run: Ray would let them wait for ever."""
    there = ray.cluster_resources()
    for kind, one, option in (("CPU", config.cpus_per_worker, "cpus"), ("GPU", config.gpus_per_worker, "gpus")):
        if config.workers * one > there.get(kind, 0.0):
            raise UserError(
                f"{config.workers} workers with scheduler.{option}_per_worker {one:g} need {config.workers * one:g} "
                f"{kind}s, and the Ray cluster has {there.get(kind, 0.0):g}: choose fewer --scheduler.workers, or add "
                "machines."
            )

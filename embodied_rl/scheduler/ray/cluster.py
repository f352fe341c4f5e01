"""The connection to a Ray cluster."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from embodied_rl.errors import UserError
from embodied_rl.scheduler.config import RayConfig

_AUTH_MODE = "RAY_AUTH_MODE"
_KNOCK_SECONDS = 5.0
_LEAVE_SECONDS = 10.0
"""How long the rank that started Ray waits for the others to leave it."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What rank 0 tells the others of the cluster that it has started.

    auth_mode: its RAY_AUTH_MODE, which Ray sets where it starts a cluster and expects of whoever joins. port: to be
    connected to as long as the cluster is needed.
    """

    address: str
    auth_mode: str | None
    port: int


@contextmanager
def shared_cluster(config: RayConfig, shared: Shared | None) -> Iterator[Shared]:
    """The connection to the cluster, for the `with` block; nothing of it is left afterwards.

    A cluster that rank 0 started on this machine ends when the others have left it: Ray aborts who still talks to it.

    Args:
        shared: what rank 0 shares, None for rank 0.

    Raises:
        UserError: as `connect`.
    """
    with ExitStack() as stack:
        if shared is not None and config.address is None:
            stack.enter_context(_door_of(shared.port))
            config = replace(config, address=shared.address)
            if shared.auth_mode is not None:
                os.environ[_AUTH_MODE] = shared.auth_mode  # read when Ray is imported
        ray = connect(config)
        stack.callback(ray.shutdown)
        if shared is None:
            door = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            stack.callback(_wait_for_leaving, door)
            address = config.address or ray.get_runtime_context().gcs_address
            shared = Shared(address, os.environ.get(_AUTH_MODE), door.getsockname()[1])
        yield shared


def _door_of(port: int) -> socket.socket:
    try:
        return socket.create_connection(("127.0.0.1", port))
    except OSError as error:
        raise UserError(
            "rank 0 started Ray on another machine than this one: run `ray start --head` on one of them and `ray start "
            "--address=HEAD:6379` on the others, and give --scheduler.address auto."
        ) from error


def _wait_for_leaving(door: socket.socket) -> None:
    """Wait until every connection to `door` is closed: by its rank, or with it."""
    end = time.monotonic() + _LEAVE_SECONDS
    door.setblocking(False)
    with suppress(BlockingIOError, TimeoutError):  # nobody more is there; some rank takes too long
        while True:
            other, _ = door.accept()
            with other:
                other.settimeout(max(0.1, end - time.monotonic()))
                other.recv(1)


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

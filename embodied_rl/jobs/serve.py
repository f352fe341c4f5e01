"""Loads a policy and serves it to robots until Ctrl-C or SIGTERM. Imports torch and the server."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embodied_rl.config.policies import CUSTOM
from embodied_rl.errors import UserError
from embodied_rl.evaluation.detector import detector_digest, load_detector
from embodied_rl.factory.policies import CheckpointOptions, open_policy, policy_folder, policy_info
from embodied_rl.jobs.describe import policy_words, weights_words
from embodied_rl.policies.checkpoints.folder import read_json, read_provenance
from embodied_rl.policies.preprocessing.images import image_pipeline
from embodied_rl.policies.steering import refuse_steered
from embodied_rl.policy import ActMode
from embodied_rl.real_robot.client.wire import MAX_LIST, PROTOCOL
from embodied_rl.real_robot.server.images import ImageFitter
from embodied_rl.real_robot.server.limits import ServerLimits
from embodied_rl.real_robot.server.observations import GENERIC, MAX_SIDE, OPENPI, OPTIONS, PolicySpec
from embodied_rl.real_robot.server.served_detector import ServedDetector
from embodied_rl.real_robot.server.served_policy import ServedPolicy
from embodied_rl.sim.libero.protocol import NATIVE, PROTOCOLS
from embodied_rl.telemetry.info import PolicyInfo
from embodied_rl.training.filtered_bc import weights_digest
from embodied_rl.utils.console import LastingConsole
from embodied_rl.utils.machine import pick_device
from embodied_rl.utils.suites import OFFICIAL_SUITES, TABLETOP_SUITES, base_suite
from embodied_rl.utils.words import counted, instruction_of
from embodied_rl.version import __version__

if TYPE_CHECKING:
    from embodied_rl.factory.policies import AnyPolicy
    from embodied_rl.real_robot.server.app import PolicyServer

_PUBLISHED = {"openvla": "openvla", "openvla_oft": "openvla", "pi0": "openpi", "smolvla": "lerobot", "act": "lerobot"}
"""Protocols under which published policies of a family were trained."""


@dataclass(frozen=True, kw_only=True)
class ServeRequest:
    """What is served, where and to whom. images: an image pipeline, None for the checkpoint's. detector: its file."""

    options: CheckpointOptions
    host: str
    port: int
    token: str | None
    mode: ActMode
    seed: int
    device: str
    compile: bool
    images: str | None
    mirror: bool
    limits: ServerLimits
    detector: Path | None = None


def run(request: ServeRequest) -> None:
    """Serve until asked to stop; UserError where the policy or the address cannot be had."""
    server_class = _server_class()
    console = LastingConsole()
    address = bind(request.host, request.port)
    with address:
        checkpoint = request.options.checkpoint
        folder = policy_folder(checkpoint)
        policy = open_policy(checkpoint, pick_device(request.device), request.options.load_options(folder))
        if policy.architecture == CUSTOM:
            raise UserError(f"serve answers with the built-in policies, and {checkpoint} holds a custom one.")
        if getattr(policy.config, "temporal_ensemble_coeff", None) is not None:
            raise UserError(
                f"{checkpoint} averages overlapping chunks, which a server of several robots can't: say by --chunk-len "
                "how many steps it answers, and give deploy --overlap ensemble."
            )
        policy.with_value = False
        detector = None if request.detector is None else open_detector(request.detector, policy, checkpoint)
        if request.compile:
            from embodied_rl.policies.compile import need_compiler

            if policy.architecture in ("mlp", "act"):
                raise UserError(f"--compile does not apply to this policy ({policy.architecture}): leave it out.")
            refuse_steered(policy, "--compile compiles one chunk a decision", "leave --compile out")
            need_compiler(policy.device.type)
            policy.compiled = True
        spec = spec_of(policy)
        if policy.architecture == "mlp" and (request.images or request.mirror):
            raise UserError("--images and --mirror do not apply to a state policy (mlp): leave them out.")
        pipeline = request.images or pipeline_of(folder, policy)
        image_pipeline(pipeline)
        info = policy_info(policy, checkpoint)
        console.facts(_head(info, spec, pipeline, request))
        served = ServedPolicy(policy, spec, request.mode)
        server = server_class(
            served.decide,
            spec,
            ImageFitter(size=spec.image_size, pipeline=pipeline, mirror=request.mirror),
            metadata=metadata(info, spec, pipeline, request) | trained_on(read_provenance(folder)),
            limits=request.limits,
            seed=request.seed,
            token=request.token,
            watch=None if detector is None else detector.see,
        )
        _log_to_stderr()
        try:
            asyncio.run(_serve(server, served, detector, address, console))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise UserError(
                f"port {request.port} was taken while the policy was loaded: name another --port."
            ) from error
    console.say(f"stopped after {counted(server.metrics.requests['ok'], 'answer')}")


def open_detector(path: Path, policy: AnyPolicy, checkpoint: str) -> ServedDetector:
    """The failure detector of a file, for the policy in `checkpoint`; UserError where it is another one's."""
    detector = load_detector(path)
    if policy.architecture == "mlp":
        raise UserError("--detector knows tasks by their words, and this policy reads none: leave it out.")
    detector.require_chunk_len(policy.chunk_len, path)
    detector.require_policy(weights_digest(policy), checkpoint, path)
    return ServedDetector(detector, policy)


async def _serve(
    server: PolicyServer,
    served: ServedPolicy,
    detector: ServedDetector | None,
    address: socket.socket,
    console: LastingConsole,
) -> None:
    loop = asyncio.get_running_loop()

    def stop() -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)  # the second one ends the program at once
        console.say("stopping: requests that are here are answered")
        server.stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    rows = [rows for rows in (1, 2, 4, 8, 16, 32, 64) if rows < server.limits.max_batch] + [server.limits.max_batch]
    host, port = address.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    ready = f"ready: ws://{shown}:{port}  (Ctrl-C stops it)"

    def warm_up() -> None:
        served.warm_up(rows)
        if detector is not None:
            detector.warm_up(served.spec)

    await server.run(address, warm_up, lambda: console.say(ready))


def bind(host: str, port: int) -> socket.socket:
    """A socket at that address that does not listen yet; UserError where it cannot be had."""
    try:
        family, kind, number, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, number)
    except OSError as error:
        raise UserError(f"--host {host}: {error.strerror}.") from error
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(where)
    except OSError as error:
        bound.close()
        reason = f"cannot listen at {host}, port {port} ({error.strerror})"
        raise UserError(f"{reason}: name another --port or --host.") from error
    return bound


LONG_TOKEN = 16
"""Characters of a token that nobody finds by trying."""


def access(host: str, token: str | None) -> str:
    """In words: who can use the policy."""
    if is_local(host):
        return f"programs of this machine only, {'with the token' if token else 'without a token'}"
    if token:
        short = (
            "" if len(token) >= LONG_TOKEN else "; a short token is found by trying: `openssl rand -hex 16` makes one"
        )
        return f"whoever reaches this port and has the token; nothing is encrypted{short}"
    return "ANYBODY who reaches this port may use the policy: set --token, or leave --host 127.0.0.1"


def is_local(host: str) -> bool:
    """Whether only programs of this machine reach `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def spec_of(policy: Any) -> PolicySpec:
    """What a loaded policy reads and answers."""
    config = policy.config
    sizes = {"chunk_len": policy.chunk_len, "action_dim": policy.action_dim}
    if policy.architecture == "mlp":
        return PolicySpec(cameras=0, image_size=1, proprio_dim=config.observation_dim, instruction=False, **sizes)
    return PolicySpec(
        cameras=config.num_cameras,
        image_size=config.image_size,
        proprio_dim=config.proprio_dim if policy.uses_proprio else 0,
        continues=policy.traits.continue_chunk is not None,
        **sizes,
    )


def pipeline_of(folder: Path, policy: AnyPolicy) -> str:
    """The image pipeline that the policy in `folder` was trained with: as its provenance says, else as its family's
    published ones."""
    return trained_pipeline(read_provenance(folder), read_json(folder / "config.json"), policy.architecture)


def trained_pipeline(provenance: Mapping[str, Any], config: Mapping[str, Any], architecture: str) -> str:
    """The same, from the checkpoint's provenance.json (empty without one), its config.json and its family."""
    name = provenance.get("config", {}).get("protocol")
    name = name or provenance.get("dataset", {}).get("collected", {}).get("protocol")
    if name in PROTOCOLS:
        return PROTOCOLS[name].images
    if provenance or "architecture" in config or "embodied_rl" in config:
        return NATIVE.images
    return PROTOCOLS[_PUBLISHED[architecture]].images


def trained_on(provenance: Mapping[str, Any]) -> dict[str, Any]:
    """What a checkpoint's provenance says of its training, for clients; None where it does not say.

    Returns:
        `embodiment`: 'libero' for LIBERO's arm and actions, else the suite. `tasks`: the instructions. `views`: each
        camera's, see `small_view`.
    """
    suite, names = provenance.get("suite"), list[str]()
    if suite in (*TABLETOP_SUITES, *OFFICIAL_SUITES):  # the suites whose tasks are named by their instructions
        config, collected = provenance.get("config", {}), provenance.get("dataset", {}).get("collected", {})
        names = config.get("tasks") or collected.get("tasks") or list(provenance.get("train_states") or ())
    if not names and suite in TABLETOP_SUITES:
        from embodied_rl.sim.tabletop import problems

        names = list(problems(suite))
    tasks = provenance.get("instructions") or sorted({instruction_of(name) for name in names})
    like_libero = base_suite(suite or "") in (*TABLETOP_SUITES, *OFFICIAL_SUITES)
    known = {"embodiment": "libero" if like_libero else suite, "tasks": tasks if 0 < len(tasks) <= MAX_LIST else None}
    return known | {"views": provenance.get("views")}


def metadata(info: PolicyInfo, spec: PolicySpec, pipeline: str, request: ServeRequest) -> dict[str, Any]:
    """What a client is told first: plain values."""
    return {
        "server": "embodied-rl",
        "version": __version__,
        "protocol": PROTOCOL,
        "policy": policy_words(info),
        "weights": weights_words(info),
        "unnorm_key": info.unnorm_key,
        "cameras": spec.cameras,
        "image_size": spec.image_size,
        "proprio_dim": spec.proprio_dim,
        "instruction": spec.instruction,
        "chunk_len": spec.chunk_len,
        "action_dim": spec.action_dim,
        "realtime_chunking": spec.continues,
        "mode": request.mode,
        "seed": request.seed,
        "image_pipeline": pipeline,
        "mirror": request.mirror,
        "layouts": {"openpi": list(OPENPI), "generic": list(GENERIC), "options": list(OPTIONS)},
        "max_image_side": MAX_SIDE,
        "max_message_bytes": request.limits.max_message_bytes,
        "deadline_ms": request.limits.deadline_ms,
        "detector": _detector_words(request.detector),
    }


def _detector_words(path: Path | None) -> str | None:
    """Which detector watches: its kind and the digest of its file."""
    return None if path is None else f"{load_detector(path).kind} {detector_digest(path)[:12]}"


def _head(info: PolicyInfo, spec: PolicySpec, pipeline: str, request: ServeRequest) -> list[str]:
    parts = {
        f"{counted(spec.cameras, 'image')} of {spec.image_size} x {spec.image_size}": spec.cameras,
        f"{spec.proprio_dim} numbers of {'proprio' if spec.cameras else 'its state'}": spec.proprio_dim,
        "an instruction": spec.instruction,
    }
    rows = {
        "policy": f"{policy_words(info)}; {weights_words(info)}",
        "unnorm key": info.unnorm_key,
        "reads": ", ".join(part for part, read in parts.items() if read),
        "answers": f"{spec.chunk_len} actions of {spec.action_dim}, {request.mode}",
        "images": f"of another size: {pipeline}" + ("; left and right are swapped" if request.mirror else ""),
        "detector": f"{_detector_words(request.detector)}, {request.detector}",
        "access": access(request.host, request.token),
    }
    shown = {"unnorm key": spec.cameras, "images": spec.cameras, "detector": request.detector}
    return [f"{name:<12}{text}" for name, text in rows.items() if shown.get(name, True)]


def _server_class() -> type[PolicyServer]:
    try:
        import msgpack  # noqa: F401 - found missing here, not at the first request

        from embodied_rl.real_robot.server.app import PolicyServer
    except ModuleNotFoundError as error:
        if error.name not in ("websockets", "msgpack"):
            raise
        raise UserError(f"serve needs {error.name}: pip install 'embodied-rl[serve]'") from error
    return PolicyServer


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    log = logging.getLogger("embodied_rl.serve")
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)

"""Asks the policy server in threads of their own, so that the control loop never waits."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from embodied_rl.real_robot.client import PolicyConnectionError, PolicyServerError
from embodied_rl.real_robot.core.executor import Chunk
from embodied_rl.real_robot.core.states import ArmState, Event
from embodied_rl.real_robot.ros2.clock import Clock
from embodied_rl.real_robot.ros2.events import PolicyServed
from embodied_rl.real_robot.ros2.failure_alarm import watched
from embodied_rl.real_robot.ros2.loop import ControlLoop
from embodied_rl.real_robot.ros2.messages import MessageError
from embodied_rl.real_robot.ros2.metadata import wrong_metadata
from embodied_rl.real_robot.ros2.observations import Observations, request_of
from embodied_rl.real_robot.ros2.options import JOIN_S

_LOOK_S = 0.05
_LAYOUT = ("cameras", "instruction", "proprio_dim", "chunk_len", "action_dim")
_MEANING = ("protocol", "embodiment", "unnorm_key", "image_pipeline", "mirror", "detector")
"""What the numbers and pictures stand for, and who watches. A server that comes back with another layout or meaning is
refused."""
_POLICY = ("policy", "weights", "mode", "image_size")
"""Another policy of the same layout and meaning: somebody must accept it."""
_ADVICE = "serve the first one again, or start the bridge again"
_ACCEPT = "serve the first one again, or accept this one: ~/accept_policy"


class Client(Protocol):
    """What is needed of a `PolicyClient`."""

    @property
    def metadata(self) -> dict[str, Any]:
        """What the server says of its policy."""
        ...

    def infer(self, obs: dict[str, Any]) -> dict[str, Any]:
        """The answer, with `actions` [K, A]."""
        ...

    def close(self) -> None:
        """End."""
        ...


@dataclass(frozen=True)
class InferenceConfig:
    """How the policy is asked.

    Args:
        aligned: A chunk belongs to its observation's time, and the next is asked for while it runs. Without, it begins
            when it arrives and the arm rests while the policy thinks: the naive way, to compare with.
        latency_s: Added to each answer: what a network would add.
        seed: Of the policy's draws.
        continues: The policy is told what is planned, and goes on from there (real-time chunking).
    """

    aligned: bool = True
    latency_s: float = 0.0
    seed: int = 0
    continues: bool = False


@dataclass(frozen=True)
class InferenceRequest:
    """What is asked, and of when.

    Args:
        request: For the server.
        observed_ns: Stamp of the observation.
        began_ns: When it was asked.
        episode: Which one.
        frozen: Actions that the answer must go on from.
    """

    request: dict[str, Any]
    observed_ns: int
    began_ns: int
    episode: int
    frozen: int


@dataclass
class InferenceReport:
    """Counts for status and diagnostics."""

    answers: int = 0
    """That came, used or not."""
    unused: int = 0
    """Those that an arm which moves could not use."""
    errors: int = 0
    """Questions without an answer."""
    last_error: str = ""
    """Why the last answer could not be used or did not come; '' once one could."""
    last_error_ns: int = 0
    """When, of the control loop's clock."""
    policy: str = ""
    """Whose answers are taken."""
    refused: str = ""
    """Why the server's policy is not taken any more; '' while it is."""
    answer_ms: list[float] = field(default_factory=list)
    """From question to answer, of the last answers."""


class InferenceClient:
    """One thread a client: each asks when the executor wants a chunk and a new picture is there.

    Several clients keep several questions on their way, which long latencies need.

    Args:
        loop: Takes the chunks.
        observations: Gives what is asked.
        clients: Connections to one server.
        clock: The control loop's.
        config: How.
    """

    def __init__(
        self,
        loop: ControlLoop,
        observations: Observations,
        clients: list[Client],
        clock: Clock,
        config: InferenceConfig,
    ) -> None:
        self.report = InferenceReport()
        self.error: BaseException | None = None
        """What ended a thread."""
        self._loop, self._observations, self._clock, self._config = loop, observations, clock, config
        self._clients, self._lock = clients, threading.Lock()
        self._stopping, self._on = threading.Event(), threading.Event()
        self._known = dict(clients[0].metadata) if clients else {}
        self._offered: dict[str, Any] | None = None
        """Of a policy that nobody has accepted yet."""
        self.report.policy = str(self._known.get("policy", ""))
        self._asked_ns, self._decision, self._episode = -1, 0, 0
        self._waiting, self._failing = 0, False  # questions without an answer yet; whether the last had none
        self._threads = [
            threading.Thread(target=self._work, args=(client,), name="policy", daemon=True) for client in clients
        ]

    def start(self) -> None:
        """Ask from now on, also after a pause."""
        self._on.set()
        for thread in self._threads:
            if thread.ident is None:
                thread.start()

    def pause(self) -> None:
        """Ask nothing more until `start`; an answer that is on its way still comes."""
        self._on.clear()

    @property
    def metadata(self) -> dict[str, Any]:
        """What the server said of the policy whose answers are taken."""
        return self._known

    def accept(self) -> str:
        """A person's yes to the other policy that the server has now: why there is nothing to accept, else ''."""
        with self._lock:
            offered, self._offered = self._offered, None
            if offered is None:
                return self.report.refused or "the server has no other policy"
            self._follow(offered)
        return ""

    def new_episode(self, seed: int) -> None:
        """Count decisions from 0 again; answers to earlier questions are thrown away."""
        with self._lock:
            self._decision, self._episode, self._asked_ns = 0, self._episode + 1, self._clock.now_ns()
            self._config = replace(self._config, seed=seed)
        self._loop.forget_chunks()

    def close(self) -> None:
        """End the threads, which get `JOIN_S` together, and their connections."""
        self._stopping.set()
        until = time.monotonic() + JOIN_S
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=max(0.0, until - time.monotonic()))
        for client in self._clients:
            client.close()

    def _work(self, client: Client) -> None:
        try:
            self._ask_on(client)
        except BaseException as error:
            self.error = error
            raise

    def _ask_on(self, client: Client) -> None:
        while not self._stopping.is_set():
            self._observations.wait(_LOOK_S)
            with self._lock:
                asked = self._question() if self._on.is_set() else None
            if asked is None:
                continue
            try:
                answer = self._infer(client, asked)
            except PolicyServerError as error:
                if misfit := self._misfit(client.metadata):
                    self._refuse(misfit)
                else:
                    self._failed(str(error))
                continue
            except PolicyConnectionError as error:
                if not self._stopping.is_set():
                    self._failed(str(error))
                continue
            if misfit := self._misfit(client.metadata):
                self._refuse(misfit)
                continue
            self._clock.sleep_until(asked.began_ns + round(self._config.latency_s * 1e9))
            self._take(answer, client.metadata, asked)

    def _infer(self, client: Client, asked: InferenceRequest) -> dict[str, Any]:
        try:
            return client.infer(asked.request)
        finally:
            with self._lock:
                self._waiting -= 1

    def _question(self) -> InferenceRequest | None:
        """The next question; None where none is due or nothing new has been seen."""
        now_ns = self._clock.now_ns()
        if not self._due(now_ns):
            if self._loop.asks_seldom and not (self._waiting or self._failing):  # nobody was asked: nobody is silent
                self._loop.heartbeat(now_ns)
            return None
        observation = self._observations.take(now_ns)
        if observation is None or observation.stamp_ns <= self._asked_ns or not observation.instruction:
            return None
        planned = self._loop.request(observation.stamp_ns)
        self._loop.events.emit(observation)
        request = request_of(observation, self._known)
        request |= {"seed": self._config.seed, "decision": self._decision}
        if self._config.continues:
            request |= planned.message
        self._decision, self._asked_ns, self._waiting = self._decision + 1, observation.stamp_ns, self._waiting + 1
        frozen = planned.frozen if self._config.continues else 0
        return InferenceRequest(request, observation.stamp_ns, now_ns, self._episode, frozen)

    def _due(self, now_ns: int) -> bool:
        if self._config.aligned or self._loop.state is not ArmState.RUNNING:
            return self._loop.due(now_ns)
        return not self._loop.planned(now_ns)

    def _take(self, answer: dict[str, Any], metadata: dict[str, Any], asked: InferenceRequest) -> None:
        now_ns = self._clock.now_ns()
        infer_ms = (now_ns - asked.began_ns) / 1e6
        try:
            seen = watched(answer, now_ns, asked.observed_ns) if metadata.get("detector") else None
        except MessageError as error:  # unwatched, the policy must not act: its silence makes the arm hold
            self._failed(str(error))
            return
        with self._lock:
            if asked.episode != self._episode:
                self._loop.heartbeat(now_ns)
                return
            self.report.answers += 1
            self.report.answer_ms = [*self.report.answer_ms[-99:], infer_ms]
        stamp_ns = asked.observed_ns if self._config.aligned else now_ns
        actions = np.asarray(answer["actions"], np.float64)
        chunk = Chunk(stamp_ns, actions, str(metadata.get("weights", "")))
        receipt = self._loop.chunk(chunk, now_ns, infer_ms, asked.frozen)
        if seen is not None:
            self._loop.events.emit(seen)
        with self._lock:
            self._failing = not receipt.in_time
            late = "" if receipt.in_time else f"it came {receipt.delay_steps} steps after its observation"
            self.report.last_error, self.report.last_error_ns = receipt.reason or late, now_ns
            self.report.unused += not receipt.in_time

    def _misfit(self, metadata: dict[str, Any]) -> str:
        """Note what policy answers, since its server may be another one after a lost connection.

        Args:
            metadata: What the server said when it was connected to last.

        Returns:
            Why its answers are refused: their layout is another one; '' where it is not.
        """
        names = (*_LAYOUT, *_MEANING, *(["realtime_chunking"] if self._config.continues else []))
        with self._lock:
            misfit, self._offered = wrong_metadata(metadata), None
            if not misfit and (changes := _changes(names, metadata, self._known)):
                misfit = f"the server has another policy now ({changes}): {_ADVICE}"
            elif not misfit and (changes := _changes(_POLICY, metadata, self._known)):
                misfit, self._offered = f"the server has another policy now ({changes}): {_ACCEPT}", dict(metadata)
            self.report.refused = misfit
            if not misfit and metadata != self._known:
                self._follow(dict(metadata))
        return misfit

    def _follow(self, metadata: dict[str, Any]) -> None:
        """Take this policy's answers from now on; the lock is held."""
        self._known, self.report.policy, self.report.refused = metadata, str(metadata.get("policy", "")), ""
        self._loop.events.emit(PolicyServed(self._clock.now_ns(), dict(metadata)))

    def _refuse(self, why: str) -> None:
        """Hold, since what is planned is a policy's that is gone; its silence then keeps the arm from being resumed."""
        if self._loop.state is ArmState.RUNNING:
            self._loop.fire(Event.HOLD, self._clock.now_ns(), why)
        self._failed(why)

    def _failed(self, why: str) -> None:
        with self._lock:
            self.report.errors, self._failing = self.report.errors + 1, True
            self.report.last_error, self.report.last_error_ns = why, self._clock.now_ns()
        self._stopping.wait(_LOOK_S)


def _changes(names: tuple[str, ...], now: dict[str, Any], before: dict[str, Any]) -> str:
    """What differs, as 'NAME VALUE, not VALUE'."""
    changed = (name for name in names if now.get(name) != before.get(name))
    return ", ".join(f"{name} {now.get(name)}, not {before.get(name)}" for name in changed)

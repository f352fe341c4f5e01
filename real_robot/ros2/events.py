"""What happens on the bridge, as typed events: for the recorder, the dashboard and an environment over the bridge.

    bridge.loop.events.subscribe(BackgroundSink(write))

An event is emitted in the thread in which it happens, the control loop's among them: a sink that writes or waits
belongs behind a `BackgroundSink`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from embodied_rl.evaluation.detector import Kind, Sight
from embodied_rl.real_robot.core.executor import Receipt, StepAction
from embodied_rl.real_robot.core.runtime import Tick
from embodied_rl.real_robot.core.states import Transition
from embodied_rl.real_robot.record.events import AlarmRaised


@dataclass(frozen=True)
class ObservationTaken:
    """What the policy is asked about.

    Args:
        time_ns: When it was put together, ns of the bridge's clock.
        stamp_ns: When the oldest of its pictures was taken.
        images: uint8 [H, W, 3] by camera.
        joints: Measured angles at that time [n], rad.
        proprio: What the policy reads of it [P].
        instruction: The task in words.
    """

    time_ns: int
    stamp_ns: int
    images: Mapping[str, np.ndarray]
    joints: np.ndarray
    proprio: np.ndarray
    instruction: str


@dataclass(frozen=True)
class JointsMeasured:
    """Joint states as they came, by name, in rad or m.

    Args:
        time_ns: When they were measured, ns of the bridge's clock.
        names: One name per position.
        positions: [n].
        velocities: [n], per second; None where they are not sent.
    """

    time_ns: int
    names: tuple[str, ...]
    positions: np.ndarray
    velocities: np.ndarray | None


@dataclass(frozen=True)
class ChunkDecided:
    """What the policy answered.

    Args:
        time_ns: When it came.
        observed_ns: The stamp of its observation.
        actions: [K, A].
        policy: The policy's version, as its server names it.
        infer_ms: From the question to the answer.
        receipt: What the executor made of it.
        frozen: Actions that it had to go on from (real-time chunking).
    """

    time_ns: int
    observed_ns: int
    actions: np.ndarray
    policy: str
    infer_ms: float
    receipt: Receipt
    frozen: int = 0


@dataclass(frozen=True)
class ObservationWatched:
    """What the server's failure detector says of an observation.

    Args:
        time_ns: When the answer came.
        observed_ns: The stamp of the observation.
        kind: What the detector follows.
        chunk_len: Control steps of one of its decisions.
        sight: Distance to the nearest demonstrated state, and decisions to go from there.
        limit: The index above which it raises an alarm, of the observation's task.
    """

    time_ns: int
    observed_ns: int
    kind: Kind
    chunk_len: int
    sight: Sight
    limit: float


@dataclass(frozen=True)
class PolicyServed:
    """Another policy of the same layout answers from now on: its server was started again with it.

    Args:
        time_ns: When its first answer came.
        metadata: What the server says of it.
    """

    time_ns: int
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class ActionTaken:
    """The action of a control step; None: no chunk reaches it, so the arm comes to rest."""

    time_ns: int
    action: StepAction | None


@dataclass(frozen=True)
class CommandJudged:
    """A control tick: state, faults, whose command counted, the gate's decision and the set point.

    Args:
        time_ns: When.
        tick: All of it.
        position: Where the tool is asked to be [3], m, base frame.
        quaternion: How it is turned, x, y, z, w.
        width: The gripper's, m; None without one.
    """

    time_ns: int
    tick: Tick
    position: np.ndarray
    quaternion: np.ndarray
    width: float | None


@dataclass(frozen=True)
class StateChanged:
    """An event of the state machine, accepted or refused."""

    time_ns: int
    transition: Transition


@dataclass(frozen=True)
class ButtonMoved:
    """The emergency stop's button was pressed or let out."""

    time_ns: int
    pressed: bool


@dataclass(frozen=True)
class Intervened:
    """A human took the arm over (`began`) or gave it back; `number` counts takeovers."""

    time_ns: int
    number: int
    began: bool


@dataclass(frozen=True)
class EpisodeMarked:
    """An episode began or ended; `outcome` is what is known of it, such as 'success'."""

    time_ns: int
    number: int
    began: bool
    outcome: str


Event = (
    ObservationTaken
    | JointsMeasured
    | ChunkDecided
    | ObservationWatched
    | AlarmRaised
    | PolicyServed
    | ActionTaken
    | CommandJudged
    | StateChanged
    | ButtonMoved
    | Intervened
    | EpisodeMarked
)
Sink = Callable[[Event], None]


class Events:
    """Hands each event to every sink, in the order of subscription."""

    def __init__(self) -> None:
        self._sinks: tuple[Sink, ...] = ()

    def subscribe(self, sink: Sink) -> None:
        """Call `sink` with every event from now on; it must be quick and must not raise."""
        self._sinks = (*self._sinks, sink)

    def emit(self, event: Event) -> None:
        """Hand an event on."""
        for sink in self._sinks:
            sink(event)


class BackgroundSink:
    """A sink that works in a thread of its own, behind a queue of limited length.

    Args:
        sink: What is called with each event, in order.
        capacity: Events that may wait; those beyond are counted in `dropped`.

    Example:
        >>> events.subscribe(BackgroundSink(recorder.write))
    """

    def __init__(self, sink: Sink, capacity: int = 2048) -> None:
        self._sink = sink
        self._waiting: queue.Queue[Event | None] = queue.Queue(capacity)
        self.dropped = 0
        self.error: BaseException | None = None
        """What the sink raised; it is not called again."""
        self._thread = threading.Thread(target=self._work, name="event sink", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        if self.error is not None:
            return
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Hand on what waits, then end.

        Raises:
            RuntimeError: The sink failed on the way.
        """
        while self._thread.is_alive():
            try:
                self._waiting.put(None, timeout=0.1)
                break
            except queue.Full:
                continue
        self._thread.join()
        if self.error is not None:
            raise RuntimeError(f"an event sink failed: {self.error}") from self.error

    def _work(self) -> None:
        while (event := self._waiting.get()) is not None:
            try:
                self._sink(event)
            except BaseException as error:  # noqa: BLE001 - kept, shown in the diagnostics and raised by close()
                self.error = error
                return

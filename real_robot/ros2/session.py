"""A node with its executor in a thread, made and ended in the one order that does not abort the process."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from embodied_rl.errors import UserError


class Session:
    """One node and the thread that runs its callbacks.

    Callbacks run one after the other in that thread; publishing is allowed from any.

    Args:
        name: Of the node.
        managed: Whether the node has a lifecycle: `node.add_managed_entity` says what its transitions do.

    Raises:
        UserError: rclpy cannot be imported.

    Example:
        >>> with Session("observer") as session:
        ...     session.node.create_subscription(String, "/words", print, 1)
        ...     session.start()
    """

    def __init__(self, name: str, *, managed: bool = False) -> None:
        try:
            import rclpy
            from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
            from rclpy.lifecycle import LifecycleNode
            from rclpy.node import Node
            from rclpy.signals import SignalHandlerOptions
        except ImportError as error:
            raise UserError(
                f"rclpy cannot be imported ({error}): source ROS 2's setup.bash, or run `make ros2`"
            ) from error
        self._rclpy, self._ended = rclpy, ExternalShutdownException
        self.context = rclpy.Context()
        rclpy.init(context=self.context, signal_handler_options=SignalHandlerOptions.NO)
        self.node: Any = (LifecycleNode if managed else Node)(name, context=self.context)
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.node)
        self._thread = threading.Thread(target=self._spin, name=f"{name} callbacks", daemon=True)
        self.error: BaseException | None = None
        """What a callback raised: the thread has ended."""

    def start(self) -> None:
        """Run callbacks from now on."""
        self._thread.start()

    def close(self) -> None:
        """End: executor, thread, node, context."""
        self._executor.shutdown(timeout_sec=2.0)
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=5.0)
        self.node.destroy_node()
        self._rclpy.try_shutdown(context=self.context)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _spin(self) -> None:
        try:
            self._executor.spin()
        except self._ended:
            return
        except BaseException as error:
            self.error = error
            raise

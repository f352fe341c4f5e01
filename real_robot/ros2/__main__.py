"""python -m embodied_rl.real_robot.ros2 JSON: the bridge as a process of its own; see `BridgeOptions`.

With `--ros-args` in place of the JSON text, as `ros2 run` and `ros2 launch` start it, its options are ROS parameters.
"""

from __future__ import annotations

import sys
import threading
from functools import partial

from embodied_rl.real_robot.ros2.connecting import connect
from embodied_rl.real_robot.ros2.lifecycle import ManagedBridge
from embodied_rl.real_robot.ros2.options import BridgeOptions
from embodied_rl.real_robot.ros2.parameters import argument, options_of
from embodied_rl.real_robot.ros2.process import run_process, watch
from embodied_rl.real_robot.ros2.session import Session
from embodied_rl.real_robot.ros2.single_instance import SecondBridgeError, single_instance

NODE = "embodied_rl"


def main(stopping: threading.Event) -> int:
    """Run until told to end, or whoever started it is gone; 1 where the bridge could not go on, or one runs already."""
    # The stop's thread waits for those that decode pictures, each for Python's 5 ms: two 1080p cameras made 37 of them.
    sys.setswitchinterval(0.0005)
    if (text := argument(sys.argv)) is not None:
        BridgeOptions.from_json(text)  # what is wrong is said at once, not after others were looked for
    try:
        with single_instance(NODE):
            return _run(text, stopping)
    except SecondBridgeError as error:
        print(f"embodied-rl bridge: error: {error}", file=sys.stderr)
        return 1


def _run(text: str | None, stopping: threading.Event) -> int:
    with Session(NODE, managed=True) as session:
        options = options_of(session.node, BridgeOptions.from_json, text)
        managed = ManagedBridge(session, options, partial(connect, options, stopping))
        if options.autostart:
            managed.autostart()
        else:
            session.start()
        code = watch("bridge", stopping, lambda: managed.error, lambda: managed.finalized)
        managed.close()
    return code


if __name__ == "__main__":
    sys.exit(run_process("bridge", main))

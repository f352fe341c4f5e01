"""The client of the policy server, for the robot's computer: NumPy, websockets and msgpack; no torch, no simulator."""

from embodied_rl.real_robot.client.policy_client import (
    PolicyClient,
    PolicyConnectionError,
    PolicyServerError,
    PolicyUnreachableError,
)

__all__ = ["PolicyClient", "PolicyConnectionError", "PolicyServerError", "PolicyUnreachableError"]

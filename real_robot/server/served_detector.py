"""A failure detector beside the served policy: what it makes of each observation that is answered."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch

from embodied_rl.errors import UserError
from embodied_rl.evaluation.detector import Detector
from embodied_rl.evaluation.features import Watcher
from embodied_rl.real_robot.client.wire import short
from embodied_rl.real_robot.server.observations import PolicySpec, Request
from embodied_rl.real_robot.server.served_policy import black_request
from embodied_rl.types import Observation

_log = logging.getLogger("embodied_rl.serve")


class ServedDetector:
    """Compares observations with demonstrations. It keeps no history: that of an episode is its client's.

    Args:
        detector: Says when to raise an alarm.
        policy: That calibrated it, on its device.

    Raises:
        UserError: The policy does not say what it makes of an observation, and the detector is no clock.

    Example:
        >>> ServedDetector(detector, policy).see(request)
        {'kind': 'steps_to_go', 'chunk_len': 4, 'distance': 0.4, 'to_go': 12.0, 'limit': 31.0}
    """

    def __init__(self, detector: Detector, policy: Any) -> None:
        self._detector, self._watcher = detector, Watcher(detector, policy)

    def see(self, request: Request) -> dict[str, Any] | str:
        """What a client judges its episode by, or one line that says why there is nothing.

        Of the detector its kind, the control steps of a decision and the task's limit. Of the observation the distance
        to the nearest demonstrated state, and the decisions that were still to come from there; 0 under a clock.
        """
        try:
            limit = self._detector.limit(request.instruction)
            images, proprio = torch.from_numpy(request.images[None]), torch.from_numpy(request.proprio[None])
            sight = self._watcher.see(Observation(images, proprio, [request.instruction]))
        except UserError as error:
            return " ".join(str(error).split())  # the client's own words may have several lines
        except Exception as error:  # noqa: BLE001 - its client is told, and the others get their answers
            refusal = f"the detector failed on this observation: {type(error).__name__}: {short(error)}"
            _log.warning("%s", refusal)
            return refusal
        if not (math.isfinite(sight.distance) and math.isfinite(sight.to_go)):
            return "the detector's numbers for this observation are not finite"
        numbers = {"distance": sight.distance, "to_go": sight.to_go, "limit": limit}
        return {"kind": self._detector.kind, "chunk_len": self._detector.chunk_len, **numbers}

    def warm_up(self, spec: PolicySpec) -> None:
        """See a black picture; UserError where it cannot."""
        if isinstance(refused := self.see(black_request(spec, next(iter(self._detector.limits)))), str):
            raise UserError(refused)

"""What a schedule needs of the devices' memory, by arithmetic on a policy's measured sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from embodied_rl.autotune.probe import APART, IN_TURN
from embodied_rl.autotune.search import Choice
from embodied_rl.scheduler.config import PipelinedConfig, SchedulerConfig

HOST, LEARN, ACT = "host", "learn", "act"
"""Where memory is needed: beside the simulator, where the policy learns, and where a replica acts elsewhere."""
_GRADIENT, _MOMENTS = 4, 8
# Rows of a batch where they were rendered, and their copy for the learner.
_COPIES = 2


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a policy and its rows.

    weights: of all parameters; learning: of those that train, `trained` numbers. update_fixed, update_row: activations
    of a forward and backward pass. act_row: of acting. observation: of a recorded row.
    """

    weights: int
    learning: int
    trained: int
    update_fixed: int
    update_row: int
    act_row: int
    observation: int

    def needs(self, choice: Choice, batch_rows: int, streamed: int = 0) -> dict[str, int]:
        """Bytes by place. streamed: rows of a batch that an update by groups keeps (`held_by_update`). Pipelined, a
        replica of what learns is counted, though `stream` may do without.
        """
        learner = self.weights + (_GRADIENT + _MOMENTS) * self.trained
        update = self.update_fixed + choice.microbatch * self.update_row
        stale = isinstance(choice.scheduler, PipelinedConfig) and choice.scheduler.mode == "async"
        act = (choice.worlds + stale * choice.microbatch) * self.act_row  # stale rows are evaluated beside acting
        host = self.observation * rows_held(choice.scheduler, batch_rows, streamed)
        if choice.placement == IN_TURN:
            return {HOST: host, LEARN: learner + max(update, act)}
        if choice.placement == APART:
            return {HOST: host, LEARN: learner + update, ACT: self.weights + act}
        return {HOST: host, LEARN: learner + self.learning + update + act}


def rows_held(scheduler: SchedulerConfig, batch_rows: int, streamed: int) -> int:
    """Recorded rows in the host's memory at most, copies counted, when a batch is whole. streamed: as for `needs`."""
    if not isinstance(scheduler, PipelinedConfig):
        return _COPIES * batch_rows
    copies = _COPIES - (scheduler.mode == "on_policy")  # whose groups are copied one by one
    return batch_rows * (copies + scheduler.staleness) + streamed


def held_by_update(batch_rows: int, epochs: int, minibatch: float) -> int:
    """Rows that an update which takes groups one by one (`GroupUpdate`) keeps copies of: those of the minibatch that is
    under way, and for further epochs all. minibatch: its share of a batch.
    """
    return batch_rows if epochs > 1 else round(batch_rows * min(1.0, minibatch))


def fits(needs: Mapping[str, int], room: Mapping[str, int], learns_on: str, acts_on: str) -> bool:
    """Whether every device has room (bytes by device). learns_on, acts_on: devices; the host's is 'cpu'."""
    devices = {HOST: "cpu", LEARN: learns_on, ACT: acts_on}
    wanted: dict[str, int] = {}
    for place, count in needs.items():
        wanted[devices[place]] = wanted.get(devices[place], 0) + count
    return all(count <= room[device] for device, count in wanted.items())

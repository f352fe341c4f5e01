"""The toy world as `factory.custom.TaskEnv`."""

from __future__ import annotations

from tests.toy import HELDOUT, TASKS, ToyEnv


class ToyTaskEnv(ToyEnv):
    train_states = TASKS
    heldout_states = HELDOUT

"""Usage: ask-server.py PORT. Asks a policy server of this machine once, as a robot would, and checks the answer."""

from __future__ import annotations

import sys

import numpy as np

from embodied_rl.real_robot.client import PolicyClient

with PolicyClient("127.0.0.1", int(sys.argv[1]), connect_timeout=120.0) as client:
    reads = client.metadata
    side = reads["image_size"]
    answer = client.infer(
        {
            "images": np.zeros((reads["cameras"], side, side, 3), np.uint8),
            "proprio": np.zeros(reads["proprio_dim"]),
            "instruction": "open the drawer",
        }
    )
    assert answer["actions"].shape == (reads["chunk_len"], reads["action_dim"])

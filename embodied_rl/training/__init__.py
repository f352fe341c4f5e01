"""Training loops: on-policy reinforcement learning and imitation."""

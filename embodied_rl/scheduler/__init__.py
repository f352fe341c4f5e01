"""Who runs when: rollout and learner in turn (serial)."""

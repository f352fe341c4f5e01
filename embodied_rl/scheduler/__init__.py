"""Who runs when: rollout and learner in turn (serial), overlapped (pipelined), or on several machines (ray)."""

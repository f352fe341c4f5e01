"""Episode sampling and rollout: specs in, rows of finished episodes out."""

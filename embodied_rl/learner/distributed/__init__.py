"""A learner over several processes."""

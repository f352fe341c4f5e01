"""The optimiser side: minibatches, gradient steps, checkpoints."""

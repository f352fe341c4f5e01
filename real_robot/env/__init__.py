"""A live arm behind the simulator contract, so that evaluator and trainer run on it."""

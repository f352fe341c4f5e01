"""The pipelined scheduler: simulation, inference and updates overlap."""

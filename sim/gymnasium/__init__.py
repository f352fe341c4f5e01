"""Any gymnasium environment as a simulator, by its id."""

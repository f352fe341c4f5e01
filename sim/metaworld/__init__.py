"""MetaWorld's own simulation, for policies that see images: its 50 tasks with two cameras, a sentence and a state."""

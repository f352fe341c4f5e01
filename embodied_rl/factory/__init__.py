"""Opens environments, policies and tasks by name: the only place that names concrete simulators and policies."""

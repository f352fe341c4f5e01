"""The configuration of a run: frozen dataclasses, read from YAML and from the command line."""

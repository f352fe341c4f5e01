"""The package's version, in a module of its own: everything may import it, and it imports nothing."""

__version__ = "0.1.0"

"""Reading and writing checkpoint folders."""

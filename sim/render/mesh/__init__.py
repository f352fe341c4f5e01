"""A CPU rasteriser for scenes with meshes: see renderer.py."""

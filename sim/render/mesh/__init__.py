"""A CPU rasteriser for scenes with meshes: decimated meshes, mip-mapped textures, MuJoCo's lighting; see renderer.py."""

"""Makes LIBERO bundles: an isolated environment with the official packages, their assets, an export of every task."""

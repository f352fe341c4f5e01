"""How much memory OpenVLA-OFT needs: counted as OpenVLA's is."""

from embodied_rl.policies.openvla.memory import cache_bytes, measure, prefix_bytes

__all__ = ["cache_bytes", "measure", "prefix_bytes"]

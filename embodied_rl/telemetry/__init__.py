"""What a run tells: metrics, progress, learning curve, videos, report."""

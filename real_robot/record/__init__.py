"""What a robot did, in one MCAP file: for the engineer who asks why, and for training."""

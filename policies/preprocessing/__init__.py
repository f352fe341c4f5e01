"""From camera frames and words to network inputs."""

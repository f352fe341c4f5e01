"""The twin: the tabletop simulated as an arm under ROS 2, with topics, latency and looks of its own."""

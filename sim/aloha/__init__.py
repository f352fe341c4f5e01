"""ALOHA in simulation: gym-aloha's two ViperX arms and its two tasks, in this project's engine."""

"""What runs inside the isolated environment, as files and without this project: the only code that meets robosuite."""

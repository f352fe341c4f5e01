"""The state of MuJoCo tasks as a vector, and staged rewards; both follow from the facts of a task's goal."""

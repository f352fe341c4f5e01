"""Our VecEnvs seen through the interfaces of other projects' trainers."""

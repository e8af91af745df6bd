"""Real OS processes: driver, launcher, supervision, MPI."""

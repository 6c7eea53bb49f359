"""Find the mesh of a job and attribute its time to the kinds of parallelism."""

"""Read the dumps of PyTorch's flight recorder: the last operations that a rank gave to a process group."""

"""NVML counters of the GPUs that this process uses, recorded while the program runs."""

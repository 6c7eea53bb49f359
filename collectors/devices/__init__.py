"""What the driver says of the GPUs that this process uses (NVML), while the program runs."""

"""Plan per-device memory by tenant."""

"""Per-device memory by tenant."""

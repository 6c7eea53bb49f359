"""What the host did while its device, or its own main thread, had nothing to run."""

"""What the host does while the device has nothing to run."""

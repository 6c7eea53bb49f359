"""What the device computes slower than it could."""

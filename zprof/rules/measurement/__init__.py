"""What the recording itself made of what it shows."""

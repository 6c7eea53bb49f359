"""Rules about ranks that wait for other ranks."""

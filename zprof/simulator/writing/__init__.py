"""Write a schedule as traces in one vendor's format."""

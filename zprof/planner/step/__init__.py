"""Model the time of a planned step and the bytes that it moves."""

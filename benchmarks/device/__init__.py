"""What needs a GPU, check by check, each in a process of its own."""

"""Run the checks that need a GPU, each in a process of its own."""

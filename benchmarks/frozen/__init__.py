"""What zprof says about a hundred inputs, held to a committed copy: ``python -m benchmarks.frozen``."""

"""Record who owns which bytes of memory in one window of steps."""

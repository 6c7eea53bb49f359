"""Rules about devices that do not compute at full speed: slow hosts, and work concurrent with kernels."""

"""Define the version of zprof."""

__version__ = "0.1.0"

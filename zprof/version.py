"""The version of zprof, kept here alone."""

__version__ = "0.1.0"

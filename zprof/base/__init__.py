"""Utilities for every package: errors, text, parsing, optional dependencies."""

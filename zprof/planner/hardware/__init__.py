"""Kinds of machines by name, and from a file."""

"""Measurements of the engine, saved with their conditions; not part of the installed package."""

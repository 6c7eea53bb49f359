"""Measurements of the engine, kept with their conditions; not part of the installed package."""

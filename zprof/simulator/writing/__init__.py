"""Writes a schedule down as the traces of one vendor."""

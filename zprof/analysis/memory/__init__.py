"""Analyse the memory of a run: who owned which bytes at each rank's peak. Pure functions over its tables."""

"""Analyse a run's memory: who owned which bytes at each rank's peak. Pure functions over its tables."""

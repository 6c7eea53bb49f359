"""Analyse a run with pure functions: tables in, frozen values out."""

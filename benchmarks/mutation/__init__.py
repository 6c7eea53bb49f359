"""Mutants of the rules: what is changed, which tests see it, and whether one of them turns red."""

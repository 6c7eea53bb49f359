"""Gathers and reductions that a step repeats: told apart by the pass that each serves."""

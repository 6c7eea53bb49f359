"""The plan: knobs of a run, and what turning them is predicted to make of it."""

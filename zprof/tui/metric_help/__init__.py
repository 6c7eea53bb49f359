"""Help on each metric: title, explanation, formula, inputs and source rows, per kind of report leaf."""

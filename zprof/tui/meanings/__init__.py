"""What the numbers mean: a formula, its inputs and its rows for each kind of leaf."""

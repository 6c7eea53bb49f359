"""How gradients become means over the ranks, and where they lie until then."""

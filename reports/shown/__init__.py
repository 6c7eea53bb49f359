"""What faces show beyond the leaves: sums, means, shares, names; computed here once."""

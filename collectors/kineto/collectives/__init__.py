"""What all collectives of a trace have in common: rows, groups, kinds, units, engines' ranges."""

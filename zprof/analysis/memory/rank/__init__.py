"""One rank: its tables, the lives of its blocks, and which tenant each belongs to at every instant."""

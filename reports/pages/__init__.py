"""Pages by topic: the tables that every output draws, and the sections of reports that hold them."""

"""Options that several commands share, or that are many."""

"""Cache imported files and finished reports between commands, in the user's cache folder."""

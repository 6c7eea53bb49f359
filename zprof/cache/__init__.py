"""What zprof keeps between two commands: imported files and finished reports, in the user's cache folder."""

"""The timeline of one step of one rank: lanes of phases, units, collectives, streams and threads."""

"""Mutants that no test can kill, because they change nothing: each with the reason."""

#: The key of the mutant (file: change), and why it is the same program.
EQUIVALENT: dict[str, str] = {}

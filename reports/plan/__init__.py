"""What a plan, and what changes would make of a run, say: sentences, tables and lines, alike in all faces."""

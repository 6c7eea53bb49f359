"""A plan, and what changes would make of a run, as text, Markdown and HTML."""

"""The timeline of one rank and step, independent of how it is drawn."""

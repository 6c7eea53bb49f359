"""The timeline of one rank and step, apart from how it is drawn: lanes, views, gaps, words."""

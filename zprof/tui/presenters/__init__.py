"""Content of each screen as tables and figures: pure functions of a loaded run that draw nothing."""

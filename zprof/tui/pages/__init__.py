"""What screens show, as tables of figures: pure functions of what was loaded."""

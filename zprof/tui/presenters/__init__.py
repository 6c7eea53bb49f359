"""What the screens show, as tables and figures: pure functions of a loaded run. Nothing here draws."""

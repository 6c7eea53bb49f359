"""The parts of the page, each a function from the report to the values that its template lays out."""

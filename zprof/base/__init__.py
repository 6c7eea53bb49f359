"""What every part may use: errors, text, parsing, optional packages."""

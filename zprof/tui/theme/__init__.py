"""Colours and glyphs: a tenant is told by its glyph where there is no colour."""

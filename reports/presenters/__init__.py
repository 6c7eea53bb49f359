"""Presenters: what a page of each kind says, as blocks.  They choose words and rows, and draw nothing."""

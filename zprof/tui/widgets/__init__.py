"""Widgets: each draws one kind of thing and computes no fact."""

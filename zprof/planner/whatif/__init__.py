"""Answer what changes would make of a measured run: its step and its memory."""

"""Holistic Trace Analysis (HTA) as a second opinion: asked in a process of its own, never imported here."""

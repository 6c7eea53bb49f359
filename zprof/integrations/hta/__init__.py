"""Get a second opinion from Holistic Trace Analysis (HTA), run in its own process and never imported here."""

"""Export the ranks of a run as one trace on one clock, for ui.perfetto.dev and chrome://tracing."""

"""Read files that others wrote: traces, snapshots, flight-recorder dumps and logs."""

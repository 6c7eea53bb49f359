"""The Python front end: runs, reports, comparisons and plans with notebook display."""

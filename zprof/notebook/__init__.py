"""The Python front end: runs, reports, comparisons and plans that show themselves in a notebook."""

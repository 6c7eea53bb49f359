"""What each metric means.

Title, explanation, formula, inputs and the rows it was measured from, per kind of leaf of the report.
"""

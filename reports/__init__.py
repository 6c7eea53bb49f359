"""Render reports, plans, predictions, comparisons and checks as text, Markdown, HTML and CI formats."""

if __name__ == "reports":
    raise ImportError("import zprof.reports, not reports")

"""Renderers: a report in, text out."""

if __name__ == "reports":
    raise ImportError("import zprof.reports, not reports")

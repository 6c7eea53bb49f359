"""The report as one HTML file: values in ``sections``, layout in ``templates``, nothing from a network."""

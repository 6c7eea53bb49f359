"""The report as Markdown for a pull request or an issue, a module a part."""

"""Plans and predictions as whole pages: text, Markdown, HTML and JSON."""

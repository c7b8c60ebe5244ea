"""Sentences, tables, figures, the page and the site: the only package that writes for readers."""

"""Tables of text for readers, of a page, a terminal or a README."""

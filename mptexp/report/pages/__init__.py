"""Pages: a report's first screen, its sections, its HTML, and the site of several."""

"""Statistics from the records of a sweep: typed values and numeric tables, no sentences."""

"""What is said of a sweep, in sentences and their tables: a module for each question."""

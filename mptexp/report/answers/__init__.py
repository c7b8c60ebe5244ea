"""What is said below the first screen: sentences and tables, a module for each question."""

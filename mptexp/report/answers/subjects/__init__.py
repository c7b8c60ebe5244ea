"""What a sweep answers to the question it asks: a module for each kind of question."""

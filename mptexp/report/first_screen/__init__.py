"""What opens a report: title, chart, sentences, what to do; a module for each kind of question."""

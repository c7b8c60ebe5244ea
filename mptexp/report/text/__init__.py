"""How a report says things: words, numbers, Markdown, terms. It knows no sweep."""

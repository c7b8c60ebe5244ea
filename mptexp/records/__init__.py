"""What one run wrote: where files lie, the record's schema, atomic writing, reading back."""

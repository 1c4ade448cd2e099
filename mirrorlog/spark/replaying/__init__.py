"""What `replay` is made of: rows of a table back into a queue, and how far that has come."""

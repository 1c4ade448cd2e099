"""A running cluster in a folder, and another one made of it."""

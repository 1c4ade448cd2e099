"""Records and acknowledgements that count together."""

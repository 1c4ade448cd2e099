"""Values that are Avro."""

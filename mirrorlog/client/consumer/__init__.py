"""Reading a queue by its offsets."""

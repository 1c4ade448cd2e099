"""What bounds a queue: credit, length, times to live, holds."""

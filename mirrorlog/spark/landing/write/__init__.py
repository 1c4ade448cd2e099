"""What a landing's tasks write: rows, files, statistics, and where they go."""

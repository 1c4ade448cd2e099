"""What the data source reads: which queue offsets, from which nodes or files, as Arrow."""

"""What stands in for the world in tests: today the disk. Imports the package's protocols, never the other way round."""

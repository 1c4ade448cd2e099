"""What the leader does about what is not as it should be."""

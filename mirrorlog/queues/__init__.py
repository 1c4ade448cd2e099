"""What a queue is: its name, its numbers, its groups' positions, and who may write it in which sequence."""

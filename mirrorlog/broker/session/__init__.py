"""What a client's connection may ask for, and how it is answered."""

"""Publishing to an exchange."""

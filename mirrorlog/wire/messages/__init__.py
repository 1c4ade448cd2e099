"""The control messages of the native protocol, by subject; what they have in common is in `base`."""

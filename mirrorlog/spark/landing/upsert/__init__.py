"""Tables that keep the latest record of each key."""

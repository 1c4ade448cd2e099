"""Where each queue's records stand: in memory, in tables of sealed segments, and for all the past."""

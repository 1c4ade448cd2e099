"""Which subscriber of a group is given which record, and what a settlement changes."""

"""Log and table held against each other, and copies of a log among themselves: the parts of reconcile and audit."""

"""What the cluster has decided, and the commands that change it."""

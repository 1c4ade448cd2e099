"""What all doors share: the process, logins, TLS, the node that is watched."""

"""Consumer groups that acknowledge: subscriptions, leases, what is dispatched to whom, and how it is settled."""

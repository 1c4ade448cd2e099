"""mqtool: look at a cluster and its queues, publish and consume by hand, and check log directories offline."""

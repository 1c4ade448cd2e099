"""Log bytes by offset from a master to its mirrors, and the confirms that wait for them."""

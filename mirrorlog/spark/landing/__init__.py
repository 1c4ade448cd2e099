"""Landing queues in Delta tables: what is landed where, the tasks that write, the commit, and the service over them."""

"""A data frame into a queue: the sink of the data source."""

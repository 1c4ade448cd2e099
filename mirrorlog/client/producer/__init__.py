"""Publishing to a queue: batches, their pipeline, receipts."""

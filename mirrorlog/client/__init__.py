"""The Python client: Client, Producer, Consumer, Admin."""

from mirrorlog.client.batching import Delivery, Receipt
from mirrorlog.client.client import Client
from mirrorlog.client.consumed import ConsumedBatch, ConsumedRecord
from mirrorlog.client.consumer import Consumer
from mirrorlog.client.pipeline import ProducerStats
from mirrorlog.client.producer import Producer

__all__ = ["Client", "ConsumedBatch", "ConsumedRecord", "Consumer", "Delivery", "Producer", "ProducerStats", "Receipt"]

"""The Python client: Client, Producer, Consumer, Admin."""

from mirrorlog.client.client import Client
from mirrorlog.client.consumed import ConsumedBatch, ConsumedRecord
from mirrorlog.client.consumer import Consumer
from mirrorlog.client.deliveries import BulkDelivery, Delivery
from mirrorlog.client.pipeline import ProducerStats
from mirrorlog.client.producer import Producer
from mirrorlog.client.receipts import Receipt, ReceiptRange, Receipts

__all__ = [
    "BulkDelivery",
    "Client",
    "ConsumedBatch",
    "ConsumedRecord",
    "Consumer",
    "Delivery",
    "Producer",
    "ProducerStats",
    "Receipt",
    "ReceiptRange",
    "Receipts",
]

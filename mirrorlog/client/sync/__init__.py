"""The client for programs without an event loop: the same calls, and each blocks until it is done.

with Client("127.0.0.1:7401") as client:
    with client.producer("flights") as producer:
        producer.send(b"value", key=b"key")
"""

from mirrorlog.client.sync.admin import Admin
from mirrorlog.client.sync.client import Client
from mirrorlog.client.sync.consumer import Consumer
from mirrorlog.client.sync.leases import Leased
from mirrorlog.client.sync.producer import BulkDelivery, Delivery, Producer
from mirrorlog.client.sync.subscription import Delivered, DeliveredBatch, Subscription
from mirrorlog.client.sync.transaction import Transaction

__all__ = [
    "Admin",
    "BulkDelivery",
    "Client",
    "Consumer",
    "Delivered",
    "DeliveredBatch",
    "Delivery",
    "Leased",
    "Producer",
    "Subscription",
    "Transaction",
]

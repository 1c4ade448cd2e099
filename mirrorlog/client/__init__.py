"""The Python client: Client, Producer, Publisher, Consumer, Subscription, Admin."""

from mirrorlog.client.client import Client
from mirrorlog.client.consumed import ConsumedBatch, ConsumedRecord
from mirrorlog.client.consumer import Consumer
from mirrorlog.client.delivered import Delivered, DeliveredBatch
from mirrorlog.client.deliveries import BulkDelivery, Delivery
from mirrorlog.client.leases import Leased
from mirrorlog.client.pipeline import ProducerStats
from mirrorlog.client.producer import Producer
from mirrorlog.client.publisher import Publication, Published, Publisher
from mirrorlog.client.receipts import Receipt, ReceiptRange, Receipts
from mirrorlog.client.subscription import Subscription
from mirrorlog.client.transaction import Transaction
from mirrorlog.client.transaction_records import Routed

__all__ = [
    "BulkDelivery",
    "Client",
    "ConsumedBatch",
    "ConsumedRecord",
    "Consumer",
    "Delivered",
    "DeliveredBatch",
    "Delivery",
    "Leased",
    "Producer",
    "ProducerStats",
    "Publication",
    "Published",
    "Publisher",
    "Receipt",
    "ReceiptRange",
    "Receipts",
    "Routed",
    "Subscription",
    "Transaction",
]

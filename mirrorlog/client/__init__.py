"""The Python client: Client, Producer, Publisher, Consumer, Subscription, Admin."""

from mirrorlog.client.client import Client
from mirrorlog.client.consumer.consumer import Consumer
from mirrorlog.client.consumer.records import ConsumedBatch, ConsumedRecord
from mirrorlog.client.producer.batch import Receipt, ReceiptRange, Receipts
from mirrorlog.client.producer.deliveries import BulkDelivery, Delivery
from mirrorlog.client.producer.pipeline import ProducerStats
from mirrorlog.client.producer.producer import Producer
from mirrorlog.client.properties import RecordProperties
from mirrorlog.client.publisher.publications import Publication, Published
from mirrorlog.client.publisher.publisher import Publisher
from mirrorlog.client.subscription.delivered import Delivered, DeliveredBatch
from mirrorlog.client.subscription.leases import Leased
from mirrorlog.client.subscription.subscription import Subscription
from mirrorlog.client.transaction.contents import Routed
from mirrorlog.client.transaction.transaction import Transaction

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
    "RecordProperties",
    "Routed",
    "Subscription",
    "Transaction",
]

"""The Python client: Client, Producer, Publisher, Consumer, Subscription, Admin.

Each is loaded when it is asked for: who only asks a cluster how it is needs nothing of records.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "client": "Client",
    "consumer.consumer": "Consumer",
    "consumer.records": "ConsumedBatch ConsumedRecord",
    "producer.batch": "Receipt ReceiptRange Receipts",
    "producer.deliveries": "BulkDelivery Delivery",
    "producer.pipeline": "ProducerStats",
    "producer.producer": "Producer",
    "properties": "RecordProperties",
    "publisher.publications": "Publication Published",
    "publisher.publisher": "Publisher",
    "subscription.delivered": "Delivered DeliveredBatch",
    "subscription.leases": "Leased",
    "subscription.subscription": "Subscription",
    "transaction.contents": "Routed",
    "transaction.transaction": "Transaction",
}
"""By file, what it has for others."""


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names.split():
            found = getattr(importlib.import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

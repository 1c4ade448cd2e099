"""The Python client: Client, Producer, Publisher, Consumer, Subscription, Admin.

Each is loaded when it is asked for: who only asks a cluster how it is needs nothing of records.
"""

from typing import TYPE_CHECKING

from mirrorlog.lazy_names import loaded_late

if TYPE_CHECKING:
    from mirrorlog.client.client import Client as Client
    from mirrorlog.client.consumer.consumer import Consumer as Consumer
    from mirrorlog.client.consumer.records import ConsumedBatch as ConsumedBatch
    from mirrorlog.client.consumer.records import ConsumedRecord as ConsumedRecord
    from mirrorlog.client.producer.batch import Receipt as Receipt
    from mirrorlog.client.producer.batch import ReceiptRange as ReceiptRange
    from mirrorlog.client.producer.batch import Receipts as Receipts
    from mirrorlog.client.producer.deliveries import BulkDelivery as BulkDelivery
    from mirrorlog.client.producer.deliveries import Delivery as Delivery
    from mirrorlog.client.producer.pipeline import ProducerStats as ProducerStats
    from mirrorlog.client.producer.producer import Producer as Producer
    from mirrorlog.client.properties import RecordProperties as RecordProperties
    from mirrorlog.client.publisher.publications import Publication as Publication
    from mirrorlog.client.publisher.publications import Published as Published
    from mirrorlog.client.publisher.publisher import Publisher as Publisher
    from mirrorlog.client.subscription.delivered import Delivered as Delivered
    from mirrorlog.client.subscription.delivered import DeliveredBatch as DeliveredBatch
    from mirrorlog.client.subscription.leases import Leased as Leased
    from mirrorlog.client.subscription.subscription import Subscription as Subscription
    from mirrorlog.client.transaction.contents import Routed as Routed
    from mirrorlog.client.transaction.transaction import Transaction as Transaction

__getattr__, __dir__ = loaded_late(
    __name__,
    {
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
    },
)

__all__ = list(__dir__())

"""The client for programs without an event loop: the same calls, and each blocks until it is done.

with Client("127.0.0.1:7401") as client:
    with client.producer("flights") as producer:
        producer.send(b"value", key=b"key")

Each is loaded when it is asked for, as of `mirrorlog.client`.
"""

from typing import TYPE_CHECKING

from mirrorlog.lazy_names import loaded_late

if TYPE_CHECKING:
    from mirrorlog.client.sync.admin import BlockingAdmin as Admin
    from mirrorlog.client.sync.admin import BlockingTopology as Topology
    from mirrorlog.client.sync.client import BlockingClient as Client
    from mirrorlog.client.sync.consumer import BlockingConsumer as Consumer
    from mirrorlog.client.sync.leases import BlockingLeased as Leased
    from mirrorlog.client.sync.producer import BlockingBulkDelivery as BulkDelivery
    from mirrorlog.client.sync.producer import BlockingDelivery as Delivery
    from mirrorlog.client.sync.producer import BlockingProducer as Producer
    from mirrorlog.client.sync.publisher import BlockingPublisher as Publisher
    from mirrorlog.client.sync.subscription import BlockingDelivered as Delivered
    from mirrorlog.client.sync.subscription import BlockingDeliveredBatch as DeliveredBatch
    from mirrorlog.client.sync.subscription import BlockingSubscription as Subscription
    from mirrorlog.client.sync.transaction import BlockingTransaction as Transaction

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
    "Publisher",
    "Subscription",
    "Topology",
    "Transaction",
]

__getattr__, __dir__ = loaded_late(
    __name__,
    {
        "admin": "Admin Topology",
        "client": "Client",
        "consumer": "Consumer",
        "leases": "Leased",
        "producer": "BulkDelivery Delivery Producer",
        "publisher": "Publisher",
        "subscription": "Delivered DeliveredBatch Subscription",
        "transaction": "Transaction",
    },
    prefix="Blocking",
)

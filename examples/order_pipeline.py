"""Orders through two work queues: what fails is tried again later, and after three attempts it is a dead letter.

Run it: python examples/order_pipeline.py 127.0.0.1:7401
"""

import asyncio
import json
import sys

from mirrorlog.client import Client, Delivered

ORDERS = [
    {"id": number, "cents": 1000 * number, "card": "expired" if number == 3 else "fine"} for number in range(1, 6)
]
RETRY_DELAY_MS = 200


async def declare(client: Client) -> None:
    await client.admin.declare("orders.dead")
    await client.admin.declare(
        "orders",
        {
            "x-delivery-limit": 2,  # come back more often than that, and you are dead
            "x-dead-letter-exchange": "",  # the default exchange leads to the queue that the routing key names
            "x-dead-letter-routing-key": "orders.dead",
        },
    )
    await client.admin.declare("invoices")


async def take_orders(client: Client) -> None:
    """The shop: returns when all copies have every order."""
    async with client.producer("orders") as producer:
        for order in ORDERS:
            await producer.send(json.dumps(order).encode(), key=str(order["id"]).encode())


async def bill(client: Client, wanted: int) -> None:
    """The worker: an order that can be billed becomes an invoice; one that cannot comes again later."""
    billed = 0
    async with client.subscribe("orders", prefetch=10) as orders, client.producer("invoices") as invoices:
        async for delivery in orders:
            order = json.loads(delivery.value or b"")
            if order["card"] == "expired":
                print(f"order {order['id']}: attempt {delivery.attempts} failed")
                await delivery.nack(delay_ms=RETRY_DELAY_MS)
                continue
            await invoices.send(b"invoice of order %d: %d cents" % (order["id"], order["cents"]))
            await delivery.ack()  # only now: who dies before leaves the order to another worker
            billed += 1
            if billed == wanted:
                return


async def look_at_dead(client: Client) -> Delivered:
    """The clerk: what died, why, and how often it was tried."""
    async with client.subscribe("orders.dead") as dead:
        async for delivery in dead:
            why = dict(delivery.headers)["x-first-death-reason"]
            print(f"dead: order {json.loads(delivery.value or b'')['id']}, {(why or b'').decode()}")
            await delivery.ack()
            return delivery
    raise AssertionError("a subscription goes on until it is left")


async def main(servers: str) -> None:
    async with Client(*servers.split(",")) as client:
        await declare(client)
        await take_orders(client)
        worker = asyncio.create_task(bill(client, wanted=len(ORDERS)))
        await look_at_dead(client)
        worker.cancel()
        invoices = {queue.name: queue for queue in await client.admin.queues()}["invoices"]
        print(f"{invoices.next - invoices.begin} invoices")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7401"))

"""Consume, process, produce: the result and the acknowledgement of what it came from count together or not at all.

Run it: python examples/consume_process_produce.py 127.0.0.1:7401
"""

import asyncio
import sys

from mirrorlog.client import Client
from mirrorlog.errors import Refused

NUMBERS = 5


async def square(client: Client) -> None:
    failed_once = False
    async with client.subscribe("numbers") as numbers:
        done = 0
        async for delivery in numbers:
            number = int(delivery.value or b"0")
            try:
                async with client.transaction() as transaction:
                    transaction.send("squares", b"%d" % number**2, key=delivery.key)
                    transaction.ack(delivery)
                    if number == 2 and not failed_once:
                        failed_once = True
                        raise RuntimeError("the worker stumbles: nothing of this transaction counts")
            except (RuntimeError, Refused) as error:
                print(f"{number}: {error}")
                await delivery.nack()
                continue
            done += 1
            if done == NUMBERS:
                return


async def main(servers: str) -> None:
    async with Client(*servers.split(",")) as client:
        # One node decides over a transaction, so its queues share a log.
        for queue in ("numbers", "squares"):
            await client.admin.declare(queue, {"x-log-group": "squaring"})
        async with client.producer("numbers") as producer:
            for number in range(NUMBERS):
                await producer.send(b"%d" % number)
        await square(client)
        async with client.consumer("squares", start="earliest", until="confirmed") as consumer:
            print("squares:", *sorted([int(record.value or b"0") async for record in consumer]))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7401"))

"""Weather by topic: one exchange, and each subscriber a queue of its own with the topics that it wants.

Run it: python examples/topic_fan_out.py 127.0.0.1:7401
"""

import asyncio
import sys

from mirrorlog.client import Client

SUBSCRIBERS = {"europe": "europe.#", "storms": "*.*.storm", "everything": "#"}
REPORTS = {"europe.oslo.calm": b"2 m/s", "europe.brest.storm": b"31 m/s", "asia.osaka.storm": b"40 m/s"}


async def main(servers: str) -> None:
    async with Client(*servers.split(",")) as client:
        await client.admin.topology.declare_exchange("weather", "topic")
        for name, pattern in SUBSCRIBERS.items():
            await client.admin.declare(f"weather.{name}")
            await client.admin.topology.bind("weather", f"weather.{name}", pattern)

        async with client.publisher("weather", mandatory=True) as publisher:
            for topic, report in REPORTS.items():
                published = await publisher.publish(topic, report)  # confirmed by every queue that it leads to
                print(f"{topic}: in {len(published.receipts)} queues")

        for name in SUBSCRIBERS:
            async with client.subscribe(f"weather.{name}") as subscription:
                for delivery in await subscription.receive(len(REPORTS), timeout_ms=1_000):
                    print(f"{name}: {(delivery.key or b'').decode()} {(delivery.value or b'').decode()}")
                    await delivery.ack()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7401"))

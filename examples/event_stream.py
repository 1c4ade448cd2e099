"""An event stream: a group reads it and commits where it stands; then it is set back to a time, and reads that again.

Run it: python examples/event_stream.py 127.0.0.1:7401
"""

import asyncio
import sys
from datetime import UTC, datetime, timedelta

from mirrorlog.client import Client

GROUP = "dashboard"


async def read_new(client: Client) -> list[bytes]:
    """What the group has not seen. The next run begins behind it: a commit is the group's, not the reader's."""
    async with client.consumer("clicks", group=GROUP, until="confirmed") as consumer:
        seen = [record.value or b"" async for record in consumer]
        await consumer.commit()
    return seen


async def main(servers: str) -> None:
    async with Client(*servers.split(",")) as client:
        # A stream keeps what it has, whoever has read it. Here for a week, then the oldest goes.
        await client.admin.declare("clicks", {"retention_ms": int(timedelta(days=7).total_seconds() * 1000)})
        async with client.producer("clicks") as producer:
            for number in range(3):
                await producer.send(b"before %d" % number)
            print("first run:", len(await read_new(client)))
            noon = datetime.now(UTC)
            for number in range(2):
                await producer.send(b"after %d" % number)
        print("second run:", *[value.decode() for value in await read_new(client)])
        print("third run:", len(await read_new(client)))

        moved = await client.admin.reset_groups("clicks", [GROUP], to=noon)
        print("set back to queue offset", moved.groups[0].target.queue_offset)
        print("again:", *[value.decode() for value in await read_new(client)])


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7401"))

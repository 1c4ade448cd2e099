"""Plain threads: one client, a producer that all threads share, and a pool of workers on one subscription.

Run it: python examples/threads.py 127.0.0.1:7401
"""

import sys
import threading
from collections import Counter

from mirrorlog.client.sync import Client

PAGES = 200
THREADS = 4


def main(servers: str) -> None:
    done: Counter[str] = Counter()
    lock = threading.Lock()
    with Client(*servers.split(",")) as client:
        client.admin.declare("pages")
        with client.producer("pages") as producer, client.subscribe("pages", prefetch=20) as subscription:

            def publish(first: int) -> None:
                for page in range(first, PAGES, THREADS):
                    producer.send_nowait(b"page %d" % page)  # waits only while the window is full

            def work() -> None:
                while sum(done.values()) < PAGES:
                    for delivery in subscription.receive(10, timeout_ms=200):
                        delivery.ack_nowait()  # told with others; leaving the subscription waits for all
                        with lock:
                            done[(delivery.value or b"").decode()] += 1

            threads = [threading.Thread(target=publish, args=(number,)) for number in range(THREADS)]
            threads += [threading.Thread(target=work) for _ in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    print(f"{len(done)} pages, each {max(done.values())} time by {THREADS} workers")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:7401")

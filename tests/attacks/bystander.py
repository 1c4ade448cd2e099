"""A good client beside an attack, in a process of its own: how long its publishes take, and do any fail?

It publishes at a steady rate and counts from when each was due, so that a node which stands still for a second is seen
by all that were due in it and not by one. It uses the cluster as anybody would: by the client, with a login where there
are users, through whatever failover comes.

    python -m tests.attacks.bystander TARGET

prints `ready` when its first publish is confirmed, and a `Seen` as JSON when its standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from statistics import quantiles

from mirrorlog.client import Client
from mirrorlog.errors import MirrorlogError
from tests.attacks.target import Target

_EVERY_S = 0.01
_QUEUE = "bystander"


@dataclass(frozen=True, slots=True)
class Seen:
    """`p50_ms` to `max_ms`: from when a publish was due to its confirm by all copies. `failed`: what others raised."""

    publishes: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    failed: list[str] = field(default_factory=list)


class Bystander:
    """The process, from the other side."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def finish(self) -> Seen:
        """What it saw; it ends. Raises AssertionError when it could not say."""
        out, _ = self._process.communicate("", timeout=60)
        assert self._process.returncode == 0, f"the bystander ended with {self._process.returncode}"
        return Seen(**json.loads(out))


@contextmanager
def bystander(target: Target) -> Iterator[Bystander]:
    """One that publishes already; `target` with the login of somebody who may declare and write."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.attacks.bystander", target.text],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", "the bystander could not publish before the attack"
        yield Bystander(process)
    finally:
        process.kill()
        process.wait()


async def _stand_by(target: Target) -> Seen:
    took_ms: list[float] = []
    failed: list[str] = []
    login = {"user": target.user, "password": target.password} if target.user else {}
    async with Client(*target.client, tls=target.context(), **login) as client:
        await client.admin.declare(_QUEUE)
        async with client.producer(_QUEUE, linger_ms=0) as producer:
            await producer.send(b"first")
            print("ready", flush=True)

            async def publish(due: float) -> None:
                try:
                    await producer.send(b"%f" % due)
                except MirrorlogError as error:
                    failed.append(f"{type(error).__name__}: {error}")
                took_ms.append((time.monotonic() - due) * 1000)

            ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
            due = time.monotonic()
            async with asyncio.TaskGroup() as publishes:
                while not ended.done():
                    publishes.create_task(publish(due))
                    due += _EVERY_S
                    await asyncio.wait({ended}, timeout=max(0.0, due - time.monotonic()))
    cuts = quantiles(took_ms, n=100)
    return Seen(len(took_ms), round(cuts[49], 2), round(cuts[98], 2), round(max(took_ms), 2), failed)


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(_stand_by(Target.parse(sys.argv[1]))))), flush=True)

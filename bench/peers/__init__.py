"""The systems that mirrorlog is measured beside: Kafka, NATS JetStream, RabbitMQ, Redis, RocketMQ.

`python -m bench.peers.install` brings them into .build/peers; `workloads` gives one workload per peer, whose `run`
is one round on a cluster of its own. What is compared, and why it is fair: decision 0011.

- `peer`: what the runner sees; `versions`: what exactly is measured; `install`: how it gets here
- `servers`: processes and their end; `outcome`: a load driver's output and the figures from it
- `kafka`, `nats`, `rabbitmq`, `redis`, `rocketmq`: one system each; `*_load`, `nats_go`, `rocketmq_java`: its drivers
"""

from __future__ import annotations

from functools import partial

from bench.peers.peer import PeerFailed, Seconds, Skipped, Workload

__all__ = ["PeerFailed", "Skipped", "Workload", "workloads"]

_FULL = Seconds(warm=3.0, measure=4.0)
_QUICK = Seconds(warm=0.5, measure=1.0)


def workloads(quick: bool) -> list[Workload]:
    """One per peer. `run` raises `Skipped` when the peer is not installed and `PeerFailed` when a round went wrong.

    A round takes up to a minute, half of it starting servers; `quick` shows that it runs, its figures mean nothing.
    """
    # Late, because `python -m bench.peers.install` imports this package before it runs the module.
    from bench.peers import kafka, nats, rabbitmq, redis, rocketmq

    seconds = _QUICK if quick else _FULL
    peers = (nats, kafka, rabbitmq, redis, rocketmq)
    return [Workload(case=peer.CASE, run=partial(peer.run, seconds)) for peer in peers]

"""The rows of the matrix: every feature."""

from __future__ import annotations

from typing import Final

from tests.process.matrix import faces, groups, letters, lifetimes, records, routing, settling, sharing
from tests.process.matrix.frame import Feature

ROWS: Final[tuple[Feature, ...]] = (
    settling.ack_in_any_order,
    settling.only_what_was_given_out_is_flagged,
    settling.an_ack_from_before_counts,
    settling.multiple_ack,
    settling.nack_with_a_delay,
    settling.reject,
    settling.release,
    settling.leases,
    settling.auto_ack,
    settling.delivery_limit,
    settling.consumer_timeout,
    sharing.exclusive_consumer,
    sharing.single_active_consumer,
    sharing.priority_of_consumers,
    sharing.cancel_on_failover,
    records.message_ttl,
    records.no_time_to_live,
    records.queue_ttl,
    records.delay,
    records.priority_of_records,
    records.max_length_drop_head,
    records.max_length_reject_publish,
    records.max_length_bytes,
    letters.dead_letters,
    letters.redrive,
    letters.refused_for_dead_letters,
    groups.purge,
    groups.group_reset,
    groups.stream_positions,
    groups.work_retention,
    groups.groups_of_one_queue,
    routing.exchanges,
    routing.unroutable,
    routing.virtual_hosts_and_rights,
    routing.transaction_with_acks,
    lifetimes.declaring_again,
    lifetimes.auto_delete,
    lifetimes.x_expires,
    lifetimes.exclusive_queue,
    lifetimes.queue_that_is_not_durable,
    faces.synchronous_faces,
)

"""Receipts as text: the same in every process, and refused for another queue, another group, or with a slip."""

from __future__ import annotations

import pytest

from mirrorlog.client.subscription.lease_receipts import LeaseReceipt
from mirrorlog.errors import BadRequest

TEXT = "17-42-3219b8a8"


def test_a_receipt_is_the_same_text_for_ever() -> None:
    """Goal: what is stored today is taken by the next version. Method: a golden text."""
    assert str(LeaseReceipt("flights", "", 17, 42)) == TEXT
    assert LeaseReceipt.parse(TEXT, queue="flights", group="") == LeaseReceipt("flights", "", 17, 42)


@pytest.mark.parametrize(("queue", "group"), [("trains", ""), ("flights", "g")])
def test_a_receipt_of_something_else_is_refused(queue: str, group: str) -> None:
    """Goal: no record is acknowledged that nobody has seen. Method: another queue, another group."""
    with pytest.raises(BadRequest, match="receipt of something else"):
        LeaseReceipt.parse(TEXT, queue=queue, group=group)


@pytest.mark.parametrize(
    "text",
    [
        *("", "17-42", "17-42-3219B8A8", "017-42-3219b8a8", "18-42-3219b8a8", "17-42-3219b8a8\n", "-1-2-00000000"),
        *(f"{2**63}-1-00000000", "1" * 10_000, "\u0661\u0667-42-3219b8a8", None, 17),
    ],
)
def test_what_is_no_receipt_is_refused_in_one_line(text: object) -> None:
    """Goal: a user's slip is told. Method: what looks like one and what does not."""
    with pytest.raises(BadRequest) as refused:
        LeaseReceipt.parse(text, queue="flights", group="")  # type: ignore[arg-type]
    assert "\n" not in refused.value.message

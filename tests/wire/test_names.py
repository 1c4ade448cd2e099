"""Qualified names: joined and split without a loss, and no two pairs alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.errors import BadRequest
from mirrorlog.wire.names import check_name, check_routing_key, is_key, qualified, shown, split

NAMES = st.text(
    st.characters(min_codepoint=0x20, exclude_characters=[chr(code) for code in range(0x7F, 0xA0)], codec="utf-8"),
    min_size=1,
    max_size=20,
)


@given(NAMES, NAMES)
def test_what_was_joined_is_split_again(virtual_host: str, name: str) -> None:
    """Goal: one key per pair, and one pair per key. Method: any names, there and back."""
    key = qualified(virtual_host, name)
    assert split(key) == (virtual_host, name)
    assert is_key(key)


def test_a_queue_of_the_default_virtual_host_is_known_by_its_name_alone() -> None:
    """Goal: what was declared before there were virtual hosts keeps its name. Method: by example."""
    assert qualified("/", "orders") == "orders"
    assert qualified("shop", "orders") == "shop\x1forders"
    assert (shown("orders"), shown("shop\x1forders")) == ("orders", "orders in virtual host shop")


@pytest.mark.parametrize("key", ["", "\x1fq", "v\x1f", "/\x1fq", "v\x1fa\x1fb", "a\nb", "v\x1fa\x7f", "x" * 256])
def test_what_no_pair_makes_is_no_key(key: str) -> None:
    """Goal: no second way to write a queue's name. Method: what `qualified` never gives."""
    assert not is_key(key)


@pytest.mark.parametrize("name", ["", "x" * 256, "a\x1fb", "a\x00", "a\x7f", "\x9b31m"])
def test_a_name_with_a_control_character_or_none_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="control characters"):
        check_name("exchange", name)


def test_a_routing_key_may_be_empty_and_is_as_long_as_a_name() -> None:
    """Goal: the default exchange leads to every queue. Method: at and above the limit, in ASCII and beyond."""
    for key in ("", "x" * 255, "é" * 255):
        check_routing_key(key)
    for key in ("x" * 256, "é" * 256, "a\x1fb"):
        with pytest.raises(BadRequest, match="255 characters"):
            check_routing_key(key)

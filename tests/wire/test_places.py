"""Who may be connected to a port, and who goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mirrorlog.wire.fairness.places import PortPlaces, source_of


def test_an_address_that_floods_drives_out_itself() -> None:
    """Goal: sixty sockets, or a thousand, of one address take no place of another one. Method: so many more than it may
    have; each drives out the oldest of its own, and the other address's stays and is let in."""
    places: PortPlaces[int] = PortPlaces(strangers_max=20, per_address_max=5, let_in_max=10)
    assert places.come(-1, "10.0.0.2") is None
    gone = [places.come(number, "10.0.0.1") for number in range(1000)]
    assert gone == [None] * 5 + list(range(995))
    assert places.strangers == 6
    assert places.take(-1)


def test_a_flood_of_many_addresses_drives_out_those_that_have_most() -> None:
    """Goal: who has one place goes last. Method: fill all places by three addresses with five each and five with one;
    newcomers drive out the oldest of those that have five, then of those that have four."""
    places: PortPlaces[str] = PortPlaces(strangers_max=20, per_address_max=5, let_in_max=10)
    for number in range(5):
        places.come(f"alone {number}", f"10.0.1.{number}")
    for number in range(5):
        for flooder in "abc":
            assert places.come(f"{flooder}{number}", flooder) is None
    gone = [places.come(f"new {number}", f"10.0.2.{number}") for number in range(6)]
    assert gone == ["a0", "b0", "c0", "a1", "b1", "c1"]


def test_nobody_who_was_let_in_goes_for_a_stranger() -> None:
    """Let one in, then flood from its address: it stays, and its limit is one of its own."""
    places: PortPlaces[int] = PortPlaces(strangers_max=4, per_address_max=4, let_in_max=2)
    for number in (0, 1, 2):
        places.come(number, "10.0.0.1")
    assert places.take(0)
    assert places.take(1)
    assert not places.take(2)
    gone = {places.come(number, "10.0.0.1") for number in range(3, 100)}
    assert not gone & {0, 1}
    assert places.let_in == 2
    places.leave(0)
    assert places.take(99)


def test_who_goes_on_is_as_good_as_new() -> None:
    """One that has greeted is behind those that came after it and say nothing."""
    places: PortPlaces[int] = PortPlaces(strangers_max=3, per_address_max=3, let_in_max=1)
    for number in range(3):
        places.come(number, "10.0.0.1")
    places.went_on(0)
    assert [places.come(number, "10.0.0.1") for number in (3, 4, 5)] == [1, 2, 0]


def test_what_counts_as_one_address() -> None:
    """Each kind of address."""
    assert source_of("10.0.0.1") == source_of("::ffff:10.0.0.1") != source_of("10.0.0.2")
    assert source_of("2001:db8::1") == source_of("2001:db8::2:3%eth0") != source_of("2001:db8:0:1::1")
    assert source_of("?") == "?"


_STEPS = st.lists(
    st.tuples(st.sampled_from(["come", "take", "leave", "on"]), st.integers(0, 30), st.sampled_from("abcdef"))
)


@given(_STEPS)
def test_limits_hold_whatever_comes(steps: list[tuple[str, int, str]]) -> None:
    """Random steps beside plain sets: counts are right, no limit is passed, who goes is a stranger of an address that
    had most, or of the newcomer's own."""
    places: PortPlaces[int] = PortPlaces(strangers_max=6, per_address_max=3, let_in_max=2)
    strangers: dict[int, str] = {}
    let_in: set[int] = set()
    for step, key, address in steps:
        if step == "come" and key not in strangers and key not in let_in:
            of = list(strangers.values())
            goes = places.come(key, address)
            if of.count(address) >= 3:
                assert goes is not None
                assert strangers.pop(goes) == address
            elif len(of) >= 6:
                assert goes is not None
                assert of.count(strangers.pop(goes)) == max(map(of.count, of))
            else:
                assert goes is None
            strangers[key] = address
        elif step == "take":
            may = key in let_in or (key in strangers and len(let_in) < 2)
            assert places.take(key) == may
            if may:
                strangers.pop(key, None)
                let_in.add(key)
        elif step == "leave":
            places.leave(key)
            strangers.pop(key, None)
            let_in.discard(key)
        else:
            places.went_on(key)
        assert (places.strangers, places.let_in) == (len(strangers), len(let_in))

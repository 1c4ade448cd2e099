"""The fuzz targets under hypothesis: any bytes, and good inputs with a few bytes changed, cut out or put in."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, Target

EXAMPLES = 150


@st.composite
def damaged(draw: st.DrawFn, good: list[bytes]) -> bytes:
    """A good input after one to four small accidents."""
    content = bytearray(draw(st.sampled_from(good)))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(content)))
        kind = draw(st.sampled_from(["flip", "cut", "insert", "number"]))
        if kind == "flip" and at < len(content):
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del content[at : at + draw(st.integers(1, 64))]
        elif kind == "insert":
            content[at:at] = draw(st.binary(max_size=64))
        elif kind == "number":
            size = draw(st.sampled_from([1, 2, 4, 8]))
            value = draw(st.sampled_from([0, 1, 2 ** (8 * size) - 1, 2 ** (8 * size - 1)]))
            content[at : at + size] = value.to_bytes(size, "little")
    return bytes(content)


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes_end_in_a_result_or_a_named_error(name: str) -> None:
    """Goal: nothing but the project's errors leaves a parser. Any bytes, and damaged good ones."""
    target: Target = TARGETS[name]
    good = target.seeds()

    @settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(st.one_of(st.binary(max_size=600), damaged(good)))
    def check(data: bytes) -> None:
        target.try_bytes(data)

    check()


@pytest.mark.parametrize("name", TARGETS)
def test_good_inputs_pass(name: str) -> None:
    """Goal: the seeds are what they say, so the fuzzers begin inside the parsers and not before them."""
    good = TARGETS[name].seeds()
    assert len(set(good)) == len(good) > 0
    for data in good:
        TARGETS[name].try_bytes(data)

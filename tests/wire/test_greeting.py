"""HELLO: versions, roles and clusters that fit, and those that do not."""

from __future__ import annotations

import msgspec
import pytest

from mirrorlog.errors import ProtocolError, UnsupportedVersion, WrongCluster
from mirrorlog.wire.frames import PROTOCOL_VERSION_MAX
from mirrorlog.wire.messages.handshake import ROLES, Hello, check_hello

HELLO = Hello(version_min=1, version_max=1, role="client")


@pytest.mark.parametrize("role", sorted(ROLES))
def test_every_role_is_welcome_in_its_own_cluster(role: str) -> None:
    """Greet as each role with the right cluster."""
    assert check_hello(msgspec.structs.replace(HELLO, role=role, cluster_id="c"), cluster_id="c") == 1


def test_the_highest_version_that_both_know_is_spoken() -> None:
    """Greet as a newer peer that still knows the old versions."""
    newer = msgspec.structs.replace(HELLO, version_min=1, version_max=99)
    assert check_hello(newer, cluster_id="c") == PROTOCOL_VERSION_MAX


@pytest.mark.parametrize(("lowest", "highest"), [(2, 9), (0, 0), (-5, -1)])
def test_versions_that_do_not_meet_are_refused(lowest: int, highest: int) -> None:
    """Greet with versions that are all newer, or all older."""
    hello = msgspec.structs.replace(HELLO, version_min=lowest, version_max=highest)
    with pytest.raises(UnsupportedVersion, match=f"speaks versions {lowest} to {highest}"):
        check_hello(hello, cluster_id="c")


def test_only_a_client_may_leave_the_cluster_open() -> None:
    """Greet without a cluster, and with another one."""
    assert check_hello(HELLO, cluster_id="c") == 1
    for hello in (
        msgspec.structs.replace(HELLO, cluster_id="d"),
        msgspec.structs.replace(HELLO, role="mirror", cluster_id="d"),
        msgspec.structs.replace(HELLO, role="mirror"),
    ):
        with pytest.raises(WrongCluster):
            check_hello(hello, cluster_id="c")


def test_an_unknown_role_is_refused() -> None:
    """Greet as what nobody knows, with a very long name: the answer stays short."""
    with pytest.raises(ProtocolError, match="is none of client, door, joiner, member, mirror, tool") as caught:
        check_hello(msgspec.structs.replace(HELLO, role="x" * 10_000), cluster_id="c")
    assert len(str(caught.value)) < 200

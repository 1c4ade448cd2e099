"""What a node that joins remembers until it has a Raft store: the token it asks with, and what it was answered.

A node may die at any time between asking and being a member. With the token it asks again and finds itself in (see
`commands.NodeJoined`); with the answer it goes on without asking. Both belong to one disk and one joining: when the
node's Raft store is made the file goes. Left behind, it would bring a node whose Raft state was set aside back under
its old number, its votes forgotten.

The file `member` in the node's directory is a `RecordFile` of a `Joining`, with the magic b"MLJN".
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Self
from uuid import uuid4

import msgspec
from pydantic import ValidationError

from mirrorlog.cluster.membership.record_file import RecordFile
from mirrorlog.cluster.raft.messages import HardState, Stored
from mirrorlog.cluster.raft.store import RaftStore
from mirrorlog.cluster.requests import AskJoin, Joined
from mirrorlog.cluster.state.commands import member_of
from mirrorlog.commitlog.files import Files, disk_named, replace_file
from mirrorlog.errors import BadRequest, ProtocolError

FILE_NAME: Final = "member"
STATE_BYTES_MAX: Final = 256 * 1024 * 1024
"""A state with 10,000 queues has some megabytes."""

_FILE_BYTES_MAX: Final = STATE_BYTES_MAX + 64 * 1024
_CLUSTER_ID_BYTES_MAX: Final = 255


TOKEN_CHARS_MAX: Final = 64


def check_joining(asked: AskJoin) -> None:
    """What everybody will hold of the node can be used. Raises BadRequest."""
    if not 0 < len(asked.token) <= TOKEN_CHARS_MAX:
        raise BadRequest(f"a token has 1 to {TOKEN_CHARS_MAX} characters, not {len(asked.token)}")
    try:
        member_of(asked.node, asked.addresses)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise BadRequest(f"{first['loc'][0]} of the node that wants to join: {first['msg']}") from None


class Joining(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the file says. `token`: made once for the node's disk; `member`: its number, 0 until it is let in, and with
    it `cluster_id` and `snapshot`, what its Raft member begins with, encoded."""

    token: str
    member: int = 0
    cluster_id: str = ""
    snapshot: bytes = b""


class JoinRecord:
    """One node's joining. Every method blocks. Not thread-safe."""

    def __init__(self, files: Files, directory: Path, content: Joining) -> None:
        """`open` makes one."""
        self._files = files
        self._path = directory / FILE_NAME
        self.content = content

    @classmethod
    def open(cls, files: Files, directory: Path, *, new_token: Callable[[], str] = lambda: str(uuid4())) -> Self:
        """What is there, on disk when this returns; with a new token when there is nothing.

        Raises LogCorrupt when it is damaged, UnsupportedVersion for what a newer version wrote, DiskFull, DiskFailed.
        """
        path = directory / FILE_NAME
        with disk_named("open", path):
            content = _FILE.read(files, path)
            if content is None:
                content = Joining(new_token())
                replace_file(files, path, _FILE.encode(content))
            else:
                # The process before may have been killed between the rename and its sync.
                files.fsync_directory(directory)
        return cls(files, directory, content)

    @staticmethod
    def remove(files: Files, directory: Path) -> None:
        """The node has a Raft store. On disk when this returns; nothing is there, nothing happens. To be called after
        the store was made and at each start that finds one. Raises DiskFull, DiskFailed."""
        path = directory / FILE_NAME
        with disk_named("remove", path):
            if files.exists(path):
                files.unlink(path)
            # Always: the process before may have been killed between the two.
            files.fsync_directory(directory)

    def joined(self, member: int, cluster_id: str, snapshot: bytes) -> None:
        """The node is let in. On disk when this returns.

        Raises ProtocolError when that cannot be an answer, DiskFull, DiskFailed: then it is as before and can be asked
        for again.
        """
        if member < 1 or not 0 < len(cluster_id.encode()) <= _CLUSTER_ID_BYTES_MAX:
            raise ProtocolError(f"a node was let in as member {member} of cluster {cluster_id[:50]!r}, which cannot be")
        if not 0 < len(snapshot) <= STATE_BYTES_MAX:
            raise ProtocolError(f"the cluster's state has {len(snapshot)} bytes, 1 to {STATE_BYTES_MAX} can be")
        content = msgspec.structs.replace(self.content, member=member, cluster_id=cluster_id, snapshot=snapshot)
        with disk_named("write", self._path):
            replace_file(self._files, self._path, _FILE.encode(content))
        self.content = content


def anew(files: Files, directory: Path, told: Joined) -> tuple[RaftStore, Stored]:
    """The node whose Raft store is in `directory` becomes the member that it was told to be, from one operation of its
    disk to the next: the old one, which may have forgotten a vote, or the new one. Blocks.

    Raises LogCorrupt, DiskFull, DiskFailed.
    """
    found = RaftStore.open(files, directory)
    if found is None:
        store = RaftStore.create(files, directory, own=told.member, snapshot=told.snapshot)
        return store, Stored(HardState(), told.snapshot)
    store, stored = found
    store.own = told.member
    try:
        store.replace(told.snapshot, ())
    except BaseException:
        store.close()
        raise
    return store, Stored(stored.hard_state, told.snapshot)


_FILE: Final = RecordFile(
    b"MLJN",
    Joining,
    _FILE_BYTES_MAX,
    "remove it and let the node join again, and forget the node first if the cluster knows it already",
)

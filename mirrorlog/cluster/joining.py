"""What a node that joins remembers until it has a Raft store: the token it asks with, and what it was answered.

A node may die at any time between asking and being a member. With the token it asks again and finds itself in (see
`commands.NodeJoined`); with the answer it goes on without asking. Both belong to one disk and one joining: when the
node's Raft store is made the file goes. Left behind, it would bring a node whose Raft state was set aside back under
its old number, its votes forgotten.

The file `member` in the node's directory, little endian, replaced as a whole:

    offset  size  field
         0     4  magic     b"MLJN"
         4     4  version   1
         8     4  CRC-32C of the eight bytes before and of the payload
        12     …  payload   `Content` in msgpack

The header is the same in all versions, so that an older one can say that it is too old.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self
from uuid import uuid4

import msgspec
from pydantic import ValidationError

from mirrorlog.cluster.founding import member_of
from mirrorlog.cluster.questions import AskJoin, Joined
from mirrorlog.cluster.raft.effects import Stored
from mirrorlog.cluster.raft.messages import HardState
from mirrorlog.cluster.raft.store import RaftStore
from mirrorlog.commitlog.checksum import crc32c
from mirrorlog.commitlog.files import Files, disk_named, read_file, replace_file
from mirrorlog.errors import BadRequest, LogCorrupt, ProtocolError, UnsupportedVersion

FILE_NAME: Final = "member"
STATE_BYTES_MAX: Final = 256 * 1024 * 1024
"""A state with 10,000 queues has some megabytes."""

_MAGIC: Final = b"MLJN"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<4sI")
_CRC: Final = struct.Struct("<I")
_PAYLOAD_AT: Final = _HEAD.size + _CRC.size
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


class Content(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the file says. `member`: 0 until the node is let in."""

    token: str
    member: int = 0
    cluster_id: str = ""
    snapshot: bytes = b""


class JoinRecord:
    """One node's joining. `token`: made once for its disk; `member`: its number, 0 until it is let in, and with it
    `cluster_id` and `snapshot`, what its Raft member begins with, encoded. Every method blocks. Not thread-safe."""

    def __init__(self, files: Files, directory: Path, content: Content) -> None:
        """`open` makes one."""
        self._files = files
        self._path = directory / FILE_NAME
        self._content = content

    @classmethod
    def open(cls, files: Files, directory: Path, *, new_token: Callable[[], str] = lambda: str(uuid4())) -> Self:
        """What is there, on disk when this returns; with a new token when there is nothing.

        Raises LogCorrupt when it is damaged, UnsupportedVersion for what a newer version wrote, DiskFull, DiskFailed.
        """
        path = directory / FILE_NAME
        with disk_named("open", path):
            content = _read(files, path)
            if content is None:
                content = Content(new_token())
                replace_file(files, path, _encode(content))
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

    @property
    def token(self) -> str:
        return self._content.token

    @property
    def member(self) -> int:
        return self._content.member

    @property
    def cluster_id(self) -> str:
        return self._content.cluster_id

    @property
    def snapshot(self) -> bytes:
        return self._content.snapshot

    def joined(self, member: int, cluster_id: str, snapshot: bytes) -> None:
        """The node is let in. On disk when this returns.

        Raises ProtocolError when that cannot be an answer, DiskFull, DiskFailed: then it is as before and can be asked
        for again.
        """
        if member < 1 or not 0 < len(cluster_id.encode()) <= _CLUSTER_ID_BYTES_MAX:
            raise ProtocolError(f"a node was let in as member {member} of cluster {cluster_id[:50]!r}, which cannot be")
        if not 0 < len(snapshot) <= STATE_BYTES_MAX:
            raise ProtocolError(f"the cluster's state has {len(snapshot)} bytes, 1 to {STATE_BYTES_MAX} can be")
        content = msgspec.structs.replace(self._content, member=member, cluster_id=cluster_id, snapshot=snapshot)
        with disk_named("write", self._path):
            replace_file(self._files, self._path, _encode(content))
        self._content = content


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


def _encode(content: Content) -> bytes:
    payload = msgspec.msgpack.encode(content)
    head = _HEAD.pack(_MAGIC, _VERSION)
    return head + _CRC.pack(crc32c(payload, crc32c(head))) + payload


def _read(files: Files, path: Path) -> Content | None:
    """None when there is no file. Raises OSError, LogCorrupt, UnsupportedVersion."""
    if not files.exists(path):
        return None
    content = read_file(files, path, max_bytes=_FILE_BYTES_MAX)
    if len(content) < _PAYLOAD_AT:
        raise _corrupt(path, f"it has {len(content)} bytes")
    head, payload = content[: _HEAD.size], memoryview(content)[_PAYLOAD_AT:]
    magic, version = _HEAD.unpack(head)
    if magic != _MAGIC or _CRC.unpack_from(content, _HEAD.size)[0] != crc32c(payload, crc32c(head)):
        raise _corrupt(path, "its checksum does not match")
    if version != _VERSION:
        raise _too_new(path, f"it has format {version}, this version knows {_VERSION}")
    try:
        return msgspec.msgpack.decode(payload, type=Content)
    except msgspec.MsgspecError as error:  # its checksum is right, so this is what was written
        raise _too_new(path, str(error)) from None


def _corrupt(path: Path, reason: str) -> LogCorrupt:
    return LogCorrupt(
        f"{path} cannot be used: {reason}; remove it and let the node join again, and forget the node first if the "
        "cluster knows it already",
        path=str(path),
    )


def _too_new(path: Path, reason: str) -> UnsupportedVersion:
    return UnsupportedVersion(
        f"{path} says what this version of mirrorlog cannot read: {reason}; start the version that wrote it, or a "
        "newer one",
        path=str(path),
    )

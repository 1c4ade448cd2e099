"""The administrator whom a cluster gets from one of its nodes: made on that node, by who may read its files, and not by
whoever is first over the network. Thin.

He is made when the cluster has let the node in and has no users. That he is named in a node's settings later on, or in
those of several nodes, changes nothing: where there are users, nobody is made.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Self

from mirrorlog.cluster.commands import PermissionsSet, UserSet
from mirrorlog.cluster.service import ClusterService
from mirrorlog.cluster.topology import ADMINISTRATOR
from mirrorlog.config import Settings, check_private
from mirrorlog.errors import BadRequest, ConfigError, MirrorlogError
from mirrorlog.wire.names import DEFAULT_VIRTUAL_HOST
from mirrorlog.wire.passwords import PASSWORD_CHARS_MAX, check_password, hashed

logger = logging.getLogger(__name__)

DECIDE_S: Final = 10.0
AGAIN_S: Final = 0.5
_ALL: Final = ".*"


class FirstAdmin:
    """`password`: as his user will type it."""

    def __init__(self, name: str, password: str) -> None:
        self._name = name
        self._password = password
        self._begun = False

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """None when the settings name nobody. Raises ConfigError."""
        name, file = settings.node.first_admin, settings.node.first_admin_file
        if name is None or file is None:
            return None
        check_private(file, "node.first_admin_file")
        try:
            with file.open(encoding="utf-8") as opened:
                password = opened.read(PASSWORD_CHARS_MAX + 2).rstrip("\r\n")
            check_password(password)
        except OSError as error:
            raise ConfigError(f"node.first_admin_file {file}: {error.strerror}") from None
        except (UnicodeDecodeError, BadRequest) as error:
            raise ConfigError(f"node.first_admin_file {file}: {error}") from None
        return cls(name, password)

    async def make(self, service: ClusterService) -> None:
        """Try until it is decided, by this node or another one. Once in a run."""
        if self._begun:
            return
        self._begun = True
        password_hash = await asyncio.to_thread(hashed, self._password)
        while not await self._is_decided(service, password_hash):  # noqa: ASYNC110  (the cluster tells nobody)
            await asyncio.sleep(AGAIN_S)

    async def _is_decided(self, service: ClusterService, password_hash: str) -> bool:
        user = UserSet(name=self._name, password_hash=password_hash, tags=(ADMINISTRATOR,))
        allowed = PermissionsSet(
            user=self._name, virtual_host=DEFAULT_VIRTUAL_HOST, configure=_ALL, write=_ALL, read=_ALL
        )
        try:
            await service.decisions.up_to_date()
            topology = service.state.topology
            if topology is not None and topology.users:
                return True
            for command in (user, allowed):
                outcome = await service.decide(command, timeout_s=DECIDE_S)
                if outcome.refusal:
                    logger.warning("first_admin_not_made user=%s reason=%r", self._name, outcome.refusal)
                    return False
        except MirrorlogError as error:
            logger.info("first_admin_waits user=%s reason=%r", self._name, str(error))
            return False
        logger.info("first_admin_made user=%s", self._name)
        return True

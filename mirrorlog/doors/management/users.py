"""Users and their permissions in the management API; and who asks.

A password that comes here in a body is hashed here, as `mqtool` does it: nodes are told no passwords but at a login. No
hash is told either: rows have no `password_hash`. In a cluster without users everybody may do
everything, and the first user that is made is an administrator, or refused: from then on everybody has to log in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from mirrorlog.client.definitions.rows import (
    ADMINISTRATOR,
    MAX_CONNECTIONS,
    Row,
    number,
    permission_rows,
    require,
    stored_hash,
    tags_of,
    text,
    user_row,
)
from mirrorlog.doors.management.calls import NO_CONTENT, ApiAnswer, Call, Routes, written
from mirrorlog.doors.management.shapes import bad_request, not_found
from mirrorlog.errors import AccessRefused, NoSuchUser
from mirrorlog.wire.auth.passwords import hashed
from mirrorlog.wire.messages.topology import UserInfo


async def _hash_of(body: Mapping[str, Any]) -> str | None:
    """None: the password stays as it is."""
    if body.get("password") is not None:
        # It takes a tenth of a second, and releases the interpreter.
        return await asyncio.to_thread(hashed, text(body, "password"))
    return stored_hash(body)


async def _all(call: Call) -> dict[str, UserInfo]:
    return {user.name: user for user in await call.client.admin.topology.users()}


async def _named(call: Call) -> UserInfo:
    """Raises ApiError when there is none that the path names."""
    found = (await _all(call)).get(call.names["user"])
    if found is None:
        raise not_found()
    return found


# --- Users ----------------------------------------------------------------------------------------------------------


async def _users(call: Call) -> ApiAnswer:
    return call.listed([user_row(each) for each in (await _all(call)).values()])


async def _without_permissions(call: Call) -> ApiAnswer:
    return call.listed([user_row(each) for each in (await _all(call)).values() if not each.permissions])


async def _user(call: Call) -> ApiAnswer:
    return ApiAnswer(body=user_row(await _named(call)))


async def _set_user(call: Call) -> ApiAnswer:
    name, there = call.names["user"], await _all(call)
    require(call.body, "tags")
    password_hash = await _hash_of(call.body)
    if name not in there and password_hash is None:
        password_hash = ""
    await call.client.admin.topology.set_user(name, password_hash=password_hash, tags=tags_of(call.body))
    return written(name not in there)


async def _delete_user(call: Call) -> ApiAnswer:
    await call.client.admin.topology.delete_user((await _named(call)).name)
    return NO_CONTENT


async def _delete_users(call: Call) -> ApiAnswer:
    require(call.body, "users")
    names = call.body["users"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise bad_request("users should be a list of names")
    for name in names:
        await call.client.admin.topology.delete_user(name, missing_ok=True)
    return NO_CONTENT


async def _whoami(call: Call) -> ApiAnswer:
    """Where there are users, tags are told to administrators alone; another one's are left out."""
    name = call.login.user if call.login is not None else "guest"
    try:
        users = await _all(call)
    except AccessRefused:
        return ApiAnswer(body={"name": name})
    if not users:
        return ApiAnswer(body={"name": name, "tags": [ADMINISTRATOR]})
    found = users.get(name)
    return ApiAnswer(body={"name": name, "tags": found.tags if found is not None else []})


async def _auth(call: Call) -> ApiAnswer:
    return ApiAnswer(body={"oauth_enabled": False})


# --- Permissions ----------------------------------------------------------------------------------------------------


async def _permissions(call: Call) -> ApiAnswer:
    return call.listed(permission_rows(list((await _all(call)).values())))


async def _user_permissions(call: Call) -> ApiAnswer:
    return call.listed(permission_rows([await _named(call)]))


async def _vhost_permissions(call: Call) -> ApiAnswer:
    await call.check_vhost()
    rows = permission_rows(list((await _all(call)).values()))
    return call.listed([row for row in rows if row["vhost"] == call.vhost])


async def _permission_row(call: Call) -> Row | None:
    """None where the user has none in the virtual host. Raises ApiError when one of these is not there."""
    user = await _named(call)
    await call.check_vhost()
    return next((row for row in permission_rows([user]) if row["vhost"] == call.vhost), None)


async def _permission(call: Call) -> ApiAnswer:
    if (row := await _permission_row(call)) is None:
        raise not_found()
    return ApiAnswer(body=row)


async def _set_permission(call: Call) -> ApiAnswer:
    require(call.body, "configure", "write", "read")
    before = await _permission_row(call)
    await call.client.admin.topology.set_permissions(
        call.names["user"],
        configure=text(call.body, "configure"),
        write=text(call.body, "write"),
        read=text(call.body, "read"),
        virtual_host=call.vhost,
    )
    return written(before is None)


async def _clear_permission(call: Call) -> ApiAnswer:
    await _permission(call)
    await call.client.admin.topology.clear_permissions(call.names["user"], virtual_host=call.vhost)
    return NO_CONTENT


async def _nothing(call: Call) -> ApiAnswer:
    """Topic permissions: there are none."""
    return call.listed([])


async def _nothing_to_delete(call: Call) -> ApiAnswer:
    raise not_found()


async def _no_topic_permissions(call: Call) -> ApiAnswer:
    raise bad_request("there are no topic permissions: a publish needs the right to write to the queues it leads to")


# --- Limits ---------------------------------------------------------------------------------------------------------


async def _limits(call: Call) -> ApiAnswer:
    users = [await _named(call)] if "user" in call.names else list((await _all(call)).values())
    rows = [{"user": user.name, "value": row["limits"]} for user in users if (row := user_row(user))["limits"]]
    return call.listed(rows)


async def _set_limit(call: Call) -> ApiAnswer:
    require(call.body, "value")
    await _change_limit(call, number(call.body, "value", 0))
    return NO_CONTENT


async def _clear_limit(call: Call) -> ApiAnswer:
    await _change_limit(call, None)
    return NO_CONTENT


async def _change_limit(call: Call, value: int | None) -> None:
    """The others stay. Raises ApiError."""
    if (limit := call.names["limit"]) != MAX_CONNECTIONS:
        raise bad_request(f"limit {limit[:80]!r} is not known; there is {MAX_CONNECTIONS}")
    user = await _named(call)
    given = {**user.limits.given, "max_connections": value}
    try:
        await call.client.admin.topology.set_user_limits(user.name, **given)
    except NoSuchUser:
        raise not_found() from None


ROUTES: Final[Routes] = {
    "whoami": {"GET": _whoami},
    "auth": {"GET": _auth},
    "users": {"GET": _users},
    "users/without-permissions": {"GET": _without_permissions},
    "users/bulk-delete": {"POST": _delete_users},
    "users/:user": {"GET": _user, "PUT": _set_user, "DELETE": _delete_user},
    "users/:user/permissions": {"GET": _user_permissions},
    "users/:user/topic-permissions": {"GET": _nothing},
    "permissions": {"GET": _permissions},
    "permissions/:vhost/:user": {"GET": _permission, "PUT": _set_permission, "DELETE": _clear_permission},
    "vhosts/:vhost/permissions": {"GET": _vhost_permissions},
    "vhosts/:vhost/topic-permissions": {"GET": _nothing},
    "topic-permissions": {"GET": _nothing},
    "topic-permissions/:vhost/:user": {"GET": _nothing, "PUT": _no_topic_permissions, "DELETE": _nothing_to_delete},
    "user-limits": {"GET": _limits},
    "user-limits/:user": {"GET": _limits},
    "user-limits/:user/:limit": {"PUT": _set_limit, "DELETE": _clear_limit},
}

"""Policies of the management API, and those of operators. A cluster has none yet: lists are empty."""

from __future__ import annotations

from typing import Final

from mirrorlog.doors.management.calls import ApiAnswer, Call, Routes
from mirrorlog.doors.management.shapes import bad_request, not_found


async def _list(call: Call) -> ApiAnswer:
    if "vhost" in call.names:
        await call.check_vhost()
    return call.listed([])


async def _one(call: Call) -> ApiAnswer:
    raise not_found()


async def _set(call: Call) -> ApiAnswer:
    raise bad_request("there are no policies yet; a queue says in its arguments what it asks for")


_ONE: Final = {"GET": _one, "PUT": _set, "DELETE": _one}

ROUTES: Final[Routes] = {
    path: pages
    for kind in ("policies", "operator-policies")
    for path, pages in ((kind, {"GET": _list}), (f"{kind}/:vhost", {"GET": _list}), (f"{kind}/:vhost/:name", _ONE))
}

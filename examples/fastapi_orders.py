"""A web service: POST an order, which is answered once all copies have it; GET how many wait.

pip install 'mirrorlog' fastapi uvicorn
MIRRORLOG_SERVERS=127.0.0.1:7401 uvicorn examples.fastapi_orders:app
curl -d '{"article": "tea"}' -H 'Content-Type: application/json' http://127.0.0.1:8000/orders
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel

from mirrorlog.client import Client
from mirrorlog.errors import OutcomeUnknown, Refused


class Order(BaseModel):
    article: str


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """One client and one producer for the life of the service; they go on through failovers by themselves."""
    servers = os.environ.get("MIRRORLOG_SERVERS", "127.0.0.1:7401").split(",")
    async with Client(*servers) as client:
        await client.admin.declare("web.orders")
        async with client.producer("web.orders", delivery_timeout_ms=5_000) as producer:
            app.state.client, app.state.producer = client, producer
            yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def take(order: Order, request: Request) -> dict[str, int]:
    try:
        receipt = await request.app.state.producer.send(order.model_dump_json().encode())
    except Refused as error:
        raise HTTPException(503, f"not taken, try again: {error}") from None
    except OutcomeUnknown as error:
        raise HTTPException(504, f"perhaps taken: look before you try again: {error}") from None
    return {"order": receipt.queue_offset}


@app.get("/orders")
async def waiting(request: Request) -> dict[str, int]:
    found = await request.app.state.client.admin.groups("web.orders")
    return {"waiting": found.groups[0].unsettled if found.groups else found.next}

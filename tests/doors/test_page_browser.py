"""The management page clicked through in a browser: Debian's `chromium-headless-shell`, driven by playwright.

Skipped where there is no such browser. `PAGE_SHOTS=docs/operate` writes the page's pictures anew. The quick
tests of the same page are in `test_page`.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from mirrorlog.client.sync import Client
from mirrorlog.testing import Cluster
from tests.doors.management import Api
from tests.process.clusters import fast_cluster

BROWSER = shutil.which("chromium-headless-shell")
WAIT_MS = 30_000
WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 400, "height": 800}

pytestmark = [
    pytest.mark.process,
    pytest.mark.long,
    pytest.mark.skipif(BROWSER is None, reason="there is no chromium-headless-shell"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with fast_cluster(3, http=True, min_in_sync=2) as found:
        found.wait_in_sync()
        yield found


@pytest.fixture(scope="module")
def api(cluster: Cluster) -> Api:
    """Of a cluster in which there is something to see."""
    found = Api(cluster.nodes["n1"].http)
    for name in ("orders", "mails", "events"):
        found.put(f"queues/%2f/{name}", {"arguments": {"x-max-length": 10_000}})
        for number in range(20):
            body = {"routing_key": name, "payload": f'{{"order": {number}}}', "properties": {"headers": {"no": number}}}
            found.post("exchanges/%2f/amq.default/publish", body)
    found.post("queues/%2f/orders/get", {"ackmode": "ack_requeue_false", "count": 8})
    found.put("policies/%2f/short", {"pattern": "^mails", "definition": {"max-length": 100}, "apply-to": "queues"})
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser: Browser, api: Api) -> Iterator[Page]:
    """Nothing that a page does may be against its own policy of contents, or end in an error."""
    context = browser.new_context(base_url=f"http://{api.address}", viewport=WIDE)  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    yield page
    context.close()
    assert [each for each in wrong if "favicon" not in each] == []


def shot(page: Page, name: str) -> None:
    """For the documents, where it was asked for."""
    if folder := os.environ.get("PAGE_SHOTS"):
        page.screenshot(path=Path(folder) / f"page-{name}.png")


def test_a_queue_is_found_published_to_browsed_and_purged(page: Page) -> None:
    """Goal: the way of somebody who looks for something, without an address typed. Method: click from the overview to
    a queue, publish, see the number go up by itself, look at the record, purge, be asked first."""
    page.goto("/")
    expect(page).to_have_url(re.compile("/page/$"))
    expect(page.get_by_text("nothing stands still")).to_be_visible()
    page.get_by_role("link", name="Queues", exact=True).click()
    page.get_by_label("Name has").fill("even")
    page.get_by_role("button", name="Show").click()
    page.get_by_role("link", name="events", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Queue events")
    expect(page.locator("#pulse")).to_have_text("live", timeout=WAIT_MS)
    ready = page.locator(".totals dd").first
    expect(ready).to_have_text("20")
    page.get_by_text("Publish a message").click()
    page.get_by_label("Payload").fill("<b>by hand</b>")
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_role("status").filter(has_text="published, and confirmed")).to_be_visible()
    expect(ready).to_have_text("21")
    page.get_by_role("link", name="Browse its records").click()
    page.get_by_label("From").fill("20")
    page.get_by_role("button", name="Look").click()
    expect(page.locator("pre").last).to_have_text("<b>by hand</b>")
    page.get_by_role("link", name="Back to the queue").click()
    page.get_by_text("Purge or delete it").click()
    purge = page.locator("form", has=page.get_by_role("button", name="Purge"))
    purge.get_by_role("checkbox").check()
    page.once("dialog", lambda dialog: dialog.dismiss())
    purge.get_by_role("button").click()
    expect(ready).to_have_text("21")
    page.once("dialog", lambda dialog: dialog.accept())
    purge.get_by_role("button").click()
    expect(page.get_by_text("21 ready records are settled")).to_be_visible()
    expect(ready).to_have_text("0")


def test_what_is_open_renews_itself_and_keeps_the_focus(page: Page, api: Api) -> None:
    """Goal: live, without losing one's place. Method: the focus is on a link that is swapped, while a record comes."""
    page.goto("/page/queue?name=mails")
    expect(page.locator("#pulse")).to_have_text("live", timeout=WAIT_MS)
    link = page.get_by_role("link", name="Only where copies differ")
    link.focus()
    for number in range(3):
        api.post("exchanges/%2f/amq.default/publish", {"routing_key": "mails", "payload": "x", "properties": {}})
        expect(page.locator(".totals dd").first).to_have_text(str(21 + number), timeout=WAIT_MS)
        expect(link).to_be_focused()


def test_a_policy_is_written_in_a_form_and_read_back(page: Page, api: Api) -> None:
    page.goto("/page/policies")
    page.get_by_label("Name", exact=True).fill("capped")
    page.get_by_label("Pattern").fill("^events$")
    page.get_by_label("max-length, records").fill("50")
    page.get_by_label("overflow").select_option("reject-publish")
    page.get_by_role("button", name="Set it").click()
    expect(page.get_by_text("policy capped is set")).to_be_visible()
    assert api.get("policies/%2f/capped")["definition"] == {"max-length": 50, "overflow": "reject-publish"}
    page.get_by_role("link", name="capped").click()
    expect(page.get_by_label("max-length, records")).to_have_value("50")
    shot(page, "policies")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Clear capped").click()
    expect(page.get_by_text("policy capped is cleared")).to_be_visible()


def test_by_keyboard_alone_one_gets_from_the_overview_to_a_queue(page: Page) -> None:
    """Goal: no pointer is needed. Method: the link to the content first, then tabs and Enter."""
    page.goto("/page/queues")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="To the content")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.locator(":focus").text_content() == "orders":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Queue orders")


def test_at_400_pixels_nothing_is_wider_than_the_screen_in_light_and_dark(page: Page) -> None:
    """Goal: usable on a telephone, by day and night. Method: every page; tables scroll within themselves."""
    page.set_viewport_size(NARROW)  # type: ignore[arg-type]
    grounds = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        for path in (
            "", "queues", "queue?name=orders", "logs", "nodes", "consumers", "connections", "moves", "policies",
            "events", "doctor", "browse?name=orders", "reset?name=orders&to=earliest", "move?name=orders&copies=2",
        ):  # fmt: skip
            page.goto(f"/page/{path}")
            width = page.evaluate("document.scrollingElement.scrollWidth")
            assert width <= NARROW["width"], (path, width)
        grounds.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert grounds[0] != grounds[1]
    page.goto("/page/queue?name=orders")
    shot(page, "narrow-dark")


def test_without_its_script_the_page_shows_and_does_the_same(browser: Browser, api: Api) -> None:
    context = browser.new_context(base_url=f"http://{api.address}", java_script_enabled=False)
    page = context.new_page()
    page.goto("/page/queue?name=orders")
    expect(page.locator(".totals dd").first).to_have_text("12")
    page.get_by_role("link", name="Move its groups").click()
    page.get_by_label("To", exact=True).fill("earliest")
    page.get_by_role("button", name="Say what would move").click()
    expect(page.get_by_role("row", name=re.compile("acking"))).to_contain_text("8")
    page.get_by_role("button", name="Move them there").click()
    expect(page.get_by_text("group (own) stands at 0")).to_be_visible()
    expect(page.locator(".totals dd").first).to_have_text("20")
    context.close()


def test_a_node_that_is_gone_turns_red_on_an_open_page(cluster: Cluster, page: Page, api: Api) -> None:
    """Goal: who watches sees it without doing anything. Method: a mirror is killed while the overview is open. Last:
    the cluster is not whole afterwards."""
    page.goto("/page/")
    expect(page.get_by_text("nothing stands still")).to_be_visible()
    cluster.nodes["n3"].kill()
    expect(page.get_by_text("2 of 3")).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_role("heading", name="Queues to look at")).to_be_visible(timeout=WAIT_MS)
    expect(page.locator("span.behind").first).to_be_visible(timeout=WAIT_MS)
    shot(page, "overview")
    for number in range(40):
        body = {"routing_key": "orders", "payload": f'{{"order": {number}}}', "properties": {}}
        api.post("exchanges/%2f/amq.default/publish", body)
    with Client(cluster.nodes["n1"].client) as client:
        client.lease("orders", max_records=25, lease_ms=600_000, holder="worker-7")
        client.admin.set_hold("orders", "lake", holder="nightly-1", queue_offset=45, lease_ms=600_000)
    page.goto("/page/queue?name=orders&near=1")
    expect(page.get_by_text("n3 away")).to_be_visible(timeout=WAIT_MS)
    expect(page.get_by_role("row", name="worker-7")).to_contain_text("25")
    expect(page.get_by_role("row", name="landing lake")).to_have_count(2)
    expect(page.locator("tr.landing rect.behind")).to_have_count(2, timeout=WAIT_MS)
    shot(page, "queue")

"""The page of clients/web in a real browser, by gRPC-Web through Envoy; a picture of it is kept."""

import contextlib
import functools
import http.server
import os
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.async_api import Page, async_playwright, expect

from agentstream.client import AsyncSession
from agentstream.v1 import session_pb2
from tests.mesh.conftest import TOKEN, Mesh, meshed
from tests.support.envoy import Certificates

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "clients" / "web" / "dist"
ARTIFACTS = ROOT / ".artifacts"
FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--no-proxy-server"),
]
# In milliseconds: what a machine that is busy with other tests may take.
PATIENCE = 20_000

WORK = """\
message
think I should look at the failing test first, then change as little as possible.
say The parser drops the **last** field. I'll look at `parse.py`, fix it, and run the tests.
end
todo [x] Find the fault | Fix the parser | Run the tests
tool Grep {"pattern":"split(','"} => src/parse.py:14:    fields = line.split(',')[:-1]
edit src/parse.py return fields[:-1] => return fields
ask permission command "pytest -q tests/test_parse.py"
on accept say All tests pass now.
ask question "How shall the release be named?" patch|minor ;; free optional "Anything to add?"
on patch say A patch release it is.
ask form "Where to publish?" {"type":"object","properties":{"branch":{"type":"string",\
"title":"Branch"},"notify":{"type":"boolean","title":"Tell the team"}},"required":["branch"]}
on accept say Published.
error rate_limited retry The model is busy.
"""
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def chromium() -> str:
    """The installed browser; fails (in CI) or skips the test where there is none."""
    found = shutil.which("chromium")
    if found and (PAGE / "main.js").exists():
        return found
    what = "run make web" if found else "chromium is not installed"
    if os.environ.get("CI"):
        pytest.fail(what, pytrace=False)
    pytest.skip(what)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    """The page on a static server; its origin."""
    handler = functools.partial(_Quiet, directory=str(PAGE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
async def web(tmp_path: Path, certificates: Certificates, site: str) -> AsyncIterator[Mesh]:
    """A daemon behind an Envoy that takes calls of the page."""
    async with meshed(tmp_path, certificates, origin=site) as made:
        yield made


@contextlib.asynccontextmanager
async def browsing(**options: str) -> AsyncIterator[Page]:
    """A page in a browser that takes the test's certificates; nothing may fail on it unseen."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        try:
            context = await browser.new_context(
                ignore_https_errors=True, viewport={"width": 1280, "height": 1000}
            )
            page = await context.new_page()
            page.set_default_timeout(PATIENCE)
            faults: list[str] = []
            page.on("pageerror", lambda error: faults.append(str(error)))
            yield page
            assert faults == []
        finally:
            await browser.close()


async def connect(page: Page, site: str, web: Mesh, token: str = TOKEN) -> None:
    """Fill in where the daemon is."""
    await page.goto(site)
    await page.get_by_label("Address").fill(f"https://localhost:{web.envoy.browsers}")
    await page.get_by_label("Token").fill(token)
    await page.get_by_role("button", name="Connect").click()


@contextlib.asynccontextmanager
async def session(web: Mesh, directory: Path, title: str) -> AsyncIterator[AsyncSession]:
    """A session that somebody else made."""
    config = session_pb2.SessionConfig(agent="mock", working_directory=str(directory), title=title)
    async with web.envoy.client(TOKEN) as client:
        yield await client.create(config)


async def send(page: Page, text: str) -> None:
    await page.get_by_label("Message to the agent").fill(text)
    await page.get_by_role("button", name="Send", exact=True).last.click()


async def test_a_turn_is_shown_live_and_what_the_agent_asks_is_answered(
    web: Mesh, site: str, tmp_path: Path
) -> None:
    expect.set_options(timeout=PATIENCE)
    async with browsing() as page, session(web, tmp_path, "Fix the parser"):
        await connect(page, site, web)
        await page.get_by_role("link", name="Fix the parser").click()
        await expect(page.locator("#link")).to_have_text("live")
        await expect(page.locator("#title")).to_have_text("Fix the parser")
        await send(page, WORK)

        timeline = page.locator("#timeline")
        allow = page.get_by_role("button", name="Allow once")
        await expect(allow).to_be_visible()
        await expect(timeline.locator(".reasoning .prose").first).to_contain_text("failing test")
        await expect(timeline.locator(".checklist .completed")).to_contain_text("Find the fault")
        await expect(timeline.locator(".diff .added")).to_have_text(["+return fields"])
        await expect(timeline.locator(".diff .removed")).to_have_text(["-return fields[:-1]"])
        await expect(timeline.locator(".result .output").first).to_contain_text("src/parse.py:14")
        ARTIFACTS.mkdir(exist_ok=True)
        await page.screenshot(path=ARTIFACTS / "page-permission.png")
        await allow.click()
        await expect(timeline.get_by_text("All tests pass now.").last).to_be_visible()

        await page.get_by_label("patch").check()
        await page.get_by_role("button", name="Answer", exact=True).click()
        await expect(timeline.get_by_text("A patch release it is.").last).to_be_visible()

        await page.get_by_label("Branch").fill("main")
        await page.get_by_label("Tell the team").check()
        await timeline.get_by_role("button", name="Send").click()
        await expect(timeline.get_by_text("Published.").last).to_be_visible()
        await expect(timeline.locator(".failure")).to_contain_text("The model is busy.")
        await expect(timeline.locator(".turn-end")).to_contain_text("completed")
        await expect(timeline.locator(".outcome")).to_have_text(["accepted"] * 3)
        await expect(page.locator("#about")).to_contain_text("tokens in")
        await page.screenshot(path=ARTIFACTS / "page.png")
        await page.emulate_media(color_scheme="dark")
        await page.screenshot(path=ARTIFACTS / "page-dark.png")


async def test_the_page_goes_on_after_a_restart_without_losing_or_repeating_anything(
    web: Mesh, site: str, tmp_path: Path
) -> None:
    expect.set_options(timeout=PATIENCE)
    async with browsing() as page, session(web, tmp_path, "Through a restart") as made:
        await connect(page, site, web)
        await page.get_by_role("link", name="Through a restart").click()
        await send(page, "say One before.")
        said = page.locator("#timeline .assistant .prose")
        await expect(said).to_have_text(["One before."])
        await expect(page.locator(".turn-end")).to_have_count(1)
        assert await web.daemon.stop() == 0
        await expect(page.locator("#link")).to_have_text("reconnecting…")
        await web.start_again()
        await expect(page.locator("#link")).to_have_text("live")
        await web.envoy.healthy(True)
        await send(page, "say Two after.")
        await expect(said).to_have_text(["One before.", "Two after."])
        await made.end()
        await expect(page.locator("#link")).to_have_text("over")


async def test_a_session_is_created_and_interrupted_from_the_page(
    web: Mesh, site: str, tmp_path: Path
) -> None:
    expect.set_options(timeout=PATIENCE)
    async with browsing() as page:
        await connect(page, site, web)
        await page.get_by_label("Agent", exact=True).select_option("mock")
        await page.get_by_label("Directory").fill(str(tmp_path))
        await page.get_by_role("button", name="Create").click()
        await expect(page.locator("#link")).to_have_text("live")
        await send(page, "say Working.\nwait interrupt")
        await page.get_by_role("button", name="Stop").click()
        await expect(page.locator(".turn-end")).to_contain_text("interrupted")


async def test_what_an_agent_writes_is_text_never_markup(
    web: Mesh, site: str, tmp_path: Path
) -> None:
    expect.set_options(timeout=PATIENCE)
    script = (
        f"say {HOSTILE}\ntool {{}} => {HOSTILE}\nstatus {HOSTILE}\nimage url javascript:alert(1)"
    )
    async with browsing() as page, session(web, tmp_path, HOSTILE):
        await connect(page, site, web)
        await page.get_by_role("link", name="onerror").click()
        await expect(page.locator("#title")).to_have_text(HOSTILE)
        await send(page, script)
        await expect(page.locator(".turn-end")).to_be_visible()
        await expect(page.locator("#timeline .assistant .prose").first).to_have_text(HOSTILE)
        assert await page.locator("#timeline img, #timeline script").count() == 0
        assert await page.title() == "agentstream"


async def test_a_wrong_token_is_told(web: Mesh, site: str) -> None:
    async with browsing() as page:
        await connect(page, site, web, token="wrong")
        await expect(page.get_by_role("alert")).to_contain_text("Unauthenticated")


async def test_pages_of_other_origins_are_refused(
    tmp_path: Path, certificates: Certificates, site: str
) -> None:
    async with meshed(tmp_path, certificates) as elsewhere, browsing() as page:
        await connect(page, site, elsewhere)
        await expect(page.get_by_role("alert")).to_contain_text("Failed to fetch")

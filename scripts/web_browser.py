"""A real browser on a running ComfyUI, which reaches nothing else: pages, what went wrong in them, what they asked for.

Contract: `with Browser(server, chromium) as browser:` and `browser.page(**settings)` -> `ComfyPage`. Settings are
ComfyUI's own (`"Comfy.VueNodes.Enabled": True`), kept by the server until they are set again. Requests that are not for
the server are blocked and kept in `page.blocked`; errors of our scripts are in `page.errors`, what our scripts left
behind on the page in `page.kept()`. Needs playwright (web_chromium.py).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import layout
from web_page import ComfyPage

FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
FLAGS += ("--disable-component-update", "--disable-sync")
HELP_BY_LANGUAGE = re.compile(r"/docs/[^/]+/(?!zh\.md)[^/]+\.md$")
SETTINGS = {
    "Comfy.TutorialCompleted": True,
    "Comfy.VueNodes.Enabled": False,
    "Comfy.VueNodes.AutoScaleLayout": False,
    "Comfy.ColorPalette": "dark",
    "Comfy.Locale": "en",
    "Comfy.Workflow.Persist": False,
    "Comfy.Notification.ShowVersionUpdates": False,
    "Comfy.Workflow.ShowMissingModelsWarning": False,
    "Comfy.Workflow.ShowMissingNodesWarning": False,
}
VIEW = {"width": 1600, "height": 1000}
# Counts what our scripts leave behind: clocks, observers, listeners on the page itself. `H3TE`: their address.
WATCH = """(() => {
  const kept = { clocks: new Set(), observers: new Set(), listeners: new Set() };
  window.h3teKept = kept;
  const ours = () => new Error().stack.split("\\n").slice(2, 4).join().includes("H3TE");
  const set = window.setInterval, clear = window.clearInterval;
  window.setInterval = (...given) => { const id = set(...given); if (ours()) kept.clocks.add(id); return id; };
  window.clearInterval = (id) => { kept.clocks.delete(id); return clear(id); };
  const { observe, disconnect } = ResizeObserver.prototype;
  ResizeObserver.prototype.observe = function (...given) { if (ours()) kept.observers.add(this);
    return observe.apply(this, given); };
  ResizeObserver.prototype.disconnect = function () { kept.observers.delete(this); return disconnect.apply(this); };
  for (const target of [window, document]) {
    const add = target.addEventListener;
    target.addEventListener = function (...given) { if (ours()) kept.listeners.add(given[0]);
      return add.apply(target, given); };
  }
})()"""


class Browser:
    """One Chromium; a context manager. `server`: the ComfyServer that it may reach."""

    def __init__(self, server, chromium: Path):
        self.server = server
        self.ours = f"/extensions/{server.pack.name}/"
        self._chromium = chromium

    def __enter__(self) -> Browser:
        from playwright.sync_api import sync_playwright

        self._driver = sync_playwright().start()
        # Chromium keeps crash reports under the user's own settings unless it is told of another place
        environment = layout.child_environment(XDG_CONFIG_HOME=str(layout.COMFY / "config"))
        chromium, flags = str(self._chromium), list(FLAGS)
        self._browser = self._driver.chromium.launch(executable_path=chromium, args=flags, env=environment)
        return self

    def __exit__(self, *exception) -> None:
        self._browser.close()
        self._driver.stop()

    def page(self, view: dict[str, int] = VIEW, without_ours: bool = False, **settings) -> ComfyPage:
        """A fresh page without cookies or storage, open and ready. `settings` by name, dots as two underscores.
        without_ours: as if no script of the pack had loaded."""
        self._apply({**SETTINGS, **{name.replace("__", "."): value for name, value in settings.items()}})
        context = self._browser.new_context(viewport=view, service_workers="block")
        context.set_default_timeout(60_000)
        context.add_init_script(WATCH.replace("H3TE", self.ours))
        page = ComfyPage(context.new_page(), self.server.url, settings.get("Comfy__VueNodes__Enabled", False))
        self._guard(page, without_ours)
        page.open()
        return page

    def _apply(self, settings: dict) -> None:
        for name, value in settings.items():
            self.server.request(f"/settings/{name}", json.dumps(value).encode())

    def _guard(self, page: ComfyPage, without_ours: bool) -> None:
        def route(asked) -> None:
            if without_ours and self.ours in asked.request.url and asked.request.url.endswith(".js"):
                return asked.fulfill(body="", content_type="text/javascript")
            if self._is_allowed(asked.request.url):
                return asked.continue_()
            page.blocked.append(asked.request.url)
            return asked.abort()

        page.page.route("**/*", route)
        session = page.page.context.new_cdp_session(page.page)
        session.send("Network.enable")
        session.on("Network.requestWillBeSent", lambda sent: self._note_request(page, sent))
        page.page.on("console", lambda said: self._note_console(page, said))
        page.page.on("pageerror", lambda error: self._note(page, f"{error}\n{error.stack or ''}"))

    def _is_allowed(self, url: str) -> bool:
        address, own = urlsplit(url), urlsplit(self.server.url)
        return address.scheme in ("data", "blob") or address.netloc == own.netloc

    def _note_request(self, page: ComfyPage, sent: dict) -> None:
        """Asked for by a script of ours: the stack of whoever asked names it. Loading a module is not asking."""
        caller = json.dumps(sent.get("initiator", {}).get("stack", {}))
        if self.ours in caller and self.ours not in sent["request"]["url"]:
            page.asked.append(sent["request"]["url"])

    def _note_console(self, page: ComfyPage, said) -> None:
        """ComfyUI asks for a help page in the page's language first; that only Chinese has its own is no mistake."""
        source = said.location.get("url", "")
        if said.type in ("error", "warning") and not HELP_BY_LANGUAGE.search(source):
            self._note(page, f"{said.type}: {said.text} ({source})")

    def _note(self, page: ComfyPage, message: str) -> None:
        page.console.append(message)
        if self.ours in message or "h3te:" in message:
            page.errors.append(message)

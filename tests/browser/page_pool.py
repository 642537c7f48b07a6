"""Pages of the browser that one test uses after another: a new one takes two seconds of processor time.

A page goes back empty, as a new one is. It is closed instead if something was done to it that stays.
"""

import json

from tests.patience import HANGING

STAYS = (
    *("add_cookies", "add_init_script", "close", "expose_binding", "expose_function", "grant_permissions"),
    *("new_cdp_session", "on", "once", "set_default_timeout", "set_extra_http_headers"),
)
"""The methods of a page and its context that nothing undoes."""

STATUS = """addEventListener("DOMContentLoaded", () => {
  const line = document.getElementById("status");
  const tell = () => line.textContent && console.error(`status: ${line.textContent}`);
  if (line) new MutationObserver(tell).observe(line, { childList: true });
})"""


class PooledPage:
    """A page in a context of its own, what it complained of, and the addresses that it requested."""

    def __init__(self, browser, options):
        self.options = options
        self.context = browser.new_context(**options)
        self.context.set_default_timeout(1000 * HANGING)
        self.page = self.context.new_page()
        self.problems = []
        self.requested = []
        self.changed = False
        self._listen()
        self._session = self.context.new_cdp_session(self.page)
        for owner in (self.context, self.page):
            for name in STAYS:
                if hasattr(owner, name):
                    setattr(owner, name, self._noting(getattr(owner, name)))

    def _listen(self):
        tell = self.problems.append
        self.context.on("request", lambda request: self.requested.append(request.url))
        self.page.on(
            "console", lambda m: tell(f"{m.type}: {m.text}") if m.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: tell(f"exception: {error}"))
        self.page.on("dialog", lambda dialog: (tell(f"dialog: {dialog.message}"), dialog.dismiss()))
        self.page.add_init_script(STATUS)

    def _noting(self, method):
        def call(*arguments, **options):
            self.changed = True
            return method(*arguments, **options)

        return call

    def empty(self):
        """Make the page as good as new."""
        for tab in self.context.pages:
            if tab != self.page:
                tab.close()
        self.page.goto("about:blank")
        self.page.unroute_all()
        self.context.unroute_all()
        self.context.clear_cookies()
        self._session.send("Storage.clearDataForOrigin", {"origin": "*", "storageTypes": "all"})
        self._session.send("Page.resetNavigationHistory")
        self.context.set_offline(bool(self.options.get("offline")))
        if size := self.options.get("viewport"):
            self.page.set_viewport_size(size)
        self.page.emulate_media(color_scheme=self.options.get("color_scheme"))
        self.page.mouse.move(-1, -1)
        self.problems.clear()
        self.requested.clear()

    def close(self):
        self.context.close()


class PagePool:
    """At most one idle page for each kind of window."""

    def __init__(self, browser):
        self._browser = browser
        self._idle = {}

    def take(self, options):
        """Return a page that no other test uses, with these options of `Browser.new_context`."""
        return self._idle.pop(_kind(options), None) or PooledPage(self._browser, options)

    def give_back(self, pooled):
        """Keep a page for the next test, unless it was changed for good or there is one."""
        if pooled.changed or _kind(pooled.options) in self._idle:
            pooled.close()
        else:
            pooled.empty()
            self._idle[_kind(pooled.options)] = pooled


def _kind(options):
    return json.dumps(options, sort_keys=True)

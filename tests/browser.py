"""A headless Chromium that Playwright drives: Debian's, since Playwright's own would have to be fetched from elsewhere."""

# In addition to Playwright's own flags, which keep profiles, updates and background work away.
FLAGS = ["--disable-gpu", "--disable-quic", "--no-proxy-server"]


def launch(playwright, program):
    """Starts the Chromium at the path `program`."""
    return playwright.chromium.launch(executable_path=program, args=FLAGS)


class Events:
    """Faults and requests of a page so far. They come in while Playwright waits for something."""

    def __init__(self, page):
        self.faults, self.requests = [], []
        page.on("pageerror", lambda error: self.faults.append(f"exception: {error}"))
        page.on("console", self.add_message)
        page.on("request", lambda request: self.requests.append(request.url))

    def add_message(self, message):
        if message.type in ("error", "warning", "assert"):
            self.faults.append(f"{message.type}: {message.text} {message.location.get('url', '')}")

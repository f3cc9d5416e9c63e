"""A real browser: headless Chromium, driven over its DevTools protocol through two pipes."""

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One browser with one page. All console messages and requests of the page are recorded."""

    def __init__(self, width=1280, height=900):
        self.folder = tempfile.mkdtemp(prefix="mgwfbp-browser-")
        inner_read, self.write_end = os.pipe()
        self.read_end, inner_write = os.pipe()
        arguments = [
            CHROMIUM,
            "--headless=new",
            "--remote-debugging-pipe",
            f"--user-data-dir={self.folder}",
            "--no-first-run",
            "--disable-gpu",
            "--disable-extensions",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            f"--window-size={width},{height}",
            "about:blank",
        ]
        if os.geteuid() == 0:
            arguments.insert(1, "--no-sandbox")  # root has none
        self.process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{inner_read} 4>&{inner_write}', "chromium", *arguments],
            pass_fds=(inner_read, inner_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(inner_read)
        os.close(inner_write)
        self.buffer, self.answers, self.number = b"", {}, 0
        self.errors, self.requests, self.session = [], [], None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.size(width, height)

    def close(self):
        try:
            self.send("Browser.close")
        except (OSError, TimeoutError):
            pass
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.write_end)
        os.close(self.read_end)
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- The protocol: JSON, each message ended by a zero byte ----

    def receive(self, deadline):
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.read_end], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("the browser does not answer")
            more = os.read(self.read_end, 1 << 20)
            if not more:
                raise OSError("the browser has ended")
            self.buffer += more
        message, self.buffer = self.buffer.split(b"\0", 1)
        return json.loads(message)

    def note(self, message):
        method, details = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(details["exceptionDetails"].get("exception", {}).get("description", str(details)))
        elif method == "Runtime.consoleAPICalled" and details["type"] in ("error", "warning", "assert"):
            self.errors.append(str(details["args"]))
        elif method == "Log.entryAdded" and details["entry"]["level"] in ("error", "warning"):
            self.errors.append(details["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(details["request"]["url"])

    def send(self, method, timeout=60, **parameters):
        self.number += 1
        number, message = self.number, {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.write_end, data) :]
        deadline = time.monotonic() + timeout
        while number not in self.answers:
            got = self.receive(deadline)
            if "id" in got:
                self.answers[got["id"]] = got
            else:
                self.note(got)
        answer = self.answers.pop(number)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    # ---- What tests do ----

    def size(self, width, height, scale=1):
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 500,
        )

    def scheme(self, value):
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def open(self, url):
        """Opens a file or an address and waits until the page has drawn itself."""
        self.errors.clear()
        self.requests.clear()
        self.send("Page.navigate", url=Path(url).as_uri() if not str(url).startswith("http") else url)
        self.wait("document.readyState === 'complete' && !!window.mgwfbp")
        self.frame()

    def run(self, expression):
        """The value of an expression in the page; a promise is waited for."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"].get("exception", {}).get("description", "?"))
        return result["result"].get("value")

    def wait(self, condition, timeout=30):
        deadline = time.monotonic() + timeout
        while True:
            try:
                if self.run(condition):
                    return
            except RuntimeError:
                pass  # the page is not there yet
            if time.monotonic() > deadline:
                raise TimeoutError(condition)
            time.sleep(0.02)

    def frame(self):
        """Waits until what was asked for has been drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def move(self, x, y):
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector):
        self.run(f"document.querySelector({json.dumps(selector)}).click()")
        self.frame()

    def enter(self, selector, value, event="input"):
        """Gives a control a value, as typing or dragging does."""
        self.run(
            f"(() => {{ const c = document.querySelector({json.dumps(selector)}); c.value = {json.dumps(str(value))};"
            f" c.dispatchEvent(new Event({json.dumps(event)}, {{bubbles: true}})); }})()"
        )
        self.frame()

    def picture(self, path, full=False):
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=full)["data"]
        Path(path).write_bytes(base64.b64decode(data))

# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium that a test drives as a person would: over its debugging protocol, with mouse and keys. The little of
RFC 6455 that this needs is here, so that no package is needed."""
import base64
import http.client
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import time

import pytest

from launcher_support import wait_for


class Browser:
    def __init__(self, tmp_path, width=1280, height=1500, extra=()):
        if shutil.which("chromium") is None:
            pytest.skip("no chromium here: scripts/setup --full installs it")
        self.folder = tmp_path / f"chromium{width}"
        self.folder.mkdir()
        self.log = self.folder / "log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--window-size={width},{height}",
                 "--remote-debugging-port=0", f"--user-data-dir={self.folder}/profile", *extra, "about:blank"],
                stdout=log, stderr=log, env=dict(os.environ, HOME=str(self.folder)))
        port = int(wait_for(lambda: re.search(r"DevTools listening on ws://127\.0\.0\.1:(\d+)/", self.log.read_text()), "Chromium", 90)[1])
        page = wait_for(lambda: self._page(port), "Chromium's page", 60)
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        path = page["webSocketDebuggerUrl"].split(str(port), 1)[1]
        key = base64.b64encode(os.urandom(16)).decode()
        self.socket.sendall((f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                             f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
        self.file = self.socket.makefile("rb")
        assert b"101" in self.file.readline()
        while self.file.readline().strip():
            pass
        self.number = 0
        self.problems = []  # what the page's script threw, and what its policy refused
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")

    @staticmethod
    def _page(port):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request("GET", "/json/list")
            return next((each for each in json.loads(connection.getresponse().read()) if each["type"] == "page"), None)
        except OSError:
            return None
        finally:
            connection.close()

    def call(self, method, **parameters):
        self.number += 1
        data = json.dumps({"id": self.number, "method": method, "params": parameters}).encode()
        size = bytes([0x80 | len(data)]) if len(data) < 126 else struct.pack("!BH", 0x80 | 126, len(data))
        self.socket.sendall(b"\x81" + size + bytes(4) + data)  # masked with zeros
        while True:
            answer = json.loads(self._receive())
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            if answer.get("method") == "Runtime.exceptionThrown" or (
                    answer.get("method") == "Log.entryAdded" and answer["params"]["entry"]["source"] in ("security", "javascript")):
                self.problems.append(answer["params"])

    def _receive(self):
        out = b""
        while True:
            first, second = self.file.read(2)
            size = second & 0x7f
            if size >= 126:
                size = struct.unpack("!H" if size == 126 else "!Q", self.file.read(2 if size == 126 else 8))[0]
            out += self.file.read(size)
            if first & 0x80:
                return out

    def open(self, address):
        self.call("Page.navigate", url=address)

    def value(self, script):
        """Of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, script, seconds=60):
        guarded = f"(() => {{ try {{ return {script}; }} catch {{ return null; }} }})()"  # the page may not be there yet
        try:
            return wait_for(lambda: self.value(guarded), script, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}; the page says: {self.value('document.body.innerText')}\n{self.problems}") from error

    def click(self, selector, x=None, y=None):
        """In the middle of the first element, or at a place in it."""
        box = self.value(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center'}}); "
                         "const b = e.getBoundingClientRect(); return [b.x, b.y, b.width, b.height]; })()")
        at = dict(x=box[0] + (box[2] / 2 if x is None else x), y=box[1] + (box[3] / 2 if y is None else y))
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left" if kind != "mouseMoved" else "none", clickCount=1, **at)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def key(self, name):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def screenshot(self, path):
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        self.process.kill()
        self.process.wait(60)
        for each in (self.file, self.socket):
            each.close()
        # Its helpers end by themselves and may still write there.
        deadline = time.monotonic() + 10
        while self.folder.exists() and time.monotonic() < deadline:
            shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def browser(tmp_path):
    opened = []

    def make(**how):
        opened.append(Browser(tmp_path, **how))
        return opened[-1]
    yield make
    for each in opened:
        each.close()

"""browser.py FOLDER CHROMIUM SCREENSHOTS: opens TensorBoard's pages of what write.cpp wrote in a headless Chromium (by its DevTools
protocol), waits for what they should show, fails on errors of the page, and takes pictures."""
import base64
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request

import websocket

import serve

folder, chromium, screenshots = sys.argv[1:]

# The text and the pictures of a page, with those of shadow trees and frames; and how many shapes it has drawn.
SEEN = """(() => {
    let text = [], images = [], shapes = 0;
    const visit = (node) => {
        if (node.nodeType === Node.TEXT_NODE && node.textContent.trim()) text.push(node.textContent.trim());
        if (node instanceof HTMLImageElement && node.complete && node.naturalWidth) images.push(node.naturalWidth + 'x' + node.naturalHeight);
        if (node.tagName === 'path' || node.tagName === 'rect') ++shapes;
        if (['STYLE', 'SCRIPT', 'TEMPLATE'].includes(node.tagName)) return;
        if (node.shadowRoot) visit(node.shadowRoot);
        if (node.tagName === 'IFRAME' && node.contentDocument) visit(node.contentDocument);
        for (const child of node.childNodes) visit(child);
    };
    visit(document);
    return {text, images, shapes};
})()"""


# A double click on the graph's box of a name, which opens it.
OPEN = """((name) => {
    const find = (node) => {
        if (node.matches?.('g.node') && node.getAttribute('data-name') === name) return node;
        for (const child of [...(node.shadowRoot ? [node.shadowRoot] : []), ...(node.children ?? [])]) {
            const found = find(child);
            if (found) return found;
        }
    };
    find(document).querySelector('.nodeshape > *').dispatchEvent(new MouseEvent('dblclick', {bubbles: true}));
})"""


class Page:
    def __init__(self, address):
        self.socket = websocket.create_connection(address, timeout=60, suppress_origin=True)
        self.number, self.errors = 0, []

    def call(self, method, **parameters):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.number:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self.note(message)

    def note(self, message):
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"])[:1000])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] == "error":
            self.errors.append("console: " + json.dumps(parameters["args"])[:1000])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append("log: " + parameters["entry"]["text"] + " " + parameters["entry"].get("url", ""))

    def evaluate(self, script):
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def screenshot(self, name):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(os.path.join(screenshots, name + ".png"), "wb") as file:
            file.write(base64.b64decode(data))


def missing(seen, words, images, shapes):
    result = [w for w in words if w not in seen["text"]] + [i for i in images if i not in seen["images"]]
    return result + ([f"{shapes} shapes, not {seen['shapes']}"] if seen["shapes"] < shapes else [])


def look(page, name, url, words, images=(), shapes=0):
    page.errors.clear()
    page.call("Page.navigate", url="about:blank")  # so that a change of what follows # loads anew
    page.call("Page.navigate", url=url)
    wait(page, name, words, images, shapes)


def wait(page, name, words, images=(), shapes=0):
    deadline = time.time() + 60
    while True:
        time.sleep(0.5)
        seen = page.evaluate(SEEN)
        lacks = missing(seen, words, images, shapes)
        if not lacks or time.time() > deadline:
            break
    time.sleep(1)  # for what is still moving in the picture, and for late errors
    page.evaluate("0")
    page.screenshot(name)
    assert not lacks, f"{name}: the page lacks {lacks}; it shows {seen}"
    assert not page.errors, f"{name}: {page.errors}"
    print(f"{name}: {len(seen['text'])} texts, {len(seen['images'])} images, {seen['shapes']} shapes")


def browse(server, address, tree_address, traced_address, data):
    command = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
               "--disable-background-networking", "--disable-component-update", "--window-size=1500,1000", "--remote-debugging-port=0",
               "--user-data-dir=" + data, "about:blank"]
    with open(os.path.join(folder, "chromium.log"), "w") as log:
        browser = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.time() + 90
        port_file = os.path.join(data, "DevToolsActivePort")
        targets = None
        while targets is None:
            assert browser.poll() is None, f"chromium ended: see {log.name}"
            assert server.poll() is None, "the server ended"
            assert time.time() < deadline, "chromium or the server does not answer"
            time.sleep(0.3)
            try:
                with open(port_file) as file:
                    port = int(file.readline())
                tags = json.loads(urllib.request.urlopen(address + "/data/plugin/scalars/tags", timeout=30).read())
                if "tree" in tags:  # the last but one that was written
                    targets = json.loads(urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=30).read())
            except (OSError, ValueError):
                pass
        page = Page(next(t for t in targets if t["type"] == "page")["webSocketDebuggerUrl"])
        for domain in ("Page", "Runtime", "Log"):
            page.call(domain + ".enable")
        look(page, "scalars", address + "/#scalars", ["loss", "accuracy", "both"], shapes=3)
        look(page, "histograms", address + "/#histograms", ["weights"], shapes=5)
        look(page, "images", address + "/#images", ["image", "digits"], ["48x32", "112x28"])
        look(page, "graph", address + "/#graphs", ["0_Conv2d", "6_Flatten", "10_Linear", "relu_1", "4×128"], shapes=10)
        look(page, "graph_of_a_tree", tree_address + "/#graphs", ["cell", "embedding", "classifier", "cross_entropy"], shapes=4)
        page.evaluate(OPEN + "('cell')")
        wait(page, "graph_of_a_tree_opened", ["call_1", "call_199"], shapes=200)
        look(page, "traced_graph", traced_address + "/#graphs", ["0_Conv2d", "6_Flatten", "10_Linear", "log_softmax", "images"], shapes=10)
        page.socket.close()
    finally:
        browser.terminate()
        browser.wait()


os.makedirs(screenshots, exist_ok=True)
with serve.tensorboard(folder) as (process, at), serve.tensorboard(os.path.join(folder, "tree")) as (_, tree_at), serve.tensorboard(
    os.path.join(folder, "traced")
) as (_, traced_at):
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browse(process, at, tree_at, traced_at, profile)
print("the pages are as they should be")

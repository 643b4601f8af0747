"""browser.py FOLDER CHROMIUM: types names into the search of the reference, in a headless Chromium (by its DevTools protocol, over
pipes), opens the first result with Enter, and looks whether the page has the signature and the text of what was searched. Fails on
errors of the page. FOLDER/search.png is the picture of a search."""
import base64
import fcntl
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

folder, chromium = sys.argv[1:]
index = (pathlib.Path(folder).resolve() / "html" / "index.html").as_uri()
with open(os.path.join(folder, "rows.json"), encoding="utf-8") as file:
    docs = {row["name"]: row["doc"] for row in json.load(file)}

# What is typed; what the page's signatures have; what it says, by the row of this name or as text.
NAMES = [
    ("tanh", "Tensor tanh(In x)", docs["tanh"]),
    ("add", "Tensor add(In a, Scalar b)", docs["add"]),
    ("clamp", "Tensor clamp(In x, double min", docs["clamp"]),
    ("sum", "Tensor sum(In x, const Dims& dims", docs["sum"]),
    ("softmax", "Tensor softmax(In x, Dim dim)", docs["softmax"]),
    ("cross_entropy", "cross_entropy(In ", docs["cross_entropy"]),
    ("matmul", "Tensor matmul(In a, In b)", docs["matmul"]),
    ("linalg::solve", "Tensor solve(In a, In b)", docs["linalg_solve"]),
    ("conv2d", "Tensor conv2d(In x, In weight, const Tensor& bias", docs["convolution"]),
    ("max_pool2d", "max_pool2d(In x, const Shape& kernel_size", docs["max_pool"]),
    ("gather", "Tensor gather(In x, Dim dim, In index)", docs["gather"]),
    ("nn::Linear", "Linear(std::int64_t in_features, std::int64_t out_features", "(..., in) -> (..., out)"),
]


class Page:
    """Chromium reads commands from its file descriptor 3 and answers to 4, each message ended by a 0."""

    def __init__(self, process, send, receive):
        self.process, self.send, self.receive = process, send, receive
        self.number, self.errors, self.session, self.read = 0, [], None, b""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.send, json.dumps(message).encode() + b"\0")
        while True:
            while b"\0" not in self.read:
                part = os.read(self.receive, 1 << 16)
                assert part, "chromium ended"
                self.read += part
            answer, _, self.read = self.read.partition(b"\0")
            answer = json.loads(answer)
            if answer.get("id") == self.number:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return answer["result"]
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(answer["params"]["exceptionDetails"])[:1000])
            elif answer.get("method") == "Log.entryAdded" and answer["params"]["entry"]["level"] == "error":
                self.errors.append(answer["params"]["entry"]["text"] + " " + answer["params"]["entry"].get("url", ""))

    def evaluate(self, script):
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def wait(self, what, condition):
        deadline = time.time() + 20
        while not self.evaluate(condition):
            assert time.time() < deadline, f"{what}: {condition} does not come true; errors: {self.errors}"
            time.sleep(0.05)

    def press(self, key, text=""):
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)


def search(page, name):
    page.call("Page.navigate", url=index)
    page.wait("the main page", f"location.href === {json.dumps(index)} && document.readyState === 'complete' && typeof entries === 'object'")
    page.press("/")  # puts the cursor into the search
    page.call("Input.insertText", text=name)
    page.wait(name, "document.querySelectorAll('#results li').length > 0")


def look_up(page, name, signature, says):
    search(page, name)
    if name == "softmax":
        with open(os.path.join(folder, "search.png"), "wb") as file:
            file.write(base64.b64decode(page.call("Page.captureScreenshot", format="png")["data"]))
    first = page.evaluate("document.querySelector('#results a b')?.textContent")
    assert first == name, f"{name}: the first result is {first}"
    page.press("Enter", "\r")
    page.wait(name, f"location.href !== {json.dumps(index)} && document.readyState === 'complete' && document.querySelector('h1') !== null")
    seen = page.evaluate(
        "({title: document.querySelector('h1').textContent, text: document.querySelector('main').innerText,"
        " signatures: [...document.querySelectorAll('pre.signature')].map((e) => e.innerText)})"
    )
    assert seen["title"] == name, f"{name}: the page is about {seen['title']}"
    assert any(signature in s for s in seen["signatures"]), f"{name}: no signature with {signature!r}, but {seen['signatures']}"
    assert " ".join(says.split()) in " ".join(seen["text"].split()), f"{name}: the page does not say {says!r}"
    assert not page.errors, f"{name}: {page.errors}"
    print(f"{name}: found")


def refused(*arguments):
    try:
        look_up(*arguments)
    except AssertionError as error:
        print(f"as it should be: {error}")
        return
    sys.exit(f"what is wrong passes: {arguments[1:]}")


def browse(page):
    for entry in NAMES:
        look_up(page, *entry)
    # What each op's name finds first, without typing.
    names = [name.replace("linalg_", "linalg::") for name in docs]
    firsts = page.evaluate(f"{json.dumps(names)}.map((name) => find(name)[0]?.[0])")
    wrong = [pair for pair in zip(names, firsts) if pair[0] != pair[1]]
    assert not wrong, f"these names find others first: {wrong}"
    print(f"{len(firsts)} names find themselves")
    # That this can fail: a name that is no op, and an op with another's signature or text.
    refused(page, "softmux", "softmux(", "")
    assert page.evaluate("document.querySelector('#results').textContent") == "Nothing found"
    refused(page, "tanh", "Tensor sinh(In x)", docs["tanh"])
    refused(page, "tanh", "Tensor tanh(In x)", docs["softmax"])


def above_standard(descriptor):  # so that it is not 3 or 4 itself
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10)


with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
    commands, send = (above_standard(d) for d in os.pipe())
    receive, answers = (above_standard(d) for d in os.pipe())
    arguments = [chromium, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--window-size=1300,900", "--remote-debugging-pipe",
                 "--user-data-dir=" + profile, "about:blank"]
    with open(os.path.join(folder, "chromium.log"), "w") as log:
        browser = subprocess.Popen(["bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "bash", *arguments], stdout=log, stderr=log,
                                   pass_fds=(commands, answers))
    os.close(commands)
    os.close(answers)
    try:
        browse(Page(browser, send, receive))
    finally:
        browser.terminate()
        browser.wait()
print("the search finds what it should")

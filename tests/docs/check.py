"""check.py FOLDER: whether the reference in FOLDER/html has every op: its text, its ONNX form, its gradient; for those that a header
declares the signatures, for element-wise ones the formulas. And whether no link leads nowhere."""
import glob
import html
import json
import os
import re
import sys

folder = sys.argv[1]
problems = []


def read(*path):
    with open(os.path.join(folder, *path), encoding="utf-8") as file:
        return file.read()


def text(page):
    return " ".join(html.unescape(re.sub(r"<[^>]*>", "", page)).split())


rows = json.loads(read("rows.json"))
has_onnx = any("onnx" in row for row in rows)
entries = json.loads(re.match(r"const entries = (.*);\n$", read("html", "search-data.js"), re.S)[1])
addresses = {}
for name, kind, address, _ in entries:
    if kind in ("op", "function", "row"):
        addresses.setdefault(name.replace("::", "_"), address)

# What a user can call, by the headers: without comments and macros, as in `Tensor softmax(In x, Dim dim);`.
declared = ""
for header in glob.glob(os.path.join(folder, "headers", "**", "*.h"), recursive=True):
    if not header.endswith(("onnx_form.h", "result_types.h")):
        declared += re.sub(r"//.*", "", read(header))
inside_linalg = "".join(re.findall(r"namespace tapir::linalg \{(.*?)\n\}", declared, re.S))


def is_callable(row):
    if "formula" in row:
        return True
    scope, name = (inside_linalg, row["name"].removeprefix("linalg_")) if row["name"].startswith("linalg_") else (declared, row["name"])
    return not row["name"].endswith(("_backward", "_gradient")) and bool(re.search(rf"^ *(inline )?(Tensor|\w*Result|ValuesIndices|std::\w+<[^;(]*>) {name}\(", scope, re.M))


callable_count = 0
for row in rows:
    name = row["name"]
    if name not in addresses:
        problems.append(f"{name}: no entry")
        continue
    if not os.path.exists(os.path.join(folder, "html", addresses[name])):
        problems.append(f"{name}: no page")
        continue
    page = read("html", addresses[name])
    shown = text(page)
    for what in [row["doc"], *row.get("onnx", [])]:
        if what and " ".join(what.split()) not in shown:
            problems.append(f"{name}: its page does not say {what!r}")
    if "<th>Gradient</th>" not in page or (has_onnx and "<th>ONNX</th>" not in page):
        problems.append(f"{name}: its page does not speak of its gradient, or of ONNX")
    if not is_callable(row):
        continue
    callable_count += 1
    plain = name.removeprefix("linalg_")
    if not any(re.search(rf"\b{plain}\(", text(s)) for s in re.findall(r'<pre class="signature">.*?</pre>', page, re.S)):
        problems.append(f"{name}: no signature")
    if "formula" not in row and not any(text(c) for c in re.findall(r'<div class="comment">(.*?)</div>', page, re.S)):
        problems.append(f"{name}: no comment (///) in its header")
    if "formula" in row:
        gradients = row["formula"]["backward"] if row["rule"] == "rule" else []
        if 'class="formula"' not in page or page.count('class="gradient"') != len(gradients):
            problems.append(f"{name}: no formula, or not all gradients")

pages = {os.path.basename(p): read("html", os.path.basename(p)) for p in glob.glob(os.path.join(folder, "html", "*.html"))}
ids = {name: set(re.findall(r' id="([^"]*)"', page)) for name, page in pages.items()}
links = [(name, link) for name, page in pages.items() for link in re.findall(r'href="([^"]*)"', page)]
links += [("the search", address) for _, _, address, _ in entries]
for name, link in links:
    if re.match(r"[a-z]+:", link):
        continue
    target, _, anchor = html.unescape(link).partition("#")
    if not os.path.exists(os.path.join(folder, "html", target)):
        problems.append(f"{name}: links to {link}, which is not there")
    elif anchor and anchor not in {html.unescape(i) for i in ids[target or name]}:
        problems.append(f"{name}: links to {link}, which has no such place")
if callable_count < 250:  # there are more: the declarations above were not understood
    problems.append(f"only {callable_count} ops are found in headers")
for problem in problems[:50]:
    print(problem)
print(f"{len(rows)} rows, {callable_count} that users call, {len(pages)} pages, {len(links)} links: {len(problems)} problems")
sys.exit(1 if problems else 0)

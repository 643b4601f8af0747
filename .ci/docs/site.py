"""site.py SOURCE LIST_OPS ELEMENTWISE OUT FILES: writes the reference of the library into OUT/html: a page for each op, function, class
and header, and the Markdown pages. FILES lists headers (.h) and pages (.md) of SOURCE, one a line. LIST_OPS prints the rows of the
ops, ELEMENTWISE (elementwise_rows.inc) has the names of those that headers get by macros. declarations.py reads the headers. Fails
where a page links to what is not there."""
import html
import json
import os
import re
import shutil
import subprocess
import sys

import markdown

from declarations import leading_comment, lines_of, read, read_declarations

source, list_ops, elementwise, out, list_of_files = sys.argv[1:]
files = read(list_of_files).split()
headers = [f for f in files if f.endswith(".h")]
here = os.path.dirname(os.path.abspath(__file__))
site = os.path.join(out, "html")
problems = []

# --- Text as HTML -----------------------------------------------------------------------------------------------------

known = {}  # the address of each name that text may speak of


def linked(escaped):
    """Text with links to the pages of the functions and classes that it names."""

    def link(found):
        name, call = found[1], found[2]
        address = known.get(name.replace("tapir::", ""))
        if address and (call or "_" in name or "::" in name or name[0].isupper()):
            return f'<a href="{address}">{name}</a>{call}'
        return found[0]

    return re.sub(r"(?<![\w.:/#&])([A-Za-z_]\w*(?:::\w+)*)(\(?)", link, escaped)


def prose(lines):
    """A comment as HTML: paragraphs, code that is set in by four, lists of dashes."""
    result, paragraph, code = [], [], []

    def flush():
        if paragraph:
            parts = [linked(html.escape(part)) for part in re.split(r"`([^`]*)`", " ".join(paragraph))]
            parts[1::2] = [f"<code>{part}</code>" for part in parts[1::2]]
            result.append("<p>" + "".join(parts) + "</p>")
            paragraph.clear()
        while code and not code[-1].strip():
            code.pop()
        if code:
            result.append("<pre>" + linked(html.escape("\n".join(code))) + "</pre>")
            code.clear()

    for line in lines:
        if line.startswith("    ") or (code and not line.strip()):
            if paragraph:
                flush()
            code.append(line[4:])
            continue
        if code or not line.strip() or re.match(r"\s*- ", line):
            flush()
        if line.strip():
            paragraph.append(line.strip())
    flush()
    return "\n".join(result)


def first_sentence(lines):
    text = " ".join(line.strip() for line in lines if not line.startswith("    "))
    found = re.match(r"(.*?[.:])(\s|$)", text)
    return (found[1].rstrip(":") if found else text).replace("`", "")


def pre(text, css="signature"):
    return f'<pre class="{css}">{linked(html.escape(text))}</pre>'


search = []  # [name, kind, address, summary]


def write(address, title, body):
    path = os.path.join(site, address)
    assert not os.path.exists(path), f"two pages have the address {address}"
    names = [("index.html", "Tapir"), ("all-ops.html", "All ops"), ("all-headers.html", "All headers")]
    names += [page for page in pages.values() if page[0] != "index.html"]
    navigation = "\n".join(f'<a href="{a}"{" class=here" if a == address else ""}>{html.escape(t)}</a>' for a, t in names)
    with open(path, "w", encoding="utf-8") as file:
        file.write(PAGE.replace("@TITLE@", html.escape(title)).replace("@NAVIGATION@", navigation).replace("@BODY@", body))


PAGE = read(os.path.join(here, "page.html"))

# --- README pages -----------------------------------------------------------------------------------------------------

pages = {}  # of each Markdown file: its address and title
anchors = {}  # of each Markdown file


def header_address(header):
    return "header-" + header.replace("/", "-").removesuffix(".h") + ".html"


def find_pages():
    for path in (f for f in files if f.endswith(".md")):
        address = "index.html" if path == "README.md" else path.removesuffix("/README.md").removesuffix(".md").replace("/", "-").lower() + ".html"
        text = re.sub(r"^```.*?^```", "", read(os.path.join(source, path)), flags=re.M | re.S)
        title = re.search(r"^# *(.*)", text, re.M)
        if not title:
            problems.append(f"{path} has no title")
        pages[path] = (address, title[1].strip("` ") if title else path)


def slug(text, _separator=""):
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def target_of(page, link):
    """Where a page's link leads to in the reference; None: to nothing that is in it."""
    if re.match(r"[a-z]+:", link):
        return link
    path, _, anchor = link.partition("#")
    path = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
    there = os.path.join(source, path)
    if not os.path.exists(there):
        problems.append(f"{page} links to {link}, which is not there")
        return None
    if os.path.isdir(there):
        path = os.path.join(path, "README.md") if path != "." else "README.md"
        if path not in pages:
            return None
    if path in pages:
        if anchor and anchor not in anchors[path]:
            problems.append(f"{page} links to {link}, and {path} has no such heading")
        return pages[path][0] + ("#" + anchor if anchor else "")
    if path in headers:
        return header_address(path)
    copy = "source-" + path.replace("/", "-") + ".txt"
    shutil.copyfile(there, os.path.join(site, copy))
    return copy


def write_pages():
    texts = {}
    for path in pages:
        reader = markdown.Markdown(
            extensions=["tables", "fenced_code", "sane_lists", "toc"], extension_configs={"toc": {"slugify": slug, "permalink": False}}
        )
        # A list may follow a line of text at once, as on GitHub; here it needs an empty line.
        text = read(os.path.join(source, path))
        parts = re.split(r"(^```.*?^```)", text, flags=re.M | re.S)
        parts[::2] = [re.sub(r"^(?![-*] |\d+\. |\s)(.+)\n(?=(?:[-*]|\d+\.) )", r"\1\n\n", part, flags=re.M) for part in parts[::2]]
        texts[path] = reader.convert("".join(parts))
        anchors[path] = set(re.findall(r'<h\d id="([^"]*)"', texts[path]))
        address, title = pages[path]
        for level, anchor, heading in re.findall(r'<h([1-4]) id="([^"]*)">(.*?)</h\1>', texts[path]):
            heading = html.unescape(re.sub(r"<[^>]*>", "", heading))
            search.append([heading, "page", address + ("" if level == "1" else "#" + anchor), "" if level == "1" else title])
    for path, text in texts.items():

        def link(found):
            target = target_of(path, html.unescape(found[1]))
            return f'<a href="{target}">{found[2]}</a>' if target else found[2]

        text = re.sub(r'<a href="([^"]*)">(.*?)</a>', link, text, flags=re.S)
        text = re.sub(r"<code>(\w+(?:::\w+)*)(\(?)([^<]*)</code>", code_link, text)
        write(pages[path][0], pages[path][1], text)


def code_link(found):
    """`softmax()` or `Tape` in a page."""
    name, call, rest = found[1], found[2], found[3]
    address = known.get(name)
    if not address or not (call or "_" in name or name[0].isupper() or "::" in name) or (rest and not call):
        return found[0]
    return f'<a href="{address}"><code>{name}{call}{rest}</code></a>'


# --- Ops and functions ------------------------------------------------------------------------------------------------

RULES = {
    "NonDiff": "None: nothing flows back through it.",
    "Composed": "That of the ops that it calls, which are recorded in its place.",
    "Given": "None: it makes a tensor of nothing, or takes no more than the shape and the dtype of its input.",
    "Overwritten": "None: it fills a tensor in place, and what was there gets no gradient.",
    "rule": "It has a backward rule.",
}
TYPES = {
    "Float": "Floating dtypes; integers and bool are computed in the default floating dtype.",
    "Number": "Integers stay integers.",
    "Integral": "Integers and bool only (DTypeError).",
    "Predicate": "The result is bool; nothing flows back.",
}


def formula_text(text):
    text = re.sub(r"\bK\((-?[\d.e-]+|__builtin_inf\(\))\)", r"\1", text)
    return text.replace("__builtin_inf()", "inf").replace("std::numbers::", "")


def onnx_text(row):
    return f"<code>{html.escape(', '.join(row['onnx']))}</code>" if "onnx" in row else "No operator: it is the operand, a constant, or nothing a model has."


def row_html(row):
    result = [f'<p class="doc">{linked(html.escape(row["doc"]))}</p>']
    facts = []
    formula = row.get("formula")
    if formula:
        facts.append(("Dtypes", html.escape(TYPES[formula["types"]])))
        facts.append(("Formula", f'<code class="formula">{linked(html.escape(formula_text(formula["forward"])))}</code>'))
    if has_onnx:
        facts.append(("ONNX", f'<span class="onnx">{onnx_text(row)}</span>'))
    if formula and formula["backward"] and row["rule"] == "rule":
        names = ["x"] if len(formula["backward"]) == 1 else ["a", "b", "c"]
        gradients = [
            f'of {name}: <code class="gradient">{"0" if g == "ZeroGrad" else linked(html.escape(formula_text(g)))}</code>'
            for name, g in zip(names, formula["backward"])
        ]
        facts.append(("Gradient", "<br>".join(gradients) + '<br><span class="note">g: the gradient of the result, y: the result</span>'))
    else:
        facts.append(("Gradient", RULES[row["rule"]]))
    result.append("<table class=facts>" + "".join(f"<tr><th>{k}</th><td>{v}</td></tr>" for k, v in facts) + "</table>")
    return "\n".join(result)


def samples_html(row):
    codes = list(dict.fromkeys(s["code"] for s in row["samples"]))[:8]
    return "<h2>Calls</h2><p>As the tests make them, of tensors x[0], x[1], ...</p>" + pre("\n".join(codes), "calls") if codes else ""


def entries_html(declared):
    """Signatures with their comments. A comment that stands above several is written once."""
    result, last = [], None
    for d in declared:
        comment = tuple(d.comment)
        note = ""
        if d.neighbour_name != d.name:
            note = f'<p class="note">The header says above, of <code>{html.escape(d.neighbour_name)}</code>:</p>'
        if (comment, note) == last:
            result.insert(-1, pre(d.signature))
            continue
        result += [pre(d.signature), f'<div class="comment">{note}{prose(d.comment)}</div>']
        last = (comment, note)
    return "\n".join(result)


def about(header):
    return f'<h2>About <a href="{header_address(header)}">{header}</a></h2>{prose(leading_comment(header))}'


def write_functions():
    """One page for each function, with the methods of its name; and one for each row that no function has the name of."""
    methods = {}
    for d in members["tapir::Tensor"]:
        methods.setdefault(d.name, []).append(d)
    by_row = {row["name"]: row for row in rows}
    called, callers = {}, {}  # the rows whose examples call a function; the methods and classes that a row's examples name
    for row in rows:
        for sample in row["samples"]:
            for name in set(re.findall(r"(?<!\.)\b((?:\w+::)*\w+)\(", sample["code"])):
                called.setdefault(name, {})[row["name"]] = row
            for name in re.findall(r"^x\[0\]\.(\w+)\(|\b((?:\w+::)+[A-Z]\w+)\b", sample["code"]):
                callers.setdefault(row["name"], set()).update(filter(None, name))
        if own := {name for name in (row["name"], row["name"] + "_") if name in methods}:
            callers[row["name"]] = own
    for name, overloads in functions.items():
        address = function_address(name)
        row = by_row.get(name.replace("::", "_"))
        plain = name.split("::")[-1]
        of_tensor = methods.get(plain, []) + methods.get(plain + "_", []) if "::" not in name else []
        comments = [row["doc"].splitlines()] if row else []
        comments += [d.comment for d in overloads + of_tensor if d.comment and d.neighbour_name == d.name]
        summary = first_sentence(comments[0]) if comments else ""
        is_op = bool(row) or overloads[0].header.startswith("ops/")
        body = [f"<h1>{html.escape(name)}</h1>"]
        if row:
            body.append(row_html(row))
        others = [] if row else list(called.get(name, {}).values())
        body += ["<h2>Signatures</h2>", entries_html(overloads)]
        if of_tensor:
            body += ['<h2>Methods of <a href="class-Tensor.html">Tensor</a></h2>', entries_html(of_tensor)]
        if others:
            body.append("<h2>Recorded as</h2><p>The op whose examples call it:</p>")
        for other in others:
            body += [f'<h3><a href="{row_address(other["name"])}">{other["name"]}</a></h3>', row_html(other)]
        if row:
            body.append(samples_html(row))
        body += [about(header) for header in dict.fromkeys(d.header for d in overloads)]
        write(address, name, "\n".join(body))
        search.append([name, "op" if is_op else "function", address, summary])
        listed.append((overloads[0].header, name, address, summary, is_op, row))
    for name, row in by_row.items():
        if row_address(name) != f"row-{name}.html":
            continue
        body = [f"<h1>{name}</h1>", "<p>An op as tapes, graphs and messages name it; no function has its name.</p>", row_html(row)]
        body.append("<h2>Signatures</h2>")
        for function in sorted(f for f in called if f in functions and name in called[f] and f.replace("::", "_") not in by_row):
            body += [f'<h3><a href="{function_address(function)}">{html.escape(function)}</a></h3>', entries_html(functions[function])]
        for other in sorted(callers.get(name, ())):
            if other in methods:
                body += [f'<h3><a href="class-Tensor.html#{other}">Tensor::{other}</a></h3>', entries_html(methods[other])]
            elif other in classes and not other.endswith("Options"):
                body += [f'<h3><a href="{class_address(other)}">{other}</a></h3>', entries_html([classes[other]])]
        if body[-1] == "<h2>Signatures</h2>":
            body[-1] = "<p>Users do not call it: rules and other ops do.</p>"
        body.append(samples_html(row))
        write(row_address(name), name, "\n".join(body))
        search.append([name, "row", row_address(name), row["doc"]])


def function_address(name):
    return "op-" + name.replace("::", ".") + ".html"


def row_address(name):
    for function in functions:
        if function.replace("::", "_") == name:
            return function_address(function)
    return f"row-{name}.html"


# --- Classes and headers ----------------------------------------------------------------------------------------------


def class_address(name):
    return "class-" + name.replace("::", ".") + ".html"


def write_classes():
    for name, d in classes.items():
        body = [f"<h1>{html.escape(name)}</h1>", pre(d.signature), prose(d.comment)]
        inside, seen, i = members["tapir::" + name], set(), 0
        if inside:
            body.append("<h2>Members</h2>")
        while i < len(inside):
            m = inside[i]
            group = [m]
            while i + len(group) < len(inside) and inside[i + len(group)].name == m.name:
                group.append(inside[i + len(group)])
            i += len(group)
            anchor = "" if m.name in seen else f' id="{html.escape(m.name)}"'
            comment = entries_html(group)
            if name == "Tensor" and (function := m.name.removesuffix("_")) in functions:
                comment += f'<p class="note">See <a href="{function_address(function)}">{function}</a></p>'
            body.append(f'<div class="member"{anchor}>{comment}</div>')
            is_special = m.name == d.name or m.name.startswith(("~", "operator"))
            if anchor and not is_special:
                search.append([f"{name}::{m.name}", "member", f"{class_address(name)}#{m.name}", first_sentence(m.comment)])
            seen.add(m.name)
        body.append(about(d.header))
        write(class_address(name), name, "\n".join(body))
        search.append([name, d.kind, class_address(name), first_sentence(d.comment)])


def write_headers():
    for header in headers:
        inside = [d for d in everything if d.header == header]
        body, last = [f"<h1>{header}</h1>", prose(leading_comment(header))], None
        body.append(pre(f'#include <tapir/{header}>'))
        if header == "ops/elementwise/elementwise.h":
            inside = [d for d in inside if not (d.kind == "function" and d.name in elementwise_names and d.line == elementwise_line)]
            body.append("<h2>From the rows</h2><p>" + ", ".join(f'<a href="{function_address(n)}">{n}</a>' for n in elementwise_names) + "</p>")
        for d in inside:
            anchor = "" if d.name == last or d.kind in ("class", "struct", "union") else f' id="{html.escape(d.name)}"'
            shown = pre(d.signature)
            if d.comment and d.neighbour_name == d.name and (not d.neighbour or d.name != last):
                shown += f'<div class="comment">{prose(d.comment)}</div>'
            if d.page:
                shown = shown.replace('<pre class="signature">', f'<pre class="signature"><a class="more" href="{d.page}">page</a>', 1)
            body.append(f'<div class="member"{anchor}>{shown}</div>')
            if anchor and not d.page and not d.name.startswith("operator"):
                summary = first_sentence(d.comment) if d.neighbour_name == d.name else ""
                search.append([d.qualified, d.kind, f"{header_address(header)}#{d.name}", summary])
            last = d.name
        write(header_address(header), header, "\n".join(body))
        search.append([header, "header", header_address(header), first_sentence(leading_comment(header))])
    body = ["<h1>All headers</h1>"]
    for folder in dict.fromkeys(os.path.dirname(header) for header in headers):
        body.append(f"<h2>{folder or 'tapir'}</h2><table>")
        for header in (h for h in headers if os.path.dirname(h) == folder):
            about = html.escape(first_sentence(leading_comment(header)))
            body.append(f'<tr><td><a href="{header_address(header)}">{header}</a></td><td>{about}</td></tr>')
        body.append("</table>")
    write("all-headers.html", "All headers", "\n".join(body))


def write_list():
    body = ["<h1>All ops</h1>"]
    by_header = {}
    for header, *op in listed:
        by_header.setdefault(header, []).append(op)
    for header in headers:
        ops = [op for op in by_header.get(header, []) if op[3]]
        if ops:
            body.append(f'<h2><a href="{header_address(header)}">{header}</a></h2><table>')
            for name, address, summary, _, row in sorted(ops):
                onnx = onnx_text(row) if row and has_onnx else ""
                body.append(f'<tr><td><a href="{address}">{name}</a></td><td>{html.escape(summary)}</td><td>{onnx}</td></tr>')
            body.append("</table>")
    write("all-ops.html", "All ops", "\n".join(body))


# --- All of it --------------------------------------------------------------------------------------------------------

rows_text = subprocess.run([list_ops, f"{out}/op.onnx"], check=True, capture_output=True, text=True).stdout
rows = json.loads(rows_text)
has_onnx = any("onnx" in row for row in rows)  # not where the build has none
listed = []
shutil.rmtree(site, ignore_errors=True)
os.makedirs(site)
with open(os.path.join(out, "rows.json"), "w", encoding="utf-8") as file:
    file.write(rows_text)
everything, members = read_declarations(source, headers, elementwise, out)
elementwise_names = sorted(row["name"] for row in rows if "formula" in row)
elementwise_line = next(i for i, line in enumerate(lines_of["ops/elementwise/elementwise.h"], 1) if "elementwise_rows.inc" in line)
functions = {}  # by their names, without operators and what speaks of ONNX values and types alone
for d in everything:
    if d.kind == "function" and not d.name.startswith("operator") and d.header not in ("ops/onnx_form.h", "autograd/result_types.h"):
        functions.setdefault(d.qualified, []).append(d)
        d.page = function_address(d.qualified)
        known[d.qualified] = d.page
    elif d.kind in ("class", "struct", "union"):
        d.page = class_address(d.qualified)
        known[d.qualified] = d.page
classes = {d.qualified: d for d in everything if d.kind in ("class", "struct", "union")}
for overloads in functions.values():
    overloads.sort(key=lambda d: not d.header.startswith("ops/"))
for name, address in list(known.items()):  # also by their last names, where these say which it is
    plain = name.split("::")[-1]
    if sum(n.split("::")[-1] == plain for n in known if "::" in n) == 1:
        known.setdefault(plain, address)
find_pages()
for row in rows:
    known.setdefault(row["name"], row_address(row["name"]))
write_functions()
write_classes()
write_pages()
write_headers()
write_list()
for name in ("style.css", "search.js"):
    shutil.copyfile(os.path.join(here, name), os.path.join(site, name))
for problem in problems:
    print(problem, file=sys.stderr)
if problems:
    sys.exit(1)
with open(os.path.join(site, "search-data.js"), "w", encoding="utf-8") as file:  # last: the build takes it for the whole
    file.write("const entries = " + json.dumps(search, ensure_ascii=False, indent=0) + ";\n")

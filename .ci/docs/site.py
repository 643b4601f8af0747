"""site.py SOURCE LIST_OPS ELEMENTWISE OUT FILE...: writes the reference of the library into OUT/html: a page for each op, function, class
and header, and the Markdown pages. FILE are headers (.h) and pages (.md) of SOURCE. LIST_OPS prints the rows of the ops, ELEMENTWISE
(elementwise_rows.inc) has the names of those that headers get by macros. Doxygen says what the headers declare, their text what the
comments say. Fails where a page links to what is not there."""
import html
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import markdown

source, list_ops, elementwise, out, *files = sys.argv[1:]
headers = [f for f in files if f.endswith(".h")]
here = os.path.dirname(os.path.abspath(__file__))
site = os.path.join(out, "html")
problems = []


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


# --- What Doxygen and the comments say --------------------------------------------------------------------------------

DOXYFILE = """
INPUT = .
RECURSIVE = YES
FILE_PATTERNS = *.h
OUTPUT_DIRECTORY = ..
STRIP_FROM_PATH = .
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
XML_PROGRAMLISTING = NO
EXTRACT_ALL = YES
MACRO_EXPANSION = YES
SEARCH_INCLUDES = NO
CLASS_GRAPH = NO
HAVE_DOT = NO
QUIET = YES
WARNINGS = NO
"""


def run_doxygen():
    """Of copies of the headers in which the rows of element-wise ops stand where they are included, all on that line."""
    folder = os.path.join(out, "headers")
    for left in (folder, os.path.join(out, "xml")):
        shutil.rmtree(left, ignore_errors=True)
    names = read(elementwise).split("#ifdef TAPIR_RULE_ROWS")[0]
    rows_line = " ".join(line for line in names.splitlines() if line.startswith("TAPIR_"))
    assert rows_line, f"{elementwise} has no rows"
    for header in headers:
        text = read(os.path.join(source, header))
        path = os.path.join(folder, header)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(re.sub(r'#include "tapir/core/elementwise_rows.inc"', rows_line, text))
    done = subprocess.run(["doxygen", "-"], input=DOXYFILE, text=True, cwd=folder, capture_output=True)
    assert done.returncode == 0, f"doxygen failed:\n{done.stderr}"


lines_of = {}  # of each header


def is_declaration(line):
    return line.strip() != "" and not re.match(r"\s*(//|#|\}|namespace\b|public:|private:|protected:)", line)


def comment_of(header, line):
    """The comment of what is declared in a line (from 1 on), as lines; and None, or the line of the declaration above which it
    stands, where that is a neighbour: it has none of its own, and no empty line is between."""
    lines = lines_of[header]
    first = line - 1
    # Up to where the declaration begins.
    while first > 0 and is_declaration(lines[first - 1]) and not re.search(r"[;{}:]\s*(//.*)?$|\)\\?$", lines[first - 1]):
        first -= 1
    while first > 0 and re.match(r"\s*(template\b|requires\b|\[\[)", lines[first - 1]):
        first -= 1
    own, at = True, first
    while at > 0 and not lines[at - 1].strip().startswith("//"):
        above = lines[at - 1]
        indent = len(above) - len(above.lstrip())
        if not above.strip() or above.strip().startswith("#") or indent < len(lines[first]) - len(lines[first].lstrip()):
            at = 0
            break
        own, at = False, at - 1
    above = []
    stands_above = at
    while at > 0 and (found := re.match(r"\s*///(?!<) ?(.*)", lines[at - 1])):
        above.insert(0, found[1])
        at -= 1
    behind = ""
    last = line - 1
    while is_declaration(lines[last]) and not re.search(r"[;{}]\s*(//.*)?$", lines[last]):
        last += 1
    if is_declaration(lines[last]) and (found := re.search(r"[;{},)]\s*//(?:/<)?\s*(.*)$", lines[last])):
        behind = re.sub(r"^NOLINT\S*\s*(: implicit by design)?", "", found[1])
    own_text = (above if own else []) + ([behind] if behind else [])
    if own_text:
        return own_text, None
    return above, stands_above + 1 if above else None


class Declared:
    """A function, class, variable, type or enum of a header."""

    def __init__(self, element, kind, scope):
        self.kind = kind
        self.scope = scope  # "tapir", "tapir::nn", "tapir::Tensor"
        self.name = element.findtext("name") or element.findtext("compoundname").split("::")[-1]
        place = element.find("location")
        self.header, self.line = place.get("declfile", place.get("file")), int(place.get("declline", place.get("line")))
        self.comment, self.neighbour = comment_of(self.header, self.line)
        self.signature = signature(element, kind, self.name)
        self.page = None
        self.neighbour_name = self.name  # of the one that the comment was written for

    @property
    def qualified(self):
        return "::".join((self.scope + "::" + self.name).split("::")[1:])


def text_of(element):
    return " ".join("".join(element.itertext()).split()) if element is not None else ""


def tidy(text):
    return text.replace(" &", "&").replace(" *", "*").replace("< ", "<").replace(" >", ">")


def signature(element, kind, name):
    parameters = [
        " ".join(filter(None, [tidy(text_of(p.find("type"))), p.findtext("declname")])) + (" = " + text_of(p.find("defval")) if p.find("defval") is not None else "")
        for p in element.findall("templateparamlist/param")
    ]
    before = f"template <{', '.join(parameters)}>\n" if parameters else ""
    if kind in ("class", "struct", "union"):
        bases = [b.text for b in element.findall("basecompoundref") if b.get("prot") == "public"]
        return f"{before}{kind} {name}" + (" : " + ", ".join(b.replace("tapir::", "") for b in bases) if bases else "")
    type_text = tidy(text_of(element.find("type")))
    if kind == "function":
        arguments = (element.findtext("argsstring") or "").replace("< ", "<").replace(" >", ">")
        arguments = re.sub(r",? *(const )?Loc *&?(loc|line)=Loc::current\(\)", "", arguments)  # every function has it
        arguments = re.sub(r" ([&*]+)", r"\1 ", re.sub(r"(\w|>|\))=(?=[^=])", r"\1 = ", arguments))
        return re.sub(r"\) *= *", ") = ", f"{before}{type_text + ' ' if type_text else ''}{name}{arguments}")
    if kind == "enum":
        values = [v.findtext("name") for v in element.findall("enumvalue")]
        return f"enum {'class ' if element.get('strong') == 'yes' else ''}{name} {{ {', '.join(values)} }}"
    if kind == "typedef":
        return f"{before}using {name} = {type_text}"
    initializer = text_of(element.find("initializer"))
    return f"{before}{type_text} {name}{element.findtext('argsstring') or ''}" + (f" {initializer}" if 0 < len(initializer) < 60 else "")


def is_public_scope(scope):
    return scope.split("::")[0] == "tapir" and "detail" not in scope.split("::") and "@" not in scope and "<" not in scope


def are_alike(a, b):
    """Whether two functions side by side are variants of each other: amax and amin, scatter and scatter_add, zeros_like and full_like."""
    if a.kind != "function" or b.kind != "function":
        return False
    same_arguments = a.signature.split("(", 1)[1] == b.signature.split("(", 1)[1]
    one_begins_the_other = a.name.startswith(b.name) or b.name.startswith(a.name)
    same_end = "_" in a.name and a.name.rsplit("_", 1)[1:] == b.name.rsplit("_", 1)[1:]
    return same_arguments or one_begins_the_other or same_end or re.sub(r"\d", "", a.name) == re.sub(r"\d", "", b.name)


def read_declarations():
    """Everything public that the headers declare, in their order; and of each class its members."""
    declared, members = [], {}
    folder = os.path.join(out, "xml")
    for compound in ElementTree.parse(os.path.join(folder, "index.xml")).getroot():
        kind, name = compound.get("kind"), compound.findtext("name")
        if kind not in ("namespace", "class", "struct", "union") or not is_public_scope(name):
            continue
        element = ElementTree.parse(os.path.join(folder, compound.get("refid") + ".xml")).find("compounddef")
        inside = [
            Declared(m, m.get("kind"), name)
            for section in element.findall("sectiondef")
            for m in section.findall("memberdef")
            if m.get("prot") == "public" and m.get("kind") in ("function", "variable", "typedef", "enum") and m.findtext("name")
        ]
        if kind == "namespace":
            declared += [d for d in inside if not d.name.startswith(("@", "k_"))]
        elif element.get("prot", "public") == "public":
            declared.append(Declared(element, kind, "::".join(name.split("::")[:-1])))
            members[name] = sorted(inside, key=lambda d: d.line)
    declared.sort(key=lambda d: (headers.index(d.header), d.line))
    for inside in (declared, *members.values()):
        for d in inside:
            if d.neighbour:
                above = [other for other in inside if other.header == d.header and d.neighbour <= other.line < d.line]
                d.neighbour_name = above[0].name if above else ""
            # A comment holds for functions that follow it at once and are of its kind; among members for those of the same name.
            is_made = d.scope.endswith("::" + d.name)  # a constructor
            if is_made or (d.neighbour_name != d.name and not (inside is declared and d.neighbour and above and are_alike(above[0], d))):
                d.comment, d.neighbour, d.neighbour_name = ([] if d.neighbour else d.comment), None, d.name
    return declared, members


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
            parts = re.split(r"`([^`]*)`", " ".join(paragraph))
            result.append("<p>" + "".join(f"<code>{linked(html.escape(p))}</code>" if i % 2 else linked(html.escape(p)) for i, p in enumerate(parts)) + "</p>")
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


def write(address, title, body, css=""):
    path = os.path.join(site, address)
    assert not os.path.exists(path), f"two pages have the address {address}"
    names = [(a, t) for a, t in ([("index.html", "Tapir"), ("all-ops.html", "All ops"), ("all-headers.html", "All headers")] + [(p, t) for p, t in pages.values() if p != "index.html"])]
    navigation = "\n".join(f'<a href="{a}"{" class=here" if a == address else ""}>{html.escape(t)}</a>' for a, t in names)
    with open(path, "w", encoding="utf-8") as file:
        file.write(
            PAGE.replace("@TITLE@", html.escape(title)).replace("@NAVIGATION@", navigation).replace("@CSS@", css).replace("@BODY@", body)
        )


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
    if "onnx" in row:
        return f"<code>{html.escape(row['onnx'])}</code>" + (f" ({html.escape(row['onnx_parts'])})" if "onnx_parts" in row else "")
    if row["onnx_parts"] == "custom":
        return "No operator of its own: it is written as several (custom)."
    return f"No operator of its own: <code>{html.escape(row['onnx_parts'])}</code>"


def row_html(row, with_doc=True):
    result = [f'<p class="doc">{linked(html.escape(row["doc"]))}</p>'] if with_doc else []
    facts = []
    formula = row.get("formula")
    if formula:
        facts.append(("Dtypes", html.escape(TYPES[formula["types"]])))
        facts.append(("Formula", f'<code class="formula">{linked(html.escape(formula_text(formula["forward"])))}</code>'))
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
    text = leading_comment(header)
    return f'<h2>About <a href="{header_address(header)}">{header}</a></h2>{prose(text)}' if text else f'<p>Declared in <a href="{header_address(header)}">{header}</a></p>'


def leading_comment(header):
    result = []
    for line in lines_of[header]:
        if not line.startswith("//"):
            break
        result.append(re.sub(r"^// ?", "", line))
    return result


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
        summary = row["doc"] if row else next((first_sentence(d.comment) for d in overloads + of_tensor if d.comment and d.neighbour_name == d.name), "")
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
            if not anchor == "" and not is_special:
                search.append([f"{name}::{m.name}", "member", f"{class_address(name)}#{m.name}", first_sentence(m.comment)])
            seen.add(m.name)
        body.append(about(d.header))
        write(class_address(name), name, "\n".join(body))
        search.append([name, d.kind, class_address(name), first_sentence(d.comment)])


def write_headers():
    folders = {}
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
                search.append([d.qualified, d.kind, f"{header_address(header)}#{d.name}", first_sentence(d.comment) if d.neighbour_name == d.name else ""])
            last = d.name
        write(header_address(header), header, "\n".join(body))
        search.append([header, "header", header_address(header), first_sentence(leading_comment(header))])
        folders.setdefault(os.path.dirname(header) or "tapir", []).append((header, inside))
    body = ["<h1>All headers</h1>"]
    for folder, inside in folders.items():
        body.append(f"<h2>{folder}</h2><table>")
        for header, _ in inside:
            body.append(f'<tr><td><a href="{header_address(header)}">{header}</a></td><td>{html.escape(first_sentence(leading_comment(header)))}</td></tr>')
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
                body.append(f'<tr><td><a href="{address}">{name}</a></td><td>{html.escape(summary)}</td><td>{onnx_text(row) if row else ""}</td></tr>')
            body.append("</table>")
    write("all-ops.html", "All ops", "\n".join(body))


# --- All of it --------------------------------------------------------------------------------------------------------

rows_text = subprocess.run([list_ops], check=True, capture_output=True, text=True).stdout
rows = json.loads(rows_text)
listed = []
shutil.rmtree(site, ignore_errors=True)
os.makedirs(site)
with open(os.path.join(out, "rows.json"), "w", encoding="utf-8") as file:
    file.write(rows_text)
run_doxygen()
for header in headers:
    lines_of[header] = read(os.path.join(source, header)).splitlines()
everything, members = read_declarations()
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

"""What the headers declare, by Doxygen, and what their comments say, by their text: each `///` comment above a declaration or behind it.
A comment also holds for functions of its kind that follow without an empty line: see are_alike()."""
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


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


def run_doxygen(source, headers, elementwise, out):
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
    parameters = []
    for p in element.findall("templateparamlist/param"):
        parameters.append(" ".join(filter(None, [tidy(text_of(p.find("type"))), p.findtext("declname")])))
        if p.find("defval") is not None:
            parameters[-1] += " = " + text_of(p.find("defval"))
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


def read_declarations(source, headers, elementwise, out):
    """Everything public that the headers declare, in their order; and of each class its members."""
    run_doxygen(source, headers, elementwise, out)
    for header in headers:
        lines_of[header] = read(os.path.join(source, header)).splitlines()
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
            declared += inside
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


def leading_comment(header):
    """What a header says of itself, above everything else."""
    result = []
    for line in lines_of[header]:
        if not line.startswith("//"):
            break
        result.append(re.sub(r"^// ?", "", line))
    return result

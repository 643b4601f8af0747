#!/usr/bin/env python3
"""Every error message of the library with a text that the tests got of it.

catalogue.py [--update] [--cuda] LOG...

Finds the formats of all messages in the sources, finds in the logs (thrown.cpp writes them) the texts made of each, and
compares catalogue.txt beside this script with what came out: each file, its formats in order, and of each the error's type
and one text. --update writes it anew. A format without a text fails the test, unless UNREACHED says why it has none. With
--cuda the logs are of a build with the CUDA device (the emulated one), and what only such a build can throw is compared;
without it, all the rest is.
"""
import difflib
import json
import re
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CATALOGUE = Path(__file__).with_name("catalogue.txt")
FOLDERS = ("core", "autograd", "ops", "cuda", "nn", "optim")

# What no test can bring about, by file and the beginning of the format, and why not.
UNREACHED = {
    ("autograd/trace/graph/edit.cpp", "Graph::check: %{} is made twice"): "of a mistake in the library: tests of passes look for it",
    ("autograd/trace/graph/edit.cpp", "Graph::check: two values are %{}"): "of a mistake in the library: tests of passes look for it",
    ("autograd/trace/graph/edit.cpp", "Graph::check: %{} does not know its maker"): "of a mistake in the library: tests of passes look for it",
    ("autograd/trace/graph/edit.cpp", "Graph::check: {} has another place"): "of a mistake in the library: tests of passes look for it",
    ("autograd/trace/graph/edit.cpp", "Graph::check: {} uses %{} before"): "of a mistake in the library: tests of passes look for it",
    ("autograd/trace/graph/edit.cpp", "Graph::check: %{} does not know that"): "of a mistake in the library: tests of passes look for it",
    ("autograd/trace/graph/edit.cpp", "Graph::check: {} uses are noted"): "of a mistake in the library: tests of passes look for it",
    ("autograd/trace/graph/edit.cpp", "Graph::check: {} values are held"): "of a mistake in the library: tests of passes look for it",
    ("autograd/trace/graph/edit.cpp", "Graph::check: the output {} is no value"): "of a mistake in the library: tests of passes look for it",
    ("autograd/trace/graph/edit.cpp", "Graph::check: a guard looks at"): "of a mistake in the library: tests of passes look for it",
    ("autograd/trace/graph/edit.cpp", "Graph::check: an update is no value"): "of a mistake in the library: tests of passes look for it",
    ("autograd/trace/onnx/export.cpp", "save_onnx: {}: a model of {} bytes is too large"): "of a model above 2 GiB",
    ("autograd/trace/onnx/export.cpp", "save_onnx: the graph has more than {} nodes"): "of graphs within graphs, a million nodes",
    ("autograd/trace/onnx/export.cpp", "save_onnx: the graph cannot be written"): "of what is refused before the first op",
    ("autograd/trace/runtime/without.cpp", "requires_grad_: Tapir::runtime"): "of the runtime, which has tests of its own",
    ("autograd/trace/join_graphs.cpp", "trace: the number of dimensions of {} depends"): "an attribute differs before",
    ("autograd/trace/tracer.cpp", "trace: writing into a view that {} made"): "each op that makes views has its scatter",
    ("core/io/inflate.cpp", "no memory for zlib"): "zlib asks for a few KiB: they are there",
    ("core/io/inflate.cpp", "{}: no memory for zlib"): "zlib asks for a few KiB: they are there",
    ("core/io/inflate.cpp", "it is compressed, and this build"): "of a build without zlib",
    ("core/io/inflate.cpp", "{}: this build of tapir has no zlib"): "of a build without zlib",
    ("cuda/convolution.cpp", "{}: cuDNN has no {}algorithm"): "the emulated cuDNN has one for all sizes",
    ("cuda/linalg.cpp", "{}: {}: {} status {}"): "cuSOLVER and cuBLAS refuse only what the op has refused before",
    ("nn/parallel/parameter_server.cpp", "ParameterServer: {} cannot read"): "of Gloo: parallel/gloo_3 runs in processes of its own",
    ("ops/linalg/linalg_routines.cpp", "{}: the library was built without LAPACK"): "of a build without LAPACK",
}

OF_SAMPLES = ("table_test", "watched_test", "empty_test", "written_views_test", "threads_test", "graph_threads_test", "names_test",
              "extreme_gradients_test", "out_of_memory_test", "promotion_test", "precision_test", "memory_sweep_test", "narrow_digits_test",
              "huge_sizes_test", "zero_dims_test", "result_types_test")

# What is caught on the way, and told with more words by who catches it.
INNER = re.compile(r"onnx: numbers alone are no values$|does not fit into 64 bits$|\b(?:trace|import)\.cpp:\d+: no memory for")
# What needs no memory to be said, so that it is made without a format: see core/out_of_memory.cpp.
WITHOUT_FORMAT = "no memory for what the call keeps beside its tensors"
HINT = re.compile(r"; this is with .*$", re.DOTALL)

# The calls that throw: fail<Type>(loc, format, ...), and the functions through which the readers of files throw a FileError,
# CheckFinite its NonFiniteError and the reader of ONNX a ValueError, whose message is a sum of words and fmt::format()s.
CALL = re.compile(r"\bfail<(\w+)>\(|\b(?:stop|fail_at|source\.fail|tell|reject)\(")
KINDS = {"tell(": "NonFiniteError", "reject(": "ValueError"}
# What kernels find is thrown later, by cuda/context.cpp.
FAULT = re.compile(r'\bOpenFault (?:\w+)\(([^;"]*)("(?:[^"\\]|\\.)*")\)|\b(char) k\w*Fault\[\] = ("(?:[^"\\]|\\.)*");')
# What rules of result types refuse (autograd/result_types.h), behind the op's name. The op says more of it itself: no test has to trigger each.
RULE = re.compile(r"\brefuse<(\w+)>\(|\bneed(?:<(\w+)>)?\(")
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}


def arguments(text, at):
    """The arguments of the call whose bracket opens before `at`."""
    depth, start, found = 1, at, []
    while depth > 0:
        c = text[at]
        if c == '"':
            at = LITERAL.match(text, at).end() - 1
        elif c == "'" and (char := re.compile(r"'(\\.|[^\\'])+'").match(text, at)):
            at = char.end() - 1
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        if depth == 0 or (c == "," and depth == 1):
            found.append(text[start:at].strip())
            start = at + 1
        at += 1
    return found


def words(literals):
    """The text of literals that stand side by side."""
    return re.sub(r"\\(.)", lambda m: ESCAPES[m[1]], "".join(LITERAL.findall(literals)))


HERE = re.compile(r"^([\w.]+\.\w+):\d+: ")
IN_MODULE = re.compile(r" \(in [\w.]+\)$")


class Format:
    def __init__(self, file, kind, parts, is_whole):
        """`parts` are literals, in between which anything may stand."""
        self.file, self.kind = file, kind
        self.shown = "{}".join(parts)
        pieces = [piece for part in parts for piece in (re.split(r"(?<!\{)\{[^{}]*\}|\{\}", part))]
        pieces = [piece.replace("{{", "{").replace("}}", "}") for piece in pieces]
        self.weight = sum(len(re.sub(r"[^A-Za-z]", "", piece)) for piece in pieces)  # of two that fit, the one that says more
        self.hands_on = is_whole and not re.search(r"[A-Za-z]", "".join(pieces).partition(": ")[2])  # nothing but what others say
        any_text = "(?:.*?)" if is_whole else "(?:.*)"
        pattern = any_text.join(map(re.escape, pieces))
        self.pattern = re.compile(pattern if is_whole else f".*{pattern}.*", re.DOTALL)
        self.is_fault = self.is_rule = False
        self.texts = set()

    def fits(self, kind, text):
        first, newline, rest = HERE.sub("", text).partition("\n")
        return kind == self.kind and self.pattern.fullmatch(IN_MODULE.sub("", first) + newline + rest)


def best_fitting(formats, kind, text):
    fitting = [f for f in formats if f.fits(kind, text)]
    most = max((f.weight for f in fitting), default=0)
    return [f for f in fitting if f.weight == most]


def fits_renamed(f, kind, text):
    """Whether an op that another one is made of says it, under the name of that one: see core/composed_op_impl.h."""
    own, (here, rest) = f.shown.partition(": ")[0], re.match(r"((?:[\w.]+:\d+: )?)[\w:]+: (.*)|", text, re.DOTALL).groups()
    return rest is not None and re.fullmatch(r"[\w:]+", own) and f.fits(kind, f"{here}{own}: {rest}")


def formats_of(path):
    file = str(path.relative_to(ROOT))
    source = path.read_text()
    found = {}
    for call in CALL.finditer(source):
        given = arguments(source, call.end())
        if call[1]:
            if len(given) < 2 or not given[1].startswith('"'):
                sys.exit(f"{file}: a message that catalogue.py cannot read: {call[0]}{', '.join(given)}")
            made = Format(file, call[1], [words(given[1])], True)
        else:
            expression = next((g for g in given if LITERAL.search(g)), "")
            if expression.startswith("fmt::format("):
                expression = arguments(expression, len("fmt::format("))[0]
            expression = re.sub(r"\([^()]*\?[^()]*\)", "", expression)  # (one ? word : another) is anything
            for choice in re.split(r" [?:] ", expression):
                groups = re.findall(r'"(?:[^"\\]|\\.)*"(?:\s*"(?:[^"\\]|\\.)*")*', choice)
                made = Format(file, KINDS.get(call[0], "FileError"), [words(g) for g in groups], False)
                if made.weight > 4:  # others hand on what they are given
                    found.setdefault((made.kind, made.shown), made)
            continue
        found.setdefault((made.kind, made.shown), made)
    for fault in FAULT.finditer(source):
        made = Format(file, "IndexError" if fault[1] or fault[3] else "ValueError", [words(fault[2] or fault[4])], False)
        made.is_fault = True
        found.setdefault((made.kind, made.shown), made)
    for rule in RULE.finditer(source):
        message = next((g for g in arguments(source, rule.end()) if g.startswith('"')), None)
        if message is None:
            continue  # a declaration, or another function of this name
        made = Format(file, rule[1] or rule[2] or "ShapeError", ["{}: " + words(message)], True)
        made.is_rule = True
        found.setdefault((made.kind, made.shown), made)
    return list(found.values())


def all_formats():
    found = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".h", ".cpp", ".cu", ".cuh", ".def"):
                found += formats_of(path)
    return found


PLACE = re.compile(r"\b[\w.]+\.(?:cpp|h|cu):\d+\b")


def normal(text):
    """Without what differs from machine to machine, and from edit to edit of the tests."""
    text = PLACE.sub("user.cpp:42", text)
    text = re.sub(r"\b(o[nf] line) \d+", r"\1 42", text)
    text = re.sub(r'(?<![\w.])/(?:[\w.+-]+/)+', "", text)
    text = re.sub(r"\btapir_data_\d+_\d+|\.\d+-\d+(?=\.tmp)", lambda m: "folder" if m[0][0] == "t" else "", text)
    text = re.sub(r"\b(events\.out\.tfevents)\.[\w.-]+", r"\1", text)
    text = text.replace(f"({socket.gethostname()})", "(node1)")
    text = re.sub(r"[\d.]+ MiB are in use", "12 MiB are in use", text)
    return text


def read_logs(paths):
    """Of each text: (type, text, whether it is of the samples beside the ops, the calls that led to it as addresses of a program)"""
    seen = set()
    for path in map(Path, paths):
        for line in path.read_text().splitlines():
            try:
                thrown = json.loads(line)
            except json.JSONDecodeError:
                continue  # half a line: see thrown.cpp
            calls = tuple((thrown["module"], address) for address in thrown.get("calls", []))
            seen.add((re.sub(r"^tapir::(parallel::)?", "", thrown["type"]), thrown["text"], path.stem in OF_SAMPLES, calls))
    return sorted(seen)


def files_of(calls):
    """The library's files in which calls stand, by the debug information; none where there is none."""
    files = {}
    for module in {module for module, _ in calls}:
        addresses = sorted(address for m, address in calls if m == module)
        try:
            made = subprocess.run(["addr2line", "-i", "-a", "-e", module], input="\n".join(map(hex, addresses)), text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        except OSError:
            return {}
        for address, part in zip(addresses, re.split(r"^0x.*\n", made, flags=re.MULTILINE)[1:]):
            files[module, address] = set(re.findall(rf"/((?:{'|'.join(FOLDERS)})/[\w/.]+):\d+", part.replace("/tests/", "/no/")))
    return files


def assign(seen, formats):
    """Gives the formats their texts; returns what is wrong with some."""
    wrong = []
    test_files = {path.name for folder in ("tests", "examples") for path in (ROOT / folder).rglob("*.*")}
    test_files.add("model.cpp")  # lines that texts of graphs name
    files = files_of({call for *_, calls in seen for call in calls})
    if not files:
        print("the tests have no debug information, or there is no addr2line: not compared")
        sys.exit(77)
    for kind, raw, of_samples, calls in seen:
        if "::" in kind:
            continue  # a test's or an example's own
        raw = HINT.sub("", raw) if kind == "OutOfMemory" else raw
        here = HERE.match(raw)
        if not of_samples and not INNER.search(raw) and (not here or here[1] not in test_files):
            wrong.append(f"does not begin with the user's line: {kind}: {raw}")
        throwing = set().union(*(files.get(call, set()) for call in calls))
        fitting = best_fitting([f for f in formats if f.file in throwing], kind, raw)
        if not fitting or fitting[0].hands_on and fitting[0].file.startswith("cuda/"):
            fitting = best_fitting([f for f in formats if f.is_fault], kind, raw) or fitting or best_fitting(formats, kind, raw)
        if not fitting and WITHOUT_FORMAT not in raw and not any(fits_renamed(f, kind, raw) for f in formats):
            wrong.append(f"of no format: {kind}: {raw}")
        for f in fitting:
            f.texts.add("user.cpp:42: " + normal(HERE.sub("", raw)))
    return wrong


ENTRY = re.compile(r"^(cuda )?(\w+)\n((?:    .*\n)+)", re.MULTILINE)


def read_catalogue():
    """Of each file: {(type, text): whether only a CUDA device throws it}."""
    old = {}
    if CATALOGUE.exists():
        for part in CATALOGUE.read_text().split("\n== ")[1:]:
            file, _, entries = part.partition(" ==\n")
            old[file] = {(e[2], re.sub("^    ", "", e[3], flags=re.MULTILINE)[:-1]): bool(e[1]) for e in ENTRY.finditer(entries)}
    return old


def entry(f, text, is_cuda):
    return ("cuda " if is_cuda else "") + f.kind + "\n" + re.sub("^", "    ", text, flags=re.MULTILINE) + "\n"


def reason_of(f):
    return next((why for (file, start), why in UNREACHED.items() if file == f.file and f.shown.startswith(start)), None)


def main():
    options = [a for a in sys.argv[1:] if a.startswith("--")]
    cuda = "--cuda" in options
    formats = all_formats()
    wrong = assign(read_logs(a for a in sys.argv[1:] if not a.startswith("--")), formats)
    old = read_catalogue()
    of_file = {}
    formats = [f for f in formats if not f.is_rule]
    for f in formats:
        of_file.setdefault(f.file, []).append(f)
    lines, file, triggered, excused = ["Made by catalogue.py --update: of each format of a message, a text that the tests got.\n"], "", 0, 0
    for f in formats:
        if f.file != file:
            file = f.file
            lines.append(f"\n== {file} ==\n")
        before = {text: is_cuda for (kind, text), is_cuda in old.get(file, {}).items() if f in best_fitting(of_file[file], kind, text)}
        known = sorted(before)
        why = reason_of(f)
        if why and f.texts:
            wrong.append(f"{file}: it has a text, but UNREACHED says that it cannot: {f.shown}: {sorted(f.texts)[0]}")
        elif why:
            excused += 1
            lines.append(f"{f.kind}, in no test: {why}\n    {f.shown}\n".replace("\n  ", "\n    "))
            continue
        if known and before[known[0]] != cuda:  # for the other build to compare
            lines.append(entry(f, known[0], before[known[0]]))
            triggered += 1
        elif f.texts:
            lines.append(entry(f, min(f.texts.intersection(known) or f.texts, key=lambda t: (len(t), t)), cuda))
            triggered += 1
        elif not f.hands_on:
            wrong.append(f"{file}: no test triggers {f.kind}: {f.shown}")
    for file, start in UNREACHED:
        if not any(f.file == file and f.shown.startswith(start) for f in formats):
            wrong.append(f"{file}: UNREACHED names what is not there: {start}")
    made = "".join(lines)
    if "--update" in options:
        CATALOGUE.write_text(made)
    elif made != CATALOGUE.read_text():
        diff = difflib.unified_diff(CATALOGUE.read_text().splitlines(), made.splitlines(), "catalogue.txt", "this run", lineterm="", n=1)
        wrong.append("catalogue.txt is not what this run gave; if that is meant: catalogue.py --update\n" + "\n".join(diff))
    print("\n".join(wrong))
    print(f"{len(formats)} formats, {triggered} triggered, {excused} that no test can trigger")
    sys.exit(1 if wrong else 0)


main()

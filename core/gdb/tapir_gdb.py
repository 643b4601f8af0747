# Tapir in gdb: printers for tensors and modules, and the commands `tapir ...` (`help tapir` lists them).
#
# libtapir carries this text, as a module of gdb's Python, and gdb runs it by itself where the program or library lies on its
# auto-load safe-path; or write `source PREFIX/share/tapir/tapir_gdb.py` into ~/.gdbinit. It needs gdb 13, and must not have
# quotes of three '.
#
# It reads memory and calls nothing in the program (but for `tapir tensor --copy`), so it works at -O2 and in core dumps. What it
# knows of the library's types stands in a table in the library, tapir_gdb_layout, see layout.cpp: the library needs no debug
# information. Of the program's it takes what leads to a tensor: its variables, and the members of its modules.
import array
import difflib
import fnmatch
import math
import os
import re
import struct

import gdb
import gdb.FrameDecorator
import gdb.unwinder
import gdb.xmethod

PRINTED = 64  # a printer elides tensors of more elements than this
LISTED = 1000  # the same of `tapir tensor`
LOOKED_AT = 100 * 1000  # of so many elements a printer finds minimum, mean, maximum
LOOKED_AT_ON_REQUEST = 50 * 1000 * 1000


# --- Memory ---------------------------------------------------------------------------------------------------------------


def read(address, size):
    return bytes(gdb.selected_inferior().read_memory(address, size)) if size else b""


def number(address, size=8, signed=False):
    return int.from_bytes(read(address, size), "little", signed=signed)


def pointers(address, count):
    return array.array("Q", read(address, 8 * count))


def c_string(address):
    """Read up to the next multiple of 64, again and again: what lies behind the end may not be there."""
    if not address:
        return ""
    found = b""
    while len(found) < 4096:
        piece = read(address + len(found), 64 - (address + len(found)) % 64)
        end = piece.find(b"\0")
        if end >= 0:
            return (found + piece[:end]).decode("utf-8", "replace")
        found += piece
    return found.decode("utf-8", "replace")


class Known:
    """What is found once in a program: offsets, and texts that stay."""

    tables = {}
    texts = {}
    constants = {}

    @classmethod
    def forget(cls, _event=None):
        cls.tables = {}
        cls.texts = {}
        cls.constants = {}

    @classmethod
    def text(cls, address):
        if address not in cls.texts:
            cls.texts[address] = c_string(address)
        return cls.texts[address]

    @classmethod
    def table(cls, symbol):
        if symbol not in cls.tables:
            address, entries = address_of(symbol), {}
            while True:
                entry = read(address, 48)
                name = entry[:40].rstrip(b"\0").decode()
                if not name:
                    break
                entries[name] = int.from_bytes(entry[40:], "little", signed=True)
                address += 48
            cls.tables[symbol] = entries
        return cls.tables[symbol]


def address_of(symbol):
    # In a function that is `using namespace tapir`, the plain name is a declaration in there, for which gdb finds no symbol; the
    # other is none where the frame is in a language without ::.
    for name in ("::" + symbol, symbol):
        try:
            return int(gdb.parse_and_eval("(unsigned long)&" + name))
        except gdb.error:
            pass
    raise gdb.GdbError("tapir: this program has no Tapir, or one of another version (no symbol %s)" % symbol)


def offset(name):
    entries = Known.table("tapir_gdb_layout")
    if entries["version"] != 1:
        raise gdb.GdbError("tapir: this script and the library are of different versions")
    return entries[name]


def state(field, size=4):
    return number(address_of("tapir_gdb_state") + offset("GdbState." + field), size)


def dtype_name(value):
    for name, known in Known.table("tapir_gdb_layout").items():
        if known == value and name.startswith("dtype."):
            return name[6:]
    return "dtype %d" % value


class Fields:
    """A struct of the library, read at once."""

    def __init__(self, type_name, address, size=None):
        self.type_name, self.address = type_name, address
        self.bytes = read(address, size or offset("sizeof." + type_name))

    def get(self, field, size=8, signed=False):
        at = offset(self.type_name + "." + field)
        return int.from_bytes(self.bytes[at : at + size], "little", signed=signed)

    def numbers(self, field, count):
        at = offset(self.type_name + "." + field)
        return list(struct.unpack_from("<%dq" % count, self.bytes, at))

    def has(self, flag):
        return bool(self.get("flags", 1) & offset(self.type_name + "." + flag))

    def device(self):
        at = offset(self.type_name + ".device")
        return device_name(self.bytes[at + offset("Device.type")], self.bytes[at + offset("Device.index")])


def device_name(kind, index):
    return "cpu" if kind == 0 else "cuda:%d" % index


class Place:
    """A std::source_location: a pointer to file, function, line and column."""

    def __init__(self, address):
        self.file, self.line = "", 0
        if address:
            self.file, self.line = Known.text(number(address)), number(address + 16, 4)

    def __str__(self):
        return "%s:%d" % (os.path.basename(self.file), self.line) if self.line else ""


# --- Texts ----------------------------------------------------------------------------------------------------------------


def shape_text(sizes):
    return "(%s%s)" % (", ".join(map(str, sizes)), "," if len(sizes) == 1 else "")


def size_text(count):
    amount, unit = float(count), 0
    while amount >= 1024 and unit < 4:
        amount, unit = amount / 1024, unit + 1
    return "%d B" % count if unit == 0 else "%.*f %s" % (1 if amount < 10 else 0, amount, ("", "KiB", "MiB", "GiB", "TiB")[unit])


def counted(n, one, many=None):
    return "%d %s" % (n, one if n == 1 else many or one + "s")


def element_text(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return "%.6g" % value if isinstance(value, float) else str(value)


def print_table(rows, right=()):
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    for row in rows:
        cells = [cell.rjust(width) if c in right else cell.ljust(width) for c, (cell, width) in enumerate(zip(row, widths))]
        print("  ".join(cells).rstrip())


# --- Tensors --------------------------------------------------------------------------------------------------------------

CODES = {"float32": "f", "float64": "d", "int32": "i", "int64": "q", "uint8": "B"}
ITEM_SIZES = {"bool": 1, "uint8": 1, "int32": 4, "int64": 8, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


def decode(dtype, raw):
    if dtype in CODES:
        return array.array(CODES[dtype], raw)
    if dtype == "bool":
        return [byte != 0 for byte in raw]
    if dtype == "float16":
        return struct.unpack("<%de" % (len(raw) // 2), raw)
    if dtype == "bfloat16":  # the upper half of a float
        return array.array("f", array.array("I", [half << 16 for half in array.array("H", raw)]).tobytes())
    raise gdb.GdbError("tapir: unknown element type " + dtype)


class Tensor:
    """A tensor, or a slice of one."""

    def __init__(self, impl):
        fields = Fields("TensorImpl", impl)
        rank = fields.get("rank", 1)
        is_one = rank <= offset("kMaxRank") and fields.get("dtype", 1) < len(ITEM_SIZES) and fields.get("refs", 4) > 0
        if not is_one or fields.get("numel") != math.prod(fields.numbers("sizes", rank)):  # a variable that is not made yet
            raise gdb.MemoryError("no tensor at 0x%x" % impl)
        self.impl, self.fields = impl, fields
        self.dtype_number = fields.get("dtype", 1)
        self.dtype, self.device = dtype_name(self.dtype_number), fields.device()
        self.sizes, self.strides = fields.numbers("sizes", rank), fields.numbers("strides", rank)
        self.data, self.storage, self.meta = fields.get("data"), fields.get("storage"), fields.get("meta")
        self.item_size = ITEM_SIZES[self.dtype]

    @property
    def numel(self):
        return math.prod(self.sizes)

    @property
    def is_here(self):
        return self.device == "cpu"

    def head(self):
        text = "%s %s" % (self.dtype, shape_text(self.sizes))
        return text + " " + self.device + (" requires_grad" if self.fields.has("kRequiresGrad") else "")

    def name(self):
        return Known.text(number(self.meta + offset("AutogradMeta.name"))) if self.meta else ""

    def contiguous(self):
        expected = 1
        for size, stride in zip(reversed(self.sizes), reversed(self.strides)):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    def row(self, start, count, stride):
        """Elements start, start + stride, ..."""
        if count <= 0:
            return []
        if abs(stride) > 64:  # rather one by one than all that lies between
            return [value for k in range(count) for value in self.row(start + k * stride, 1, 1)]
        first = start + min(0, (count - 1) * stride)
        span = abs(stride) * (count - 1) + 1
        values = decode(self.dtype, read(self.data + first * self.item_size, span * self.item_size))
        if stride == 0:
            return [values[0]] * count
        return values[::stride] if abs(stride) != 1 or stride < 0 else values

    def rows(self, limit):
        """All elements, or the first of them, in parts."""
        if self.numel == 0:
            return
        if self.contiguous():
            wanted, step = min(self.numel, limit), 1 << 20
            for start in range(0, wanted, step):
                yield self.row(start, min(step, wanted - start), 1)
            return

        def walk(d, start):
            if d >= len(self.sizes) - 1:
                yield self.row(start, min(self.sizes[d], limit), self.strides[d])
                return
            for k in range(self.sizes[d]):
                yield from walk(d + 1, start + k * self.strides[d])

        for part in walk(0, 0):
            yield part[:limit]
            limit -= len(part)
            if limit <= 0:
                return

    def summary(self, limit):
        """"min -1, max 2, mean 0.5, 1 nan", of the finite elements."""
        low, high, total, nan, inf, zeros, seen = math.inf, -math.inf, 0.0, 0, 0, 0, 0
        for part in self.rows(limit):
            seen += len(part)
            if not math.isfinite(sum(part)):  # slower, one by one
                nan += sum(1 for x in part if x != x)
                inf += sum(1 for x in part if x in (math.inf, -math.inf))
                part = [x for x in part if math.isfinite(x)]
            if part:
                low, high, total = min(low, min(part)), max(high, max(part)), total + math.fsum(part)
                zeros += part.count(0)
        if seen == 0:
            return "no elements"
        texts = []
        if seen > nan + inf:
            texts.append("min %.6g, max %.6g, mean %.6g" % (low, high, total / (seen - nan - inf)))
        texts += [counted(zeros, "zero")] if zeros else []
        texts += ["%d nan" % nan] if nan else []
        texts += ["%d inf" % inf] if inf else []
        return ", ".join(texts) + (" of the first %d elements" % seen if seen < self.numel else "")

    def norm(self, limit):
        return math.sqrt(sum(math.fsum(float(x) * x for x in part) for part in self.rows(limit)))

    def element(self, start):
        return element_text(self.row(start, 1, 1)[0])

    def nested(self, d=0, start=0, most=PRINTED):
        """All on one line."""
        if d == len(self.sizes):
            return self.element(start)
        size, stride = self.sizes[d], self.strides[d]
        is_last = d == len(self.sizes) - 1
        edge = 3 if is_last else 1
        parts = [(0, size)]
        if self.numel > most and size > 2 * edge:
            parts = [(0, edge), (size - edge, size)]
        texts = []
        for begin, end in parts:
            if begin > 0:
                texts.append("...")
            if is_last:
                texts += [element_text(x) for x in self.row(start + begin * stride, end - begin, stride)]
            else:
                texts += [self.nested(d + 1, start + k * stride, most) for k in range(begin, end)]
        return "[%s]" % ", ".join(texts)

    def text(self):
        if not self.is_here:
            return "%s (its elements are on the device: tapir tensor EXPR --copy)" % self.head()
        text = "%s %s" % (self.head(), self.nested())
        if self.numel > PRINTED:
            text += " " + self.summary(LOOKED_AT)
        return text

    def sliced(self, text):
        """As NumPy's x[0, :, 2:5]: numbers, slices and an ellipsis."""
        items = [item.strip() for item in text.split(",")]
        if items.count("...") > 1 or len([i for i in items if i != "..."]) > len(self.sizes):
            raise gdb.GdbError("tapir tensor: [%s] does not fit a tensor of shape %s" % (text, shape_text(self.sizes)))
        if "..." in items:
            place = items.index("...")
            items[place : place + 1] = [":"] * (len(self.sizes) - len(items) + 1)
        items += [":"] * (len(self.sizes) - len(items))
        made = Tensor(self.impl)
        made.data, made.sizes, made.strides, start = self.data, [], [], 0
        for item, size, stride in zip(items, self.sizes, self.strides):
            if ":" in item:
                begin, end, step = slice(*[int(part) if part.strip() else None for part in item.split(":")]).indices(size)
                start += begin * stride
                made.sizes.append(len(range(begin, end, step)))
                made.strides.append(stride * step)
                continue
            if not -size <= int(item) < size:
                raise gdb.GdbError("tapir tensor: index %s is out of range for a dimension of size %d" % (item, size))
            start += (int(item) % size) * stride
        made.data += start * self.item_size
        return made

    def lines(self):
        """A row of elements a line, in columns."""
        cells, longest = {}, 0

        def ends(d, edge=3):
            size = self.sizes[d]
            if self.numel > LISTED and size > 2 * edge:
                return list(range(edge)) + [None] + list(range(size - edge, size))
            return list(range(size))

        def fill(d, start):
            nonlocal longest
            if d == len(self.sizes):
                cells[start] = self.element(start)
                longest = max(longest, len(cells[start]))
                return
            for k in ends(d):
                if k is not None:
                    fill(d + 1, start + k * self.strides[d])

        def write(d, start):
            if d == len(self.sizes):
                return cells[start].rjust(longest)
            texts = ["..." if k is None else write(d + 1, start + k * self.strides[d]) for k in ends(d)]
            below = len(self.sizes) - d - 1
            return "[" + (", " if below == 0 else "," + "\n" * below + " " * (d + 1)).join(texts) + "]"

        if self.numel == 0:
            return "[]"
        fill(0, 0)
        return write(0, 0).strip()


def impl_of(value):
    """The address of the TensorImpl that a value leads to; None: it is no tensor, 0: an undefined one."""
    kind = value.type.strip_typedefs()
    if kind.code in (gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF):
        return impl_of(value.referenced_value())
    if kind.code == gdb.TYPE_CODE_PTR:
        target = kind.target().unqualified().strip_typedefs()
        if target.name == "tapir::TensorImpl":
            return int(value)
        return impl_of(value.dereference()) if target.code == gdb.TYPE_CODE_STRUCT and int(value) else None
    if kind.code != gdb.TYPE_CODE_STRUCT:
        return None
    if kind.name == "tapir::TensorImpl":
        return int(value.address) if value.address is not None else None
    return int(value["impl_"]) if base_named(kind, "tapir::Tensor") is not None else None


def seen_as(value, kind):
    """An object as its base, or as the derived class that it is. By its address: a cast of the value itself breaks in gdb 13 the
    value that it is a part of."""
    return value.cast(kind) if value.address is None else value.address.cast(kind.pointer()).dereference()


def base_named(kind, name):
    """The type itself or its base of this name; also where it is declared by reference to another file."""
    kind = kind.unqualified().strip_typedefs()
    if kind.name == name:
        return kind
    if kind.code == gdb.TYPE_CODE_STRUCT:
        for field in kind.fields():
            if field.is_base_class:
                found = base_named(field.type, name)
                if found is not None:
                    return found
    return None


def tensor_text(impl):
    if impl == 0:
        return "undefined"
    try:
        return Tensor(impl).text()
    except gdb.MemoryError:
        return "<no tensor at 0x%x>" % impl


# --- Records --------------------------------------------------------------------------------------------------------------


class Record:
    def __init__(self, log, index):
        self.log, self.index = log, index
        fields = self.fields = Fields("Record", log.records[index])
        self.flags = fields.get("flags", 1)
        self.dtype, self.rank = dtype_name(fields.get("dtype", 1)), fields.get("rank", 1)
        self.input_count, self.saved_count = fields.get("input_count", 1), fields.get("saved_count", 1)
        after = fields.address + len(fields.bytes)
        self.sizes = list(array.array("q", read(after, 8 * self.rank)))
        self.saved_at = after + 8 * self.rank
        self.attrs_at = self.saved_at + offset("sizeof.SavedTensor") * self.saved_count
        self.inputs_at = fields.get("inputs_")

    def has(self, flag):
        return bool(self.flags & offset("Record." + flag))

    @property
    def op(self):
        if self.has("kExtra"):  # a further output of the record before it
            output, index = 1, self.index - 1
            while Record(self.log, index).has("kExtra"):
                output, index = output + 1, index - 1
            return "%s #%d" % (Record(self.log, index).op, output)
        return Known.text(number(self.fields.get("op") + offset("OpInfo.name")))

    @property
    def place(self):
        return Place(self.fields.get("loc"))

    @property
    def inputs(self):
        return list(array.array("I", read(self.inputs_at, 4 * self.input_count)))

    @property
    def saved(self):
        """Of each its TensorImpl, and the version that its storage had."""
        size = offset("sizeof.SavedTensor")
        return [(number(self.saved_at + k * size), number(self.saved_at + k * size + offset("SavedTensor.version"), 4))
                for k in range(0 if self.has("kReleased") else self.saved_count)]

    @property
    def module(self):
        if self.has("kLeaf"):
            return Tensor(self.saved[0][0]).name() if not self.has("kReleased") else ""
        return module_text(self.fields.get("module"))

    @property
    def bytes(self):
        return math.prod(self.sizes) * ITEM_SIZES[self.dtype]

    def output(self):
        return "%s %s" % (self.dtype, shape_text(self.sizes))

    def line(self):
        texts = ["%d: %s" % (self.index - self.log.begin, self.op), self.output(), str(self.place)]
        return ", ".join(texts) + (" (%s)" % self.module if self.module else "")


def module_text(address):
    if not address:
        return ""
    path = Known.text(number(address + offset("ModuleName.path")))
    return path or Known.text(number(address + offset("ModuleName.type")))


class Log:
    """The records of a thread, and what its innermost tape shows of them."""

    def __init__(self, listed):
        def field(name, size=8):
            return number(listed + offset("GdbLog." + name), size)

        self.address, self.thread, self.tapes = field("log"), field("thread", 4), field("tapes", 4)
        self.begin, self.opened = field("begin"), Place(field("opened"))
        begin, end = pointers(self.address + offset("Log.records"), 2)
        self.records = pointers(begin, (end - begin) // 8)
        self.id = number(self.address + offset("Log.id"), 4)
        self.last_backward = Place(number(self.address + offset("Log.last_backward")))

    def __len__(self):
        return len(self.records) - self.begin

    def all(self):
        return [Record(self, index) for index in range(self.begin, len(self.records))]


def open_logs():
    found, listed = [], state("logs", 8)
    while listed:
        log = Log(listed)
        if log.tapes > 0:
            found.append(log)
        listed = number(listed + offset("GdbLog.next"))
    return found


def thread_of(log):
    for thread in gdb.selected_inferior().threads():
        if thread.ptid[1] == log.thread:
            return thread
    return None


def current_log():
    logs = open_logs()
    thread = gdb.selected_thread()
    for log in logs:
        if thread is not None and thread.ptid[1] == log.thread:
            return log
    if not logs:
        raise gdb.GdbError("tapir: no tape is open")
    if len(logs) > 1:
        others = ", ".join("%s of thread %s" % (log.opened, getattr(thread_of(log), "num", "?")) for log in logs)
        raise gdb.GdbError("tapir: this thread has no tape open; others have (%s): choose one with the command thread" % others)
    print("This thread has no tape open; that of thread %s:" % getattr(thread_of(logs[0]), "num", "?"))
    return logs[0]


# --- Printers -------------------------------------------------------------------------------------------------------------


class Printer:
    def __init__(self, value, make):
        self.value, self.make = value, make

    def to_string(self):
        try:
            return self.make(self.value)
        except gdb.GdbError as error:
            return "<%s>" % error
        except gdb.MemoryError:
            return "<memory that cannot be read>"
        except gdb.error:  # of an object that is not made yet, or not any more
            return "<not what it should be: not made yet, or gone>"


def shape_printed(value):
    rank = int(value["rank_"])
    if not 0 <= rank <= 8:
        return "<no shape>"
    return shape_text([int(value["sizes_"][d]) for d in range(rank)])


def storage_printed(value):
    fields = Fields("Storage", int(value.address), value.type.sizeof)
    written = Place(fields.get("last_write"))
    text = "%s %s at 0x%x, %s, version %d" % (size_text(fields.get("nbytes")), fields.device(), fields.get("data"),
                                              counted(fields.get("refs", 4), "owner"), fields.get("version", 4))
    return text + (", last written to at %s" % written if written.line else "")


def tape_printed(value):
    wanted = int(value["log_"])
    for log in open_logs():
        if log.address == wanted:
            log.begin, opened = int(value["begin_"]), Place(int(value["loc_"]["_M_impl"]))
            return tape_head(log, opened)
    return "<a tape that is not open>"


def tape_head(log, opened):
    total = sum(record.bytes for record in log.all() if not record.has("kLeaf"))
    return "tape of %s: %s, results of %s" % (opened, counted(len(log), "record"), size_text(total))


def record_printed(value):
    for log in open_logs():
        if int(value.address) in log.records:
            return Record(log, log.records.index(int(value.address))).line()
    return "<a record of no open tape>"


def std_string(value):
    try:
        address, length = pointers(int(value.address), 2)
        return read(address, min(length, 10000)).decode("utf-8", "replace")
    except (gdb.MemoryError, TypeError):
        return value.format_string()


def vtable_name(address):
    """The class of an object with virtual functions, by their table's symbol: it needs no debug information."""
    symbol = gdb.execute("info symbol 0x%x" % number(address), to_string=True)
    found = re.match(r"vtable for (.*?) \+", symbol)
    return found.group(1) if found else ""


def error_printed(value):
    base = seen_as(value, base_named(value.type, "tapir::Error"))
    name = vtable_name(int(base.address)) or str(value.type.unqualified().strip_typedefs())
    return "%s: %s" % (name.split("::")[-1], std_string(base["message_"]))


def type_text(kind):
    return re.sub(r"<.*", "", str(kind.unqualified().strip_typedefs())).split("::")[-1]


# g++ describes a class with virtual functions only where their table is: in the library, which may have no debug information.
HIDDEN = " (its members are hidden: compile the library with -g, or the program with -femit-class-debug-always)"


class ModuleTree:
    """The members of a module that are modules and tensors, by the names that they have in the program."""

    def __init__(self, value):
        self.lines, self.seen, self.trained, self.tensors = [], {}, 0, []
        self.module([], value)
        self.lines[0] += ", %d parameters" % self.trained

    def text(self):
        return "\n".join(self.lines)

    def add(self, path, text):
        """path: of the module or tensor, a list of the names that lead to it."""
        separator = " " if text.startswith("(") else ": "
        self.lines.append("  " * len(path) + (path[-1] + separator if path else "") + text)

    def module(self, path, value):
        kind = value.dynamic_type.unqualified()
        self.add(path, type_text(kind))
        self.members(path, seen_as(value, kind), kind)

    def members(self, path, value, kind):
        if not kind.fields():
            self.lines[-1] += HIDDEN
        for field in kind.fields():
            if field.is_base_class:
                if field.type.name != "tapir::nn::Module":
                    self.members(path, value[field], field.type.strip_typedefs())
            elif hasattr(field, "bitpos") and field.name and not field.artificial:
                is_list = str(kind).startswith("tapir::nn::") and field.name in ("layers_", "modules_")
                self.member(path, "" if is_list else field.name, value[field])

    def member(self, path, name, value):
        kind = value.type.unqualified().strip_typedefs()
        if kind.code in (gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF):
            value, kind = value.referenced_value(), kind.target().unqualified().strip_typedefs()
        if kind.code != gdb.TYPE_CODE_STRUCT or not kind.name:
            return
        if base_named(kind, "tapir::Tensor") is not None:
            self.tensor(path + [name], impl_of(value))
        elif base_named(kind, "tapir::nn::Module") is not None:
            self.module(path + [name], value)
        elif kind.name == "tapir::nn::AnyModule":
            self.held(path + [name], value["held_"])
        elif kind.name.startswith("std::") and may_hold(kind):
            self.several(path, name, value)
        elif kind.name.startswith("tapir::nn::") and not kind.fields():
            self.add(path + [name], type_text(kind) + HIDDEN)

    def held(self, path, pointer):
        if int(pointer) == 0:
            return
        holder = pointer.dereference()
        layer = seen_as(holder, holder.dynamic_type)["layer"]
        if base_named(layer.type, "tapir::nn::Module") is not None:
            self.module(path, layer)
        else:
            self.add(path, "a function")

    def several(self, path, name, value):
        """What the standard library's printers say is in it: lists, maps, pointers."""
        printer = gdb.default_visualizer(value)
        if printer is None or not hasattr(printer, "children"):
            return
        is_map, key = getattr(printer, "display_hint", lambda: None)() == "map", None
        for count, (label, child) in enumerate(printer.children()):
            if not isinstance(child, gdb.Value):
                continue
            if is_map and count % 2 == 0:
                key = std_string(child)
                continue
            index = re.match(r"\[(\d+)\]$", label)
            inner = key if is_map else index.group(1) if index else ""
            if (child.type.strip_typedefs().name or "").startswith("std::pair<"):
                inner, child = std_string(child["first"]), child["second"]
            if child.type.strip_typedefs().code == gdb.TYPE_CODE_PTR:
                if int(child) == 0:
                    continue
                child = child.dereference()
            self.member(path, ".".join(part for part in (name, inner) if part), child)

    def tensor(self, path, impl):
        if not impl:
            return
        tensor, name = Tensor(impl), ".".join(path)
        text = shape_text(tensor.sizes)
        text += " " + tensor.dtype if tensor.dtype != "float32" else ""
        text += " " + tensor.device if not tensor.is_here else ""
        if impl in self.seen:
            self.add(path, "%s, shared with %s" % (text, self.seen[impl]))
            return
        self.seen[impl] = name
        self.tensors.append((name, tensor))
        if tensor.fields.has("kRequiresGrad"):
            self.trained += tensor.numel
        else:
            text += ", not trained"
        self.add(path, text)


def may_hold(kind, depth=3):
    """Whether a type of the standard library may lead to modules or tensors: a list, a map, a pointer, an optional."""
    kind = kind.unqualified().strip_typedefs()
    if kind.code == gdb.TYPE_CODE_PTR:
        return may_hold(kind.target(), depth)
    if kind.code != gdb.TYPE_CODE_STRUCT or not kind.name or depth == 0:
        return False
    if not kind.name.startswith("std::"):
        bases = ("tapir::Tensor", "tapir::nn::Module", "tapir::nn::AnyModule")
        return kind.name.startswith("tapir::nn::") or any(base_named(kind, base) is not None for base in bases)
    for n in range(2):
        try:
            argument = kind.template_argument(n)
        except (RuntimeError, gdb.error):
            return False
        if isinstance(argument, gdb.Type) and may_hold(argument, depth - 1):
            return True
    return False


def module_printed(value):
    return ModuleTree(value).text()


def tensor_printed(value):
    return tensor_text(impl_of(value))


def optimizer_printed(value):
    """"SGD, lr 0.1, 5 parameters, 3 steps"; several rates where the groups have them."""
    table, address = Known.table("tapir_gdb_optimizer"), int(value.address)
    name = Known.text(number(number(address + table["Optimizer.rule"]) + table["OptimizerRule.name"]))
    slots, steps = 0, 0
    begin, end = pointers(address + table["Optimizer.groups"], 2)
    groups = (end - begin) // table["sizeof.vector"]
    for group in range(min(groups, 1000)):
        first, last = pointers(begin + group * table["sizeof.vector"], 2)
        for slot in range(first, last, table["sizeof.Slot"]):
            slots, steps = slots + 1, max(steps, number(slot + table["Slot.steps"], 8, signed=True))
    options, rates = number(address + table["Optimizer.options"]), []
    for group in range(min(groups, 1000)):
        (rate,) = struct.unpack("<d", read(number(options + group * table["sizeof.vector"]), 8))
        if "%g" % rate not in rates:
            rates.append("%g" % rate)
    texts = [name, "lr " + (" and ".join(rates) if len(rates) < 4 else ", ".join(rates[:3] + ["..."])), counted(slots, "parameter")]
    texts[2] += " in %d groups" % groups if groups > 1 else ""
    return ", ".join(texts + ([counted(steps, "step")] if steps else []))


# --- Graphs ---------------------------------------------------------------------------------------------------------------


def text_at(address):
    """A std::string's."""
    begin, length = pointers(address, 2)
    return read(begin, min(length, 10000)).decode("utf-8", "replace")


def vector_at(address, size):
    """The addresses of a std::vector's elements."""
    begin, end = pointers(address, 2)
    return range(begin, begin + min(end - begin, 1000000 * size), size)


class SymInt(Fields):
    """A size in a graph: "2*batch + 1"."""

    def __init__(self, address):
        super().__init__("SymInt", address)

    def text(self):
        def product(names, c):  # a quotient is text, "(time - 3)//2"
            return names[0] if len(names) == 1 and c == 1 else "*".join("(%s)" % n if n.startswith("(") else n for n in names)
        terms = [(c, product(names, c)) for names, c in self.terms()]
        constant, divisor, after = (self.get(field, 8, signed=True) for field in ("constant_", "divisor_", "after_"))
        if constant or not terms:
            terms.append((constant, ""))
        text = ""
        for coefficient, what in terms:
            text += (" - " if coefficient < 0 else " + ") if text else "-" if coefficient < 0 else ""
            size = abs(coefficient)
            text += "%d" % size if not what else what if size == 1 else "%d*%s" % (size, what)
        if divisor != 1:
            text = "(%s)//%d" % (text, divisor)
            text += "" if after == 0 else " %s %d" % ("-" if after < 0 else "+", abs(after))
        return text

    def terms(self):
        """A std::map of vectors of names to numbers: a tree of nodes (colour, parent, left, right, pair)."""
        root = number(self.address + offset("SymInt.terms_") + 16)
        waiting, found = [root], []
        while waiting and len(found) < 100:
            node = waiting.pop()
            if node:
                names = [text_at(at) for at in vector_at(node + 32, offset("sizeof.string"))]
                found.append((names, number(node + 32 + 24, 8, signed=True)))
                waiting += pointers(node + 16, 2)
        return sorted(found)


class GraphValue(Fields):
    KINDS = ("input", "parameter", "constant", "")

    def __init__(self, address):
        super().__init__("Value", address)

    def name(self):
        return text_at(self.address + offset("Value.name")) or "%%%d" % self.get("number", 4)

    def type(self):
        sizes = [SymInt(at).text() for at in vector_at(self.address + offset("Value.shape"), offset("sizeof.SymInt"))]
        device = self.device()
        return "%s %s%s" % (dtype_name(self.get("dtype", 1)), shape_text(sizes), "" if device == "cpu" else " " + device)

    def text(self):
        kind = self.KINDS[min(self.get("kind", 1), 3)]
        text = ("%s %s: %s" % (kind, self.name(), self.type())).strip()
        maker, uses = self.get("maker"), self.get("uses", 16)
        if maker:
            text += " = " + GraphNode(maker).call()
        count = ((uses >> 64) - (uses & (1 << 64) - 1)) // offset("sizeof.Use")
        return text + (", used %s" % ("once" if count == 1 else "%d times" % count) if count else ", not used")


class GraphNode(Fields):
    def __init__(self, address):
        super().__init__("Node", address)

    def values(self, field):
        return [GraphValue(number(at)) for at in vector_at(self.address + offset("Node." + field), 8)]

    def call(self):
        inputs = ", ".join(value.name() for value in self.values("inputs"))
        where, module = str(Place(self.get("loc"))), self.get("module")
        text = "%s(%s)" % (Known.text(number(number(self.address + offset("Node.form")) + offset("OpForm.op"))), inputs)
        return text + (" at " + where if where else "") + (" (in %s)" % module_text(module) if module else "")

    def text(self):
        results = ", ".join("%s: %s" % (value.name(), value.type()) for value in self.values("results"))
        return "%s = %s" % (results, self.call()) if results else self.call()


def graph_value_printed(value):
    return GraphValue(int(value.address)).text()


def graph_node_printed(value):
    return GraphNode(int(value.address)).text()


def sym_int_printed(value):
    return SymInt(int(value.address)).text()


class GraphPrinter:
    """A line, and below it the inputs, nodes and outputs."""

    def __init__(self, value):
        self.address = int(value.address)

    def list(self, field, size=8):
        return list(vector_at(self.address + offset("Graph." + field), size))

    def to_string(self):
        try:
            counts = [counted(len(self.list(field)), name) for field, name in (("inputs_", "input"), ("parameters_", "parameter"), ("nodes_", "op"))]
            counts.append(counted(len(self.list("outputs_", offset("sizeof.Output"))), "output"))
            return "graph of " + ", ".join(counts)
        except (gdb.GdbError, gdb.MemoryError, gdb.error):
            return "<not what it should be: not made yet, or gone>"

    def children(self):
        try:
            for place in self.list("inputs_"):
                yield "input", GraphValue(number(place)).text()
            for i, place in enumerate(self.list("nodes_")):
                yield "[%d]" % i, GraphNode(number(place)).text()
            for place in self.list("outputs_", offset("sizeof.Output")):
                value = GraphValue(number(place + offset("Output.value")))
                yield "output", "%s = %s" % (text_at(place + offset("Output.name")), value.name())
        except (gdb.GdbError, gdb.MemoryError, gdb.error):
            return


PRINTERS = {
    "tapir::Graph": GraphPrinter,
    "tapir::Graph::Value": graph_value_printed,
    "tapir::Graph::Node": graph_node_printed,
    "tapir::SymInt": sym_int_printed,
    "tapir::Tensor": tensor_printed,
    "tapir::TensorImpl": tensor_printed,
    "tapir::Shape": shape_printed,
    "tapir::Storage": storage_printed,
    "tapir::Tape": tape_printed,
    "tapir::Record": record_printed,
    "tapir::nn::Module": module_printed,
    "tapir::Error": error_printed,
    "tapir::optim::Optimizer": optimizer_printed,
}


class Lookup:
    """For gdb: the printer of a value's type, or of a base."""

    name = "tapir"
    enabled = True
    found = {}

    def __call__(self, value):
        kind = value.type.unqualified().strip_typedefs()
        if kind.code != gdb.TYPE_CODE_STRUCT or not kind.name:
            return None
        if kind.name not in self.found:
            self.found[kind.name] = next((make for base, make in PRINTERS.items() if base_named(kind, base) is not None), None)
        make = self.found[kind.name]
        if isinstance(make, type):  # a printer with children
            return make(value) if value.address is not None else None
        return Printer(value, make) if make else None


# --- Methods in expressions: print x.shape(), x.size(-1), x[0] -----------------------------------------------------------------


def shape_value(sizes):
    """A tapir::Shape, where the program's debug information has that type, else its text."""
    try:
        kind = gdb.lookup_type("tapir::Shape")
    except gdb.error:
        return shape_text(sizes)
    made = bytearray(kind.sizeof)
    places = {field.name: field.bitpos // 8 for field in kind.fields()}
    struct.pack_into("<%dq" % len(sizes), made, places["sizes_"], *sizes)
    made[places["rank_"]] = len(sizes)
    return gdb.Value(bytes(made), kind)


def enum_value(kind, text, number):
    try:
        return gdb.Value(number).cast(gdb.lookup_type(kind))
    except gdb.error:
        return text


def one_of(sizes, d, what):
    if not -len(sizes) <= d < len(sizes):
        raise gdb.GdbError("%s: there is no dimension %d of %d" % (what, d, len(sizes)))
    return sizes[d]


def item_of(tensor):
    if tensor.numel != 1:
        raise gdb.GdbError("item: the tensor has %d elements" % tensor.numel)
    return list(tensor.rows(1))[0][0]


# What tensors answer without a call of the program; the lines that these methods take are left out.
METHODS = {
    "shape": lambda t: shape_value(t.sizes),
    "sizes": lambda t: shape_value(t.sizes),
    "strides": lambda t: shape_value(t.strides),
    "size": lambda t, d: one_of(t.sizes, int(d), "size"),
    "stride": lambda t, d: one_of(t.strides, int(d), "stride"),
    "dim": lambda t: len(t.sizes),
    "ndim": lambda t: len(t.sizes),
    "numel": lambda t: t.numel,
    "is_contiguous": lambda t: t.contiguous(),
    "dtype": lambda t: enum_value("tapir::DType", t.dtype, t.dtype_number),
    "item": item_of,
    "operator[]": lambda t, i: t.sliced(str(int(i))).text(),
}


class TensorMethod(gdb.xmethod.XMethod, gdb.xmethod.XMethodWorker):
    def __init__(self, name):
        gdb.xmethod.XMethod.__init__(self, name)
        self.made = METHODS[name]

    def get_arg_types(self):
        return [gdb.lookup_type("long")] if self.made.__code__.co_argcount > 1 else None

    def __call__(self, value, *arguments):
        impl = impl_of(value)
        if not impl:
            raise gdb.GdbError("%s: the tensor is undefined" % self.name)
        return self.made(Tensor(impl), *arguments)


class TensorMethods(gdb.xmethod.XMethodMatcher):
    def __init__(self):
        gdb.xmethod.XMethodMatcher.__init__(self, "tapir")
        self.methods = [TensorMethod(name) for name in METHODS]

    def match(self, kind, name):
        if kind.strip_typedefs().unqualified().name != "tapir::Tensor":
            return None
        return next((m for m in self.methods if m.name == name and m.enabled), None)


# --- Backtraces -----------------------------------------------------------------------------------------------------------------


class PlainFrame(gdb.FrameDecorator.FrameDecorator):
    """A frame as `bt` shows it without filters: gdb's own decorator writes the parameters' types a second time."""

    def function(self):
        name = self.inferior_frame().name()
        return name if name is None else re.sub(r"(?<!operator)\((?!anonymous namespace\)).*", "", name)


class UsersFrames:
    """Backtraces begin with the program's frame: the library's above it are left out. `bt -no-filters` has them all, and so has a
    thread that runs nothing else."""

    name = "tapir"
    enabled = True
    priority = 100

    def filter(self, frames):
        folders, above = library_folders(), []
        for decorated in frames:
            if above is not None:
                above.append(decorated)
                if is_inside(decorated.inferior_frame(), folders):
                    continue
                above = None
            yield PlainFrame(decorated)
        yield from above or []


class PlacedFrame(gdb.FrameDecorator.FrameDecorator):
    """A frame with its line: where something was inlined, gdb says the line of a header."""

    def __init__(self, base, place):
        super().__init__(base)
        self.place = place

    def filename(self):
        return self.place.file

    def line(self):
        return self.place.line


class FibersFrames:
    """The backtrace of one instance: the program's own frames, from `begin` on, which is at `place`."""

    name = "tapir fibers"
    enabled = False
    priority = 200  # before UsersFrames
    begin, place = 0, None

    def filter(self, frames):
        folders, others = library_folders(), []
        for decorated in frames:
            frame = decorated.inferior_frame()
            if frame.level() < self.begin:
                continue
            if is_inside(frame, folders) or self.is_of_header(frame):
                if others is not None:
                    others.append(decorated)
                continue
            is_first, others = others is not None, None
            yield PlacedFrame(decorated, self.place) if is_first and self.place.line else decorated
        yield from others or []

    @staticmethod
    def is_of_header(frame):
        """A function of the standard library that was inlined in the library, where it has no namespace; or batch()'s lambda."""
        function, place = frame.function(), frame.find_sal().symtab
        if place is not None and place.filename.endswith("/ops/batch/batch.h"):
            return True
        return (function is not None and not function.name.startswith("operator()") and function.symtab is not None
                and HEADERS.search(function.symtab.fullname()) is not None)


# --- Stopping at ops ------------------------------------------------------------------------------------------------------

FORWARD, BACKWARD, RESULT, FUNCTION = 0, 1, 2, 3  # FUNCTION: the backward of one of the program's


class Op:
    """What the library says when it stops."""

    def __init__(self):
        fields = Fields("GdbState", address_of("tapir_gdb_state"), offset("GdbState.watching_ops") + 8)
        self.kind, self.line = fields.get("kind", 4), fields.get("line", 4)
        self.name, self.file = Known.text(fields.get("op")), Known.text(fields.get("file"))
        self.is_function = self.kind == FUNCTION
        if self.is_function:
            self.kind = BACKWARD
        self.impl, self.module = fields.get("tensor"), module_text(fields.get("module"))
        self.message = c_string(fields.get("message"))

    @property
    def sizes(self):
        return Tensor(self.impl).sizes if self.impl else None

    def __str__(self):
        what = self.name + (" backward" if self.kind == BACKWARD else "")
        place = "%s:%d" % (os.path.basename(self.file), self.line)
        text = "%s: %s" % (place, what) if self.line else what
        if self.impl:
            tensor = Tensor(self.impl)
            names = {FORWARD: "", BACKWARD: "gradient ", RESULT: "makes "}
            text += ", %s%s %s" % (names[self.kind], tensor.dtype, shape_text(tensor.sizes))
        return text + (" (in %s)" % self.module if self.module else "")


def library_folders():
    """Where the library's sources are, if it has debug information."""
    found = gdb.lookup_global_symbol("tapir::tapir_gdb_op") or gdb.lookup_global_symbol("tapir_gdb_op")
    if found is None:
        return ()
    root = os.path.dirname(os.path.dirname(os.path.dirname(found.symtab.fullname())))
    return tuple(os.path.join(root, name, "") for name in ("core", "autograd", "ops", "nn", "optim", "cuda"))


HEADERS = re.compile(r"/include/(?:.*/)?c\+\+/|/tapir/(?:core|autograd|ops|nn|optim|cuda)/.*\.(?:h|def)$")


def is_inside(frame, folders, base=""):
    """Whether a function is the library's, or the standard library's. base: the name of the op's file."""
    name = frame.name()
    if not name:
        return True
    head = re.sub(r"<.*", "", name.split("(")[0] or name).split(" ")[-1]
    if head.startswith(("tapir::", "tapir_gdb_", "std::", "__gnu_cxx::")):
        return True
    if name.startswith(("operator()", "_FUN")):  # a lambda, which goes without its namespace
        symbol = gdb.execute("info symbol %d" % frame.pc(), to_string=True)
        is_of_library = symbol.startswith(("tapir::", "void tapir::", "tapir_gdb_"))
        if frame.type() == gdb.INLINE_FRAME:  # then the symbol is that of what it was inlined in, as std::thread's
            begin, end, declared, unit = inlined(frame)
            source = declared or (unit if unit is not None and lines_between(unit, begin, end) else None)
            if source is not None and (not is_of_library or os.path.basename(source.filename) == base):
                return source.fullname().startswith(folders) or bool(HEADERS.search(source.fullname()))
        if is_of_library or symbol.startswith("std::"):
            return True
    function = frame.function()
    return function is not None and function.symtab is not None and function.symtab.fullname().startswith(folders)


def block_of(frame):
    try:
        block = frame.block()
    except RuntimeError:  # of a program without debug information
        return None
    while block is not None and block.function is None:
        block = block.superblock
    return block


def inlined(frame):
    """Of a lambda that was inlined: where its code begins and ends, the file in which its variables are declared, if it has any, and
    that which was compiled. (The function's own file is for gdb the one that calls it.)"""
    block = block_of(frame)
    if block is None:
        return 0, 0, None, None
    symbols = [symbol for symbol in block if symbol.symtab is not None and not symbol.is_function]
    declared = [symbol.symtab for symbol in symbols if symbol.line > 0]
    units = [symbol.symtab for symbol in symbols if symbol.line == 0]  # as __closure
    return block.start, block.end, declared[0] if declared else None, units[0] if units else None


def lines_between(symtab, begin, end):
    try:
        symtab.linetable().has_line(1)
    except RuntimeError:  # it has none, as where several sources are compiled as one; gdb 13 would crash below
        return []
    return [(entry.pc, entry.line) for entry in symtab.linetable() if begin <= entry.pc < end and entry.line > 0]


def users_frame(file, line, frame=None):
    """The frame of the op's line; else the first outside of the library. They are sought from `frame` on."""
    same_file = outside = None
    frame, base, folders = frame or gdb.newest_frame(), os.path.basename(file), library_folders()
    for _ in range(200):
        if frame is None or not frame.is_valid():
            break
        place = frame.find_sal()
        is_there = place.symtab is not None and os.path.basename(place.symtab.filename) == base
        if is_there and place.line == line:
            return frame
        if not is_inside(frame, folders, base):
            outside = outside or frame
            if is_there and same_file is None:
                same_file = frame
        frame = frame.older()
    return outside or same_file


def line_in_function(op, frame):
    """File and line of a frame whose instruction belongs to a header, since something was inlined there; else None."""
    place, function, block = frame.find_sal(), frame.function(), block_of(frame)
    if place.symtab is None or function is None or block is None:
        return None
    own, is_op_there = function.symtab, op.kind != BACKWARD and op.line > 0
    if function.name == "operator()" and frame.type() == gdb.INLINE_FRAME:
        if is_op_there:
            is_right = os.path.basename(place.symtab.filename) == os.path.basename(op.file)
            return None if is_right else (op.file, op.line)
        _, _, declared, unit = inlined(frame)
        own = declared or unit or own
    if place.symtab.filename == own.filename:
        return None
    if is_op_there and os.path.basename(own.filename) == os.path.basename(op.file):
        return own.filename, op.line
    lines = lines_between(own, block.start, frame.pc())
    return (own.filename, max(lines)[1]) if lines else None


def print_frame(op, frame):
    frame.select()
    text = gdb.execute("frame", to_string=True)
    place = line_in_function(op, frame)
    if place is not None:
        file, line = place
        try:
            source = gdb.execute("list %s:%d,%d" % (file, line, line), to_string=True)
        except gdb.error:
            source = ""
        text = re.sub(r" at \S+:\d+\n.*\n?$", lambda _: " at %s:%d\n%s" % (file, line, source), text)
    print(text, end="")


def is_live():
    inferior = gdb.selected_inferior()
    try:
        return inferior.pid != 0 and inferior.connection is not None and inferior.connection.type != "core"
    except AttributeError:
        return inferior.pid != 0


class Names:
    """The names that ops may go by: functions have more of them than there are rows of ops (conv2d, linalg::qr), and a program may
    have its own. All of them are constants of the program or of a library."""

    # Rows that no op begins as, and functions that hand on to others at once.
    OTHERS = {
        "part": ["index"], "slice": ["narrow"], "pieces": ["split", "chunk", "unbind"], "windows": ["unfold"],
        "to_dtype": ["to"], "to_device": ["to"], "index_put_add": ["index_put_"], "bernoulli_fill": ["bernoulli_"],
        "concat": ["cat"], "clip": ["clamp"], "argwhere": ["nonzero"], "swapaxes": ["transpose"], "moveaxis": ["movedim"],
        "ravel": ["flatten"], "T": ["t"], "view_as": ["view"], "reshape_as": ["reshape"], "expand_as": ["expand"],
        "broadcast_to": ["expand"], "new_empty": ["empty"], "new_zeros": ["zeros"], "new_ones": ["ones"], "new_full": ["full"],
        "type_as": ["to"], "half": ["to"], "max_pool2d_with_indices": ["max_pool2d"],
        "step": "adadelta adagrad adagrad_da adam adamax adamw asgd lion nadam radam rmsprop rprop sgd".split(),
    }
    LARGEST = 64 << 20  # of a section to look through: others hold a GPU's kernels

    @classmethod
    def sections(cls):
        """The constants of the program and of the libraries that are loaded, one after the other; the program's are the first."""
        for line in gdb.execute("info files", to_string=True).splitlines():
            found = re.match(r"\s*0x([0-9a-f]+) - 0x([0-9a-f]+) is (?:\.rodata(?:\.\S+)?|__TEXT\.__cstring)(?: in |$)", line)
            if not found:
                continue
            begin, end = (int(number, 16) for number in found.groups())
            if end - begin > cls.LARGEST:
                continue
            if begin not in Known.constants:
                try:
                    Known.constants[begin] = read(begin, end - begin)
                except gdb.MemoryError:
                    continue
            yield Known.constants[begin]

    @classmethod
    def near(cls, name):
        """Those that differ little, of functions that are there."""
        found = set()
        for section in cls.sections():
            for text in re.findall(rb"\0([A-Za-z_]\w*(?:::\w+)*)(?=\0)", section):
                for length in range(max(2, len(name) - 2), min(len(text), len(name) + 2) + 1):  # its end may be one, see check()
                    found.add(text[-length:].decode())
        close = []
        for text in difflib.get_close_matches(name, found, n=40, cutoff=0.7):
            try:
                gdb.decode_line(text)
            except gdb.error:
                continue
            close.append(text)
            if len(close) == 3:
                break
        return close

    @classmethod
    def function(cls, name):
        """What tapes call a Function of the program's, by the name of its type, with its namespaces or without; else None."""
        for section in cls.sections():
            for text in re.findall(rb"tapir::Function<[^\0]*\[(?:with )?Self = ([^\0]*)\]\0", section):
                full, depth, first = text.decode(errors="replace"), 0, 0
                for i, c in enumerate(full):  # as autograd/function.cpp does
                    depth += (c in "<([{") - (c in ">)]}")
                    if depth == 0 and c == ":":
                        first = i + 1
                if name in (full, full[first:]):
                    return full[first:]
        return None

    @staticmethod
    def is_function(name):
        """Whether the library has it."""
        for scope in ("tapir::", "tapir::Tensor::"):
            try:
                gdb.decode_line(scope + name)
                return True
            except gdb.error:
                pass
        return False

    @classmethod
    def is_there(cls, name):
        """Whether an op can have it, as far as the constants say; None where there are none."""
        long_enough, is_looked_at = [], None  # two letters, or one, are the end of many a text
        for begun in cls.begun(name):
            if len(begun.rstrip("_")) > 2:
                long_enough.append(begun)
            elif cls.is_function(begun):
                return True
        for section in cls.sections():
            is_looked_at = False
            if any(cls.is_in(section, begun) for begun in long_enough):
                return True
        return is_looked_at

    @staticmethod
    def is_in(section, name):
        """The linker makes one of two texts that end alike, so nothing need stand before; but 4Clip is the name of a type."""
        text, length = name.encode() + b"\0", b"%d" % len(name)
        at = section.find(text)
        while at >= 0 and section[max(at - len(length), 0):at] == length:
            at = section.find(text, at + 1)
        return at >= 0

    @classmethod
    def begun(cls, name):
        """The names under which an op may begin that the tape, the profiler or an error calls so: fill begins as fill_."""
        return [name, name + "_"] + cls.OTHERS.get(name, [])

    @classmethod
    def rows(cls):
        """The names of all rows of ops."""
        address = address_of("tapir_gdb_op_names")
        if address not in Known.constants:
            text = read(address, number(address_of("tapir_gdb_op_names_size"))).decode()
            Known.constants[address] = set(text.split("\0")) - {""}
        return Known.constants[address]

    @classmethod
    def is_own(cls, name):
        """Whether it is the name of an op or a function of the library; None: an older library does not say."""
        try:
            rows = cls.rows()
        except (gdb.GdbError, gdb.MemoryError):
            return None
        return any(begun.rstrip("_") in rows or cls.is_function(begun) for begun in cls.begun(name))

    @classmethod
    def check(cls, name):
        """Refuses the name of an op that nothing can have, and says so where only a Function of the program's can have it."""
        try:
            address_of("tapir_gdb_op")
        except gdb.GdbError:
            return  # the library comes later
        is_own = cls.is_own(name)
        if is_own or cls.is_there(name) is not False:
            if is_own is False and re.fullmatch(r"[\w:]+", name):  # of others, "is a Function" says it
                print("no op of tapir is called %s: this stops only at a Function with this name" % name)
            return
        if gdb.parameter("breakpoint pending"):  # "on": see gdb's help of it
            print("no op has the name %s yet" % name)
            return
        close = cls.near(name)
        raise gdb.GdbError("tapir break: no op has the name %s%s; if a library is loaded later that has it: set breakpoint pending on"
                           % (name, ", is it %s?" % " or ".join(close) if close else ""))


class Places:
    """What a breakpoint at a file's line may never reach: that is said, and it is set all the same, for what comes later. A module that
    a running program does not have among others is refused."""

    @classmethod
    def check_line(cls, file, line):
        try:
            gdb.decode_line("%s:%d" % (file, line))
            return
        except gdb.error as error:
            said = str(error)
        if not said.startswith("No line"):  # the file may be one without debug information: its ops name it all the same
            named = re.compile(rb"[/\0]%s\0" % re.escape(file.encode()))
            if any(named.search(section) for section in Names.sections()):
                return
            said = "No source file named %s." % file
        print(said)

    @classmethod
    def check_module(cls, pattern):
        if not is_live():
            return
        try:
            at, known = number(address_of("tapir_gdb_modules")), []
        except (gdb.GdbError, gdb.MemoryError):
            return  # the library comes later
        while at:
            known.append(module_text(at))
            at = number(at + offset("ModuleName.next"))
        if any(fnmatch.fnmatchcase(name, pattern) for name in known):
            return
        if not known or gdb.parameter("breakpoint pending"):  # "on": see gdb's help of it
            print("No module is known as %s yet" % pattern)
            return
        close = difflib.get_close_matches(pattern, known, n=3, cutoff=0.5) or sorted(known)[:3]
        raise gdb.GdbError("tapir break: no module is known as %s, but %s; if it is made later: set breakpoint pending on"
                           % (pattern, ", ".join(close)))


class Says(gdb.Function):
    """$_tapir(WHAT): true. As its condition it lets info breakpoints say what a breakpoint of tapir stops at."""

    def __init__(self):
        super().__init__("_tapir")

    def invoke(self, *_):
        return True


class Watch:
    """The library's switches, as the breakpoints that are there want them."""

    breakpoints = []

    @classmethod
    def active(cls):
        cls.breakpoints = [b for b in cls.breakpoints if b.is_valid() and not getattr(b, "is_gone", False)]
        return [b for b in cls.breakpoints if b.enabled]

    @classmethod
    def apply(cls):
        if not is_live():
            return
        try:
            cls.write(address_of("tapir_gdb_state"), state("watching_ops", 8))
        except (gdb.GdbError, gdb.MemoryError):
            pass  # the library is not loaded yet, or not any more

    @classmethod
    def write(cls, base, counter):
        count = number(counter, 4, signed=True)  # fails while the program is being loaded

        def put(field, value, size=4):
            memory = value if isinstance(value, bytes) else value.to_bytes(size, "little")
            gdb.selected_inferior().write_memory(base + offset("GdbState." + field), memory)

        active = cls.active()
        ops = [b for b in active if isinstance(b, OpBreakpoint)]
        checks = len(active) - len(ops)
        before = state("watching") + state("checking") > 0
        wanted = "\n".join(entry for b in ops for entry in b.wanted) if all(b.wanted for b in ops) else ""
        text = wanted.encode()
        size = offset("sizeof.GdbState.wanted")
        put("wanted", text.ljust(size, b"\0") if len(text) < size else bytes(size))
        put("watching", len(ops))
        put("results", sum(b.results for b in ops))
        put("checking", checks)
        change = (len(active) > 0) - before
        if change:
            gdb.selected_inferior().write_memory(counter, (count + change).to_bytes(4, "little", signed=True))

    @classmethod
    def start(cls):
        """The switches are memory of the program: they are set when it runs."""
        if not Starting.there():
            Starting()
        cls.apply()


class Starting(gdb.Breakpoint):
    instance = None

    def __init__(self):
        super().__init__("main", internal=True)
        self.silent = True
        Starting.instance = self

    @classmethod
    def there(cls):
        return cls.instance is not None and cls.instance.is_valid()

    def stop(self):
        Watch.apply()
        return False


def in_call_from_gdb():
    frame = gdb.newest_frame()
    for _ in range(200):
        if frame is None:
            return False
        if frame.type() == gdb.DUMMY_FRAME:
            return True
        frame = frame.older()
    return False


class TapirBreakpoint(gdb.Breakpoint):
    def __init__(self, symbol, internal):
        super().__init__(symbol, internal=internal)
        self.silent, self.is_reached = True, False
        if not internal:
            self.condition = '$_tapir("%s")' % re.sub(r'(["\\])', r"\\\1", self.what)  # for info breakpoints, see Says
        Watch.breakpoints.append(self)
        Watch.start()


def quietly(make):
    """What it makes, without what gdb says of it: that there is a breakpoint in a function of the library."""
    made = []
    gdb.tapir_make = lambda: made.append(make())
    gdb.execute("python gdb.tapir_make()", to_string=True)
    return made[0]


class OpBreakpoint(TapirBreakpoint):
    def __init__(self, what, matches, wanted=(), results=False, skipped=0, internal=False):
        self.what, self.matches, self.wanted, self.results, self.skipped = what, matches, list(wanted), results, skipped
        super().__init__("tapir_gdb_op", internal)

    def stop(self):
        op = Op()
        if not self.matches(op) or in_call_from_gdb():
            return False
        if self.skipped > 0:
            self.skipped -= 1
            return False
        Stopped.at = (self, op, str(op))
        self.is_reached = True
        return True


class NonfiniteBreakpoint(TapirBreakpoint):
    what = "nan and inf"

    def __init__(self):
        super().__init__("tapir_gdb_nonfinite", False)

    def stop(self):
        op = Op()
        Stopped.at = (self, op, op.message)
        return True


class Stopped:
    """Says where the program has stopped, in terms of the user's lines."""

    at = None

    @classmethod
    def on_stop(cls, event):
        at, cls.at = cls.at, None
        is_hit = at is not None and isinstance(event, gdb.BreakpointEvent)
        if is_hit:
            breakpoint, op, text = at
            print(text if breakpoint.number < 0 else "Tapir breakpoint %d, %s" % (breakpoint.number, text))
        Next.end()
        if not is_hit:
            return
        frame = users_frame(op.file, op.line)
        if frame is not None:
            print_frame(op, frame)

    @classmethod
    def on_exit(cls, event):
        cls.at = None
        Next.end()
        Known.forget()
        for breakpoint in Watch.active():
            is_never = not breakpoint.is_reached and isinstance(breakpoint, OpBreakpoint)
            if is_never and hasattr(event, "exit_code"):  # not killed; is the op's name misspelt?
                print("Tapir breakpoint %d was not reached: %s" % (breakpoint.number, breakpoint.what))
            breakpoint.is_reached = False


class Next:
    """The breakpoint of `tapir next`."""

    breakpoint = None

    @classmethod
    def end(cls):
        breakpoint, cls.breakpoint = cls.breakpoint, None
        if breakpoint is not None and breakpoint.is_valid():
            breakpoint.is_gone = True
            breakpoint.delete()
            Watch.apply()


def on_breakpoint_changed(breakpoint):
    if breakpoint in Watch.breakpoints:
        Watch.apply()


def on_breakpoint_deleted(breakpoint):
    if breakpoint in Watch.breakpoints:
        breakpoint.is_gone = True
        Watch.apply()


# --- Instances of batch() --------------------------------------------------------------------------------------------------


class BatchPart:
    """A struct of the scheduler of batch(), or of an instance's fiber."""

    def __init__(self, type_name, address, table="tapir_gdb_batch"):
        self.type_name, self.address, self.offsets = type_name, address, Known.table(table)

    def at(self, field):
        return self.address + self.offsets["%s.%s" % (self.type_name, field)]

    def get(self, field, size=8, signed=False):
        return number(self.at(field), size, signed)

    def frame(self, field):
        """One call of batch()."""
        address = self.get(field)
        return BatchPart("Frame", address) if address else None


class InstanceRow:
    """inner: how many batch() calls are on the stack above it, whose last items it runs itself."""

    def __init__(self, path, fiber, is_running, inner):
        self.path, self.fiber, self.is_running, self.inner = path, fiber, is_running, inner
        self.state, self.op, self.place, self.module = "ready", "", Place(0), ""

    def text(self):
        return ".".join(map(str, self.path)), self.state, self.op, str(self.place), self.module

    def users_frame(self, newest):
        frame = newest
        for _ in range(self.inner):
            while frame is not None and not (frame.name() or "").startswith("tapir::detail::run_batch"):
                frame = frame.older()
            frame = frame and frame.older()
        return users_frame(self.place.file, self.place.line, frame) or newest


class Instances:
    """The instances of a thread's batch() calls. One that calls batch() runs its last item itself: it is several rows then."""

    def __init__(self):
        shown = self.shown = self.of_thread()
        computed, self.computed = shown.get("computed"), ()
        if computed:
            begin, end = pointers(computed, 2)
            self.computed = pointers(begin, (end - begin) // 8)
        self.running = number(shown.get("running"))
        self.all, address = {}, shown.get("instances")
        while address:
            self.all[address] = BatchPart("BatchInstance", address)
            address = self.all[address].get("next")
        self.rows = sorted((row for instance in self.all.values() for row in self.rows_of(instance)), key=lambda row: row.path)

    @staticmethod
    def of_thread():
        thread, others, address = gdb.selected_thread(), [], number(address_of("tapir_gdb_batches"))
        while address:
            shown = BatchPart("BatchShown", address)
            if thread is not None and thread.ptid[1] == shown.get("thread", 4):
                return shown
            others += [str(t.num) for t in gdb.selected_inferior().threads() if t.ptid[1] == shown.get("thread", 4)]
            address = shown.get("next")
        raise gdb.GdbError("tapir: no batch() runs on this thread" + (
            ", but on thread %s: choose it with the command thread" % ", ".join(others) if others else ""))

    def head(self):
        frame = self.shown.frame("outermost")
        count, begun, running = (frame.get(field, signed=True) for field in ("count", "next", "running"))
        numbers = counted(count, "item"), begun - running, count - begun
        return "batch() at %s: %s, %d ended, %d to come" % (Place(frame.get("loc")), *numbers)

    def caller(self, frame):
        """The path of the instance that has called batch()."""
        parent, outer = frame.get("parent"), frame.frame("outer")
        if not parent:
            return ()
        is_inner = outer.get("parent") == parent
        return self.caller(outer) + (outer.get("run_by_parent") if is_inner else self.all[parent].get("number"),)

    def rows_of(self, instance):
        fiber = BatchPart("Fiber", instance.at("fiber"), "tapir_gdb_fiber")
        frame, inner, rows = instance.frame("frame"), None, []
        while True:
            is_own = frame.get("parent") != instance.address
            last = instance.get("number") if is_own else frame.get("run_by_parent")
            row = InstanceRow(self.caller(frame) + (last,), fiber, instance.address == self.running, len(rows))
            if inner is None:
                self.describe(row, instance)
            else:
                self.waits_for_batch(row, inner)
            rows.append(row)
            if is_own:
                return rows
            inner, frame = frame, frame.frame("outer")

    def describe(self, row, instance):
        if row.is_running:
            row.state, row.module = "runs", self.module(self.shown.get("state"))
            frame = users_frame("", 0)
            if frame is not None and frame.find_sal().symtab is not None:
                row.place.file, row.place.line = frame.find_sal().symtab.filename, frame.find_sal().line
            return
        if not row.fiber.get("caller_"):
            row.state = "has not begun"
            return
        address, state, awaited = instance.get("waiting"), instance.at("state"), instance.frame("awaits")
        if awaited is not None:
            self.waits_for_batch(row, awaited)
            if awaited.get("running") == 0:
                row.state = "ready"
            return
        if not address:
            return
        waiting = BatchPart("Waiting", address)
        call = BatchPart("BatchCall", waiting.get("call"))
        if address in self.computed:
            row.state = "is computed"
            if len(self.computed) > 1 and address == self.computed[0]:  # the group runs with this instance's state
                state = self.shown.get("state")
        elif not waiting.get("is_ready", 1):
            row.state = "waits for peers"
        row.op, row.module = Known.text(number(call.get("op") + offset("OpInfo.name"))), self.module(state)
        row.place = Place(BatchPart("ThreadState", state).get("caller"))
        if not row.place.line:
            row.place = Place(number(call.get("loc")))

    @staticmethod
    def waits_for_batch(row, frame):
        row.state, row.op, row.place = "waits for an inner batch()", "batch", Place(frame.get("loc"))

    @staticmethod
    def module(state):
        return module_text(BatchPart("ThreadState", state).get("module"))


class FiberUnwinder(gdb.unwinder.Unwinder):
    """Lets gdb see the stack of a fiber that is suspended: as if the thread's newest frame had been called by it. Nothing changes in
    the program, not even a register."""

    def __init__(self):
        super().__init__("tapir fibers")
        self.registers = None

    def __call__(self, pending):
        if self.registers is None or any(int(pending.read_register(name)) != value for name, value in self.newest.items()):
            return None
        # gdb takes a stack for broken whose frames do not lie above their callee's.
        sp, pc = self.value(pending, "rsp", self.registers["rsp"] - 8), pending.read_register("rip")
        made = pending.create_unwind_info(FrameId(sp, pc))
        for name, number_there in self.registers.items():
            made.add_saved_register(name, self.value(pending, name, number_there))
        return made

    @staticmethod
    def value(pending, register, number_there):
        return gdb.Value(number_there).cast(pending.read_register(register).type)

    def enter(self, fiber):
        """Returns the fiber's newest frame."""
        context, registers = fiber.get("context_"), {}
        for name, at in fiber.offsets.items():
            if name.startswith("saved."):
                registers[name[6:]] = number(context + at)
        if not registers:
            raise gdb.GdbError("tapir fibers: backtraces of suspended instances are known on x86-64 only")
        registers["rsp"] = context + fiber.offsets["rsp"]
        if "tapir::" not in gdb.execute("info symbol %d" % registers["rip"], to_string=True):
            raise gdb.GdbError("tapir fibers: the registers of this instance are not where Boost.Context 1.74 saves them")
        newest = gdb.newest_frame()
        self.newest = {name: int(newest.read_register(name)) for name in ("rsp", "rip")}
        self.registers = registers
        gdb.invalidate_cached_frames()
        frame = gdb.newest_frame()
        while frame.type() == gdb.INLINE_FRAME:
            frame = frame.older()
        return frame.older()

    def leave(self):
        if self.registers is not None:
            self.registers = None
            gdb.invalidate_cached_frames()


class FrameId:
    def __init__(self, sp, pc):
        self.sp, self.pc = sp, pc


# --- Commands -------------------------------------------------------------------------------------------------------------


class Command(gdb.Command):
    def __init__(self):
        super().__init__("tapir " + self.word, self.kind, getattr(self, "completes", gdb.COMPLETE_NONE))

    def invoke(self, argument, from_tty):
        try:
            self.run(argument.strip())
        except gdb.error as error:  # without a traceback
            raise gdb.GdbError("tapir %s: %s" % (self.word, error))


class Prefix(gdb.Command):
    """Looks inside a program that uses Tapir: its tape, its tensors, its ops.

A tensor, a shape, a tape, a module or an error is printed readably by print, info locals and backtrace."""

    def __init__(self):
        super().__init__("tapir", gdb.COMMAND_DATA, gdb.COMPLETE_NONE, True)

    def invoke(self, argument, from_tty):
        docs = {command.word: command.__doc__.splitlines()[0] for command in Command.__subclasses__()}
        if argument:
            close = difflib.get_close_matches(argument.split()[0], docs, n=1)
            raise gdb.GdbError('Undefined tapir command: "%s".%s Try "tapir" for a list.' % (
                argument, " Is it %s?" % close[0] if close else ""))
        for word in sorted(docs):
            print(docs[word])


class TapeCommand(Command):
    """tapir tape [PATTERN]: the records of this thread's innermost tape as a table.

Index, op, output, its bytes, the records that it was made of ("-": a constant), the line of your program, and the path of the
module (see nn::ModuleScope), or a parameter's name. "pieces #1" is the second output of the op before it. With a pattern: only the
records that have it in one of the columns.
    tapir tape encoder.cell
    tapir tape model.cpp:42"""

    word, kind = "tape", gdb.COMMAND_DATA

    def run(self, pattern):
        log = current_log()
        rows = [("#", "op", "output", "bytes", "inputs", "line", "module")]
        for record in log.all():
            inputs = ["-" if i == offset("kNoValue") or i < log.begin else str(i - log.begin) for i in record.inputs]
            row = (str(record.index - log.begin), record.op, record.output(), size_text(record.bytes), ", ".join(inputs),
                   str(record.place), record.module)
            if any(pattern in cell for cell in row):
                rows.append(row)
        print(tape_head(log, log.opened))
        if len(rows) == 1 and pattern:
            print('no record has "%s"' % pattern)
        else:
            print_table(rows, right=(0, 3))


class RecordCommand(Command):
    """tapir record N: all about one record of the tape: its inputs, attributes, what it has saved for backward, and who uses it.

N is the record's number in `tapir tape`."""

    word, kind = "record", gdb.COMMAND_DATA

    def run(self, argument):
        log = current_log()
        if not re.fullmatch(r"\d+", argument) or int(argument) >= len(log):
            raise gdb.GdbError("tapir record: expected the number of a record, 0 to %d (see tapir tape)" % (len(log) - 1) if len(log)
                               else "tapir record: the tape has no records yet")
        record = Record(log, log.begin + int(argument))
        print("record %s: %s at %s%s" % (argument, record.op, record.place, " in " + record.module if record.module else ""))
        print("  output      %s, %s on %s" % (record.output(), size_text(record.bytes), record.fields.device()))
        for k, value in enumerate(record.inputs):
            what = "a constant" if value == offset("kNoValue") or value < log.begin else Record(log, value).line()
            print("  %-11s %s" % ("inputs" if k == 0 else "", what))
        if record.has("kReleased"):
            print("  saved       given up by the backward at %s" % log.last_backward)
        for k, (impl, version) in enumerate(record.saved):
            print("  %-11s %s" % ("saved" if k == 0 else "", tensor_text(impl)))
            storage = Fields("Storage", Tensor(impl).storage, 64)
            if storage.get("version", 4) != version:
                print("              written to since, at %s" % Place(storage.get("last_write")))
        attributes = self.attributes(record)
        if attributes:
            print("  attributes  " + attributes)
        users = [other for other in log.all() if record.index in other.inputs]
        for k, other in enumerate(users):
            print("  %-11s %s" % ("used by" if k == 0 else "", other.line()))

    @staticmethod
    def attributes(record):
        if record.has("kObject"):
            if record.has("kReleased"):
                return ""  # it is gone
            return "an object, " + (vtable_name(number(record.attrs_at)) or "of a type without a symbol")
        raw = read(record.attrs_at, record.inputs_at - record.attrs_at)
        texts = []
        for at in range(0, len(raw) - 7, 8):  # what they are, the ops' rules know; here their bytes tell
            (whole,), (floating,), (low, high) = (struct.unpack_from(code, raw, at) for code in ("<q", "<d", "<ii"))
            if abs(whole) < 1 << 31:
                texts.append(str(whole))
            elif 1e-30 < abs(floating) < 1e30:
                texts.append("%.6g" % floating)
            else:  # two numbers, or one and what lay there before
                texts += [str(low), str(high)] if abs(high) < 1 << 12 else [str(low)]
        return "%s (%d bytes)" % (", ".join(texts), len(raw)) if texts else ""


class TensorCommand(Command):
    """tapir tensor EXPR [SLICE] [--copy]: a tensor's elements, and what it is.

EXPR is a tensor, a pointer to one, or a TensorImpl*. SLICE is as in Python, in brackets: numbers, begin:end:step, and an ellipsis.
    tapir tensor x
    tapir tensor model.layer.weight [0, :5]
    tapir tensor x [..., -1]
Of long tensors the middle is left out; minimum, maximum and mean are of all elements. Nothing is called in the program, unless
you ask for it: --copy lets the program copy a tensor from a CUDA device, which waits for the device."""

    word, kind, completes = "tensor", gdb.COMMAND_DATA, gdb.COMPLETE_EXPRESSION

    def run(self, argument):
        expression, copied = re.subn(r"\s--copy\b", "", " " + argument)
        expression = expression.strip()
        if not expression:
            raise gdb.GdbError("tapir tensor: expected an expression: tapir tensor x [0, :5]")
        impl, part = self.find(expression)
        if impl == 0:
            print("undefined")
            return
        tensor = Tensor(impl)
        if not tensor.is_here:
            if not copied:
                print(tensor.head())
                print("Its elements are on the device: tapir tensor %s --copy" % expression)
                return
            here = Tensor(self.copy(impl))
            tensor.data, tensor.strides, device = here.data, here.strides, tensor.device
        whole = tensor
        if part is not None:
            tensor = tensor.sliced(part)
        print(self.about(whole) if part is None else "%s of %s" % (shape_text(tensor.sizes), self.about(whole)))
        print(tensor.lines())
        print(tensor.summary(LOOKED_AT_ON_REQUEST))

    @staticmethod
    def find(expression):
        """The tensor, and the slice: brackets at the end, unless what stands before them is no tensor."""
        found = re.fullmatch(r"(.*?)\s*\[([-\d\s:,.]+)\]", expression, re.S)
        if found:
            try:
                impl = impl_of(gdb.parse_and_eval(found.group(1)))
                if impl:
                    return impl, found.group(2)
            except gdb.error:
                pass
        impl = impl_of(gdb.parse_and_eval(expression))
        if impl is None:
            raise gdb.GdbError("tapir tensor: %s is not a tensor" % expression)
        return impl, None

    @staticmethod
    def about(tensor):
        text = tensor.head()
        if tensor.name():
            text += ", " + tensor.name()
        if not tensor.fields.has("kContiguous"):
            text += ", strides " + shape_text(tensor.fields.numbers("strides", len(tensor.sizes)))
        node = offset("TensorImpl.node")
        tape, index = struct.unpack_from("<II", tensor.fields.bytes, node)
        for log in open_logs():
            if log.id == tape and log.begin <= index < len(log.records):
                record = Record(log, index)
                text += ", record %d (%s at %s)" % (index - log.begin, record.op, record.place)
        return text

    @staticmethod
    def copy(impl):
        if not is_live():
            raise gdb.GdbError("tapir tensor: --copy needs a running program")
        counter = state("watching_ops", 8)
        watching = read(counter, 4)
        base = address_of("tapir_gdb_state")
        kept = read(base, offset("GdbState.wanted"))
        inferior = gdb.selected_inferior()
        try:  # the copy is no op to stop at
            inferior.write_memory(counter, bytes(4))
            inferior.write_memory(base, bytes(len(kept)))
            call = "((unsigned long (*)(unsigned long)) %d)(%d)" % (address_of("tapir_gdb_copy"), impl)
            made = int(gdb.parse_and_eval(call))
        except gdb.error as error:  # gdb 13 cannot write the registers of processors with AMX
            raise gdb.GdbError("tapir tensor: gdb cannot call a function of the program here: %s" % error)
        finally:
            inferior.write_memory(base, kept)
            inferior.write_memory(counter, watching)
        if not made:
            raise gdb.GdbError("tapir tensor: " + c_string(state("message", 8)))
        return made


class BreakCommand(Command):
    """tapir break OP | FILE:LINE | shape SHAPE | module PATH: stop where an op begins, in the frame of your program that calls it.

    tapir break matmul            an op, also with * and ?: *conv*; "matmul backward": its rule, in a backward
    tapir break model.cpp:42      any op of this line, forward and backward
    tapir break shape (32, *)     the first operand, a result, or the gradient in a backward has this shape; * is any size
    tapir break module encoder.*  any op in modules whose path matches
    tapir break                   lists what stops
An op's name is that of the function that you call, or what tapes, profiles and errors call it: fill is fill_ too, an optimizer's
update is sgd or adam. A few functions say the one behind them: concat begins as cat, swapaxes as transpose, ravel as flatten,
broadcast_to and expand_as as expand, view_as as view, x.new_zeros as zeros, x.half() and type_as as to. Of a Function of your own
the backward stops. A name that nothing in the program has is refused, unless you have set breakpoint pending on.
These are breakpoints of gdb with numbers of their own: delete, disable and commands work, and info breakpoints says of each what it
stops at, as $_tapir("matmul"). While one is enabled, ops take the ways that say what they do; afterwards the program is as fast as
before."""

    word, kind = "break", gdb.COMMAND_BREAKPOINTS

    def run(self, argument):
        if not argument:
            for b in Watch.breakpoints:
                if b.is_valid() and b.number > 0:
                    print("%d: %s%s" % (b.number, b.what, "" if b.enabled else " (disabled)"))
            return
        parsed = self.parse(argument)
        breakpoint = quietly(lambda: OpBreakpoint(argument, *parsed))
        print("Tapir breakpoint %d: %s" % (breakpoint.number, argument))

    @staticmethod
    def parse(argument):
        """A function of an Op; what of it the library can tell by itself; whether results count."""
        line = re.fullmatch(r"(.+):(\d+)", argument)
        if line:
            file, at = line.group(1), int(line.group(2))
            Places.check_line(file, at)
            return (lambda op: op.kind != RESULT and op.line == at and ("/" + op.file).endswith("/" + file)), [":%d" % at]
        shape = re.fullmatch(r"shape\s*(.*)", argument)
        if shape:
            wanted = [None if item in ("*", "?", "-1") else int(item) for item in re.findall(r"[-\d]+|[*?]", shape.group(1))]
            if not re.fullmatch(r"[\[({\d\s,*?\])}-]+", shape.group(1) or ""):
                raise gdb.GdbError("tapir break: expected a shape, as in: tapir break shape (32, *)")

            def fits(op):
                sizes = op.sizes
                return sizes is not None and len(sizes) == len(wanted) and all(w in (None, s) for w, s in zip(wanted, sizes))

            return fits, [], True
        module = re.fullmatch(r"module\s+(\S+)", argument)
        if module:
            Places.check_module(module.group(1))
            return (lambda op: op.kind != RESULT and fnmatch.fnmatchcase(op.module, module.group(1))), []
        name = re.fullmatch(r"(.+?)(\s+backward)?", argument)
        if re.match(r"(module|shape)\b", argument):
            raise gdb.GdbError("tapir break: expected an op, FILE:LINE, shape SHAPE or module PATH; see help tapir break")
        kind = BACKWARD if name.group(2) else FORWARD
        if re.search(r"[*?[]", name.group(1)):
            return (lambda op: op.kind == kind and fnmatch.fnmatchcase(op.name, name.group(1))), []
        function = Names.function(name.group(1))
        if not function:
            Names.check(name.group(1))
        if kind == FORWARD and (function or not re.fullmatch(r"[\w:]+", name.group(1))):
            print("%s is a Function: what stops is its backward; in its forward the ops that it calls do" % name.group(1))
        if function:
            return (lambda op: op.is_function and op.name == function), [function]
        names = Names.begun(name.group(1))
        if kind == FORWARD and name.group(1) in Names.OTHERS:
            print("%s begins as %s" % (name.group(1), " or ".join(Names.OTHERS[name.group(1)])))
        return (lambda op: (op.kind == kind or op.is_function) and op.name in names), names


class BreakNonfiniteCommand(Command):
    """tapir break-nonfinite: stop at the first op, forward or backward, that makes nan or inf of finite numbers.

It says which, what went in, and the likely cause, as CheckFiniteScope does. Every input and output is looked at: expect a step to
take several times as long. The op is looked at, too, at which a breakpoint of tapir has stopped. Delete the breakpoint to end it."""

    word, kind = "break-nonfinite", gdb.COMMAND_BREAKPOINTS

    def run(self, argument):
        if argument:
            raise gdb.GdbError("tapir break-nonfinite takes no argument")
        print("Tapir breakpoint %d: an op makes nan or inf of finite numbers" % quietly(NonfiniteBreakpoint).number)
        if self.is_late():
            print("An op that has begun already is not looked at")

    @staticmethod
    def is_late():
        """Whether the program has stopped in an op, other than where this asks gdb."""
        frame, folders = gdb.newest_frame() if is_live() else None, library_folders()
        while frame is not None:
            name = frame.name() or ""
            if "tapir_gdb_" in name:
                return False
            if name.startswith("tapir::"):
                return True
            if not is_inside(frame, folders) and frame.function() is not None:
                return False
            frame = frame.older()
        return False


class NextCommand(Command):
    """tapir next [N]: go on to the next op of this thread, or the Nth from here.

It stops where the op begins, in the frame of your program that calls it. In a backward it goes from rule to rule."""

    word, kind = "next", gdb.COMMAND_RUNNING

    def run(self, argument):
        if argument and not re.fullmatch(r"[1-9]\d*", argument):
            raise gdb.GdbError("tapir next: expected how many ops, not %s" % argument)
        if not is_live():
            raise gdb.GdbError("The program is not being run.")
        Next.end()
        Next.breakpoint = OpBreakpoint("next", lambda op: op.kind != RESULT, skipped=int(argument or 1) - 1, internal=True)
        Next.breakpoint.thread = gdb.selected_thread().num
        gdb.execute("continue")


class GradsCommand(Command):
    """tapir grads [EXPR]: the gradients of a module's parameters, or of a tensor; without EXPR those of the leaves on the tape.

Of each: the shape, the norm, minimum, maximum and mean, how many elements are nan or inf. "2 rows of 5": the others are zero."""

    word, kind, completes = "grads", gdb.COMMAND_DATA, gdb.COMPLETE_EXPRESSION

    def run(self, argument):
        rows = [("leaf", "shape", "norm", "gradient")]
        for name, tensor in self.leaves(argument):
            rows.append((name, shape_text(tensor.sizes)) + self.gradient(tensor))
        print_table(rows)

    @staticmethod
    def leaves(argument):
        if argument:
            value = gdb.parse_and_eval(argument)
            if value.type.strip_typedefs().code in (gdb.TYPE_CODE_PTR, gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF):
                value = value.referenced_value()
            impl = impl_of(value)
            if impl:
                return [(Tensor(impl).name() or argument, Tensor(impl))]
            if base_named(value.type, "tapir::nn::Module") is None:
                raise gdb.GdbError("tapir grads: %s is neither a module nor a tensor" % argument)
            return [(path, tensor) for path, tensor in ModuleTree(value).tensors if tensor.fields.has("kRequiresGrad")]
        log = current_log()
        records = [record for record in log.all() if record.has("kLeaf") and not record.has("kReleased")]
        return [(record.module or "record %d" % (record.index - log.begin), Tensor(record.saved[0][0])) for record in records]

    @staticmethod
    def gradient(tensor):
        if not tensor.meta:
            return "", "none"
        grad = number(tensor.meta + offset("AutogradMeta.grad"))
        begin, end = pointers(tensor.meta + offset("AutogradMeta.rows"), 2)
        collected = number(tensor.meta + offset("AutogradMeta.products") + offset("ProductRows.rows"))
        size, texts, norm = offset("sizeof.SparseRows"), [], ""
        for part in range(begin, end, size):
            impl = number(part + offset("SparseRows.values"))
            values = Tensor(impl)
            texts.append("%s of %d, %s" % (counted(values.sizes[0], "row"), tensor.sizes[0],
                                           values.summary(LOOKED_AT_ON_REQUEST) if values.is_here else values.device))
        if collected:
            texts.append("%s collected, not computed yet: read grad() in the program" % counted(collected, "product"))
        if grad:
            whole = Tensor(grad)
            if not whole.is_here:
                return "", "on %s: tapir tensor (tapir::TensorImpl*)0x%x --copy" % (whole.device, grad)
            norm = "%.6g" % whole.norm(LOOKED_AT_ON_REQUEST)
            texts.insert(0, whole.summary(LOOKED_AT_ON_REQUEST))
        return norm, "; ".join(texts) or "none"


class MemoryCommand(Command):
    """tapir memory: what the allocator counts, and what the open tapes keep alive for backward, by the op that saved it.

A storage that several records have saved counts once, where it was saved first."""

    word, kind = "memory", gdb.COMMAND_DATA

    def run(self, argument):
        if argument:
            raise gdb.GdbError("tapir memory takes no argument, got %s; see help tapir memory" % argument)
        counts = self.counts()
        texts = [size_text(counts[name]) for name in ("live_bytes", "peak_bytes", "cached_bytes")]
        print("cpu: %s in use (at most %s), %s kept for reuse, %d blocks handed out, %d taken from the system" % (
            *texts, counts["allocations"], counts["system_calls"]))
        self.devices()
        logs = open_logs()
        if not logs:
            print("no tape is open")
        for log in logs:
            self.tape(log)

    @staticmethod
    def devices():
        try:
            devices, memory = number(address_of("tapir_gdb_devices"), 4), address_of("tapir_gdb_device_memory")
        except gdb.GdbError:
            return  # built without CUDA
        for device in range(devices):
            places = pointers(memory + 40 * device, 5)
            if not places[0]:
                continue
            reserved, live, peak, allocations, segments = map(number, places)
            if allocations:
                print("cuda:%d: %s in use (at most %s), %s kept for reuse, %d blocks handed out, %d taken from the device" % (
                    device, size_text(live), size_text(peak), size_text(reserved - live), allocations, segments))

    @staticmethod
    def counts():
        """What memory_stats() gives."""
        table = Known.table("tapir_gdb_allocator")
        shared = number(address_of("tapir_gdb_allocator_memory"))
        if not shared:  # the program has not begun, and its pointers are filled in then
            return dict.fromkeys(("live_bytes", "peak_bytes", "cached_bytes", "allocations", "system_calls"), 0)

        def field(name, base=shared):
            return number(base + table[name], 8, signed=True)

        begin, end = pointers(shared + table["Shared.threads"], 2)
        threads = pointers(begin, (end - begin) // 8)
        gone = shared + table["Shared.gone"]

        def total(name):
            return field("MemoryStats.%s" % name, gone) + sum(
                field("ThreadCache." + name.replace("_bytes", ""), thread) for thread in threads)

        live = total("live_bytes")
        cached = field("Shared.slab_bytes") + field("Shared.large_bytes") - (live - field("Shared.large_live"))
        if number(shared + table["Shared.system_only"], 1):
            cached = 0
        return {"live_bytes": live, "peak_bytes": total("peak_bytes"), "cached_bytes": cached, "allocations": total("allocations"),
                "system_calls": field("Shared.system_calls")}

    @staticmethod
    def tape(log):
        log.begin = 0
        seen, parameters, kept = set(), 0, {}
        for record in log.all():
            for impl, _ in record.saved:
                storage = Tensor(impl).storage
                if storage in seen:
                    continue
                seen.add(storage)
                size = number(storage + offset("Storage.nbytes"))
                if record.has("kLeaf"):
                    parameters += size
                else:
                    key = (record.op, str(record.place), record.module)
                    count, total = kept.get(key, (0, 0))
                    kept[key] = (count + 1, total + size)
        thread = getattr(thread_of(log), "num", "?")
        print("tape of %s, thread %s: %s; %s saved for backward, besides leaves of %s" % (
            log.opened, thread, counted(len(log), "record"), size_text(sum(size for _, size in kept.values())), size_text(parameters)))
        most = sorted(kept.items(), key=lambda item: -item[1][1])[:10]
        if most:
            print_table([("saved", "tensors", "by", "line", "module")] + [
                (size_text(size), str(count)) + key for key, (count, size) in most], right=(0, 1))


class FibersCommand(Command):
    """tapir fibers [N [COMMAND]]: the instances of batch() on this thread, what each waits for, and where.

Without N it lists them. Each runs, is ready, or waits: for peers of an op, or for an inner batch(). Instance 3.1 is item 1 of the
batch() that instance 3 has called; the last of these items instance 3 runs itself, on its own stack. The op is the one that an
instance waits for, or, if it is ready, the one whose result it has. The line is that of your program.
    tapir fibers 2            the backtrace of row 2: your program's frames, down to the function that you gave to batch()
    tapir fibers 2 bt full    another command, in the frame of your program in which that instance is
    tapir fibers 2 print x
A suspended stack is read from the registers that it has saved; nothing changes in the program. Commands that let it go on (next,
finish) go on with the instance that runs, whatever the row. bt alone shows the one that runs.
To step through one instance after the other, start the program with TAPIR_BATCH=off in its environment: batch() calls your function
for one item at a time then, on the thread's own stack, and this list is empty."""

    word, kind = "fibers", gdb.COMMAND_STACK

    def run(self, argument):
        wanted = re.fullmatch(r"(\d+)(?:\s+(.*))?", argument)
        instances = Instances()
        if not argument:
            print(instances.head())
            rows = [(str(n),) + row.text() for n, row in enumerate(instances.rows)]
            print_table([("#", "instance", "state", "op", "line", "module")] + rows, right=(0,))
            return
        if not wanted or int(wanted[1]) >= len(instances.rows):
            raise gdb.GdbError("tapir fibers: expected the number of a row, 0 to %d, not %s (see tapir fibers)" % (
                len(instances.rows) - 1, argument))
        row = instances.rows[int(wanted[1])]
        if row.state == "has not begun":
            print("instance %s has not begun" % row.text()[0])
            return
        self.look(row, wanted[2] or "bt")

    @staticmethod
    def look(row, command):
        selected = gdb.selected_frame().level()
        try:
            newest = gdb.newest_frame() if row.is_running else FibersCommand.unwinder.enter(row.fiber)
            frame = row.users_frame(newest)
            shown = gdb.frame_filters[FibersFrames.name]
            shown.begin, shown.place, shown.enabled = frame.level(), row.place, True
            frame.select()
            gdb.execute(command)
        finally:
            gdb.frame_filters[FibersFrames.name].enabled = False
            FibersCommand.unwinder.leave()
            frame = gdb.newest_frame()
            while frame.level() < selected and frame.older() is not None:
                frame = frame.older()
            frame.select()


# --- All of it, once -------------------------------------------------------------------------------------------------------


def connect():
    """What an earlier run of this script left is taken away."""
    for registry, handler in getattr(gdb, "tapir_handlers", []):
        registry.disconnect(handler)
    gdb.tapir_handlers = [
        (gdb.events.stop, Stopped.on_stop),
        (gdb.events.exited, Stopped.on_exit),
        (gdb.events.new_objfile, Known.forget),
        (gdb.events.breakpoint_modified, on_breakpoint_changed),
        (gdb.events.breakpoint_deleted, on_breakpoint_deleted),
    ]
    for registry, handler in gdb.tapir_handlers:
        registry.connect(handler)
    gdb.pretty_printers[:] = [p for p in gdb.pretty_printers if getattr(p, "name", "") != "tapir"]
    gdb.pretty_printers.insert(0, Lookup())
    gdb.frame_filters[UsersFrames.name] = UsersFrames()
    gdb.frame_filters[FibersFrames.name] = FibersFrames()
    FibersCommand.unwinder = FiberUnwinder()
    gdb.unwinder.register_unwinder(None, FibersCommand.unwinder, replace=True)
    gdb.xmethod.register_xmethod_matcher(None, TensorMethods(), replace=True)


Prefix()
Says()
for command in Command.__subclasses__():
    command()
connect()

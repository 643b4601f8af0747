"""Replays the samples of PyTorch's op database on Tapir: check.py LIBRARY [--part | --reference] [--jobs N] [--ops REGEX] [--log FILE]

Each sample is called in both (calls.cpp is the table of calls); results are compared in number, shape, dtype and value, gradients and
second derivatives in value, and what PyTorch refuses must be refused with a typed error. Differences that are meant are listed in
accepted.txt. --part: a fixed tenth of the samples; --reference: PyTorch's larger reference inputs in their place, for which accepted.txt
is not complete. An op runs in a process of its own, so that a crash is a difference, too.
Ends with 77 where Python has no PyTorch 2.
"""
import argparse, contextlib, ctypes, itertools, math, os, random, re, resource, sys, time, warnings, zlib
from collections import Counter, defaultdict
from pathlib import Path

warnings.filterwarnings("ignore")
os.environ.setdefault("OMP_NUM_THREADS", "1")
try:
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        import numpy, torch
        from torch.testing._internal.common_methods_invocations import op_db
    assert int(torch.__version__.split(".")[0]) >= 2
except (ImportError, AssertionError) as e:
    print(f"skipped: no PyTorch 2 with its test packages: {e}")
    sys.exit(77)

DTYPES = [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]  # by Tapir's numbers
# (relative, absolute), PyTorch's own for its tests; where PyTorch's error against float64 is larger, that is what Tapir may have, twice
TOLERANCE = {torch.float16: (1e-3, 1e-5), torch.bfloat16: (1.6e-2, 1e-5), torch.float32: (1.3e-6, 1e-5), torch.float64: (1e-7, 1e-7)}
TYPED = {1: "ShapeError", 2: "DTypeError", 3: "DeviceError", 4: "IndexError", 5: "ValueError", 6: "TapeError", 7: "OutOfMemory", 8: "FileError"}
UNTYPED, NO_CALL = 20, 30
RANDOM = re.compile(r"dropout|^(normal|uniform|bernoulli|multinomial|rand|exponential|geometric|cauchy|log_normal|empty|new_empty)")
SECONDS_PER_OP = 900
ROUNDING = "Sums of float32 in another order"  # lines with this reason may be needed or not: the processor decides


class Value(ctypes.Structure):
    pass


Value._fields_ = [("kind", ctypes.c_int32), ("count", ctypes.c_int32), ("whole", ctypes.c_int64), ("real", ctypes.c_double),
                  ("word", ctypes.c_char_p), ("items", ctypes.POINTER(Value)), ("array", ctypes.c_void_p)]
NONE, BOOL, INT, FLOAT, TEXT, TENSOR, LIST, DTYPE, SLICE, ELLIPSIS = range(10)


class CannotEncode(Exception):
    """An argument that Tapir has no type for: complex numbers, int8, sparse tensors."""


class Tapir:
    """The library, and the tensors that a sample has made in it."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        for name in ("judge_tensor", "judge_tape"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.lib.judge_message.restype = ctypes.c_char_p
        self.made = []
        self.kept = []

    def forget(self):
        for handle in self.made:
            self.lib.judge_free(ctypes.c_void_p(handle))
        self.made, self.kept = [], []

    def message(self):
        return self.lib.judge_message().decode(errors="replace")

    def tensor(self, x, leaf=None):
        if x.dtype not in DTYPES or x.layout != torch.strided or x.device.type != "cpu":
            raise CannotEncode(str(x.dtype))
        leaf = x.requires_grad if leaf is None else leaf
        x = x.detach()
        if x.is_neg() or x.is_conj():
            x = x.resolve_neg().resolve_conj()
        size = (1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride()))) * x.element_size() if x.numel() else 0
        numbers = lambda ns: (ctypes.c_int64 * max(1, len(ns)))(*ns)
        handle = self.lib.judge_tensor(ctypes.c_void_p(x.data_ptr()), ctypes.c_int64(size), numbers(x.shape), numbers(x.stride()), x.dim(),
                                       DTYPES.index(x.dtype), int(leaf))
        if not handle:
            raise CannotEncode(self.message())
        self.made.append(handle)
        return handle

    def encode(self, x, leaves):
        v = Value()
        if x is None:
            v.kind = NONE
        elif isinstance(x, torch.Tensor):
            v.kind, v.array = TENSOR, self.tensor(x)
            if x.requires_grad:
                leaves.append((x, v.array))
        elif isinstance(x, bool):
            v.kind, v.whole = BOOL, x
        elif isinstance(x, (int, numpy.integer)):
            if not -2**63 <= x < 2**63:
                raise CannotEncode("a number beyond int64")
            v.kind, v.whole = INT, int(x)
        elif isinstance(x, (float, numpy.floating)):
            v.kind, v.real = FLOAT, x
        elif isinstance(x, str):
            v.kind, v.word = TEXT, x.encode()
        elif isinstance(x, torch.dtype) and x in DTYPES:
            v.kind, v.whole = DTYPE, DTYPES.index(x)
        elif isinstance(x, (tuple, list)):
            v.kind, v.count, v.whole = LIST, len(x), isinstance(x, tuple)
            v.items = (Value * max(1, len(x)))(*[self.encode(e, leaves) for e in x])
        elif isinstance(x, slice):
            v.kind = SLICE
            v.items = (Value * 3)(*[self.encode(e, leaves) for e in (x.start, x.stop, x.step)])
        elif x is Ellipsis:
            v.kind = ELLIPSIS
        else:
            raise CannotEncode(type(x).__name__)
        self.kept.append(v)
        return v

    def read(self, handle):
        dtype, rank, sizes = ctypes.c_int(), ctypes.c_int(), (ctypes.c_int64 * 8)()
        self.lib.judge_about(ctypes.c_void_p(handle), ctypes.byref(dtype), ctypes.byref(rank), sizes)
        x = torch.empty(list(sizes)[:rank.value], dtype=DTYPES[dtype.value])
        self.lib.judge_copy(ctypes.c_void_p(handle), ctypes.c_void_p(x.data_ptr()))
        return x

    def call(self, name, args, kwargs, leaves):
        """(status, handles)"""
        values = [self.encode(x, leaves) for x in itertools.chain(args, kwargs.values())]
        names = [None] * len(args) + [k.encode() for k in kwargs]
        results, count = (ctypes.c_void_p * 256)(), ctypes.c_int()
        status = self.lib.judge_call(name.encode(), (Value * max(1, len(values)))(*values), (ctypes.c_char_p * max(1, len(names)))(*names),
                                     len(values), results, ctypes.byref(count))
        handles = list(results)[:count.value]
        self.made += handles
        return status, handles

    def gradient(self, tape, ys, weights, xs, again):
        pointers = lambda hs: (ctypes.c_void_p * max(1, len(hs)))(*hs)
        found = (ctypes.c_void_p * max(1, len(xs)))()
        status = self.lib.judge_gradient(ctypes.c_void_p(tape), pointers(ys), pointers(weights), len(ys), pointers(xs), len(xs), int(again), found)
        handles = list(found)[:len(xs)] if status == 0 else []
        self.made += handles
        return status, handles


# --- Samples in words -----------------------------------------------------------------------------------------------------------


def words(x):
    if isinstance(x, torch.Tensor):
        kind = str(x.dtype).replace("torch.", "")
        values = f"={x.detach().flatten().tolist()}" if x.numel() <= 6 else ""
        return f"{kind}{tuple(x.shape)}{'' if x.is_contiguous() else f' strides {x.stride()}'}{values}"
    if isinstance(x, (list, tuple)):
        return "[" + ", ".join(map(words, x)) + "]"
    return repr(x)


def describe(args, kwargs):
    return ", ".join([words(a) for a in args] + [f"{k}={words(v)}" for k, v in kwargs.items()])


def flat(result):
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [y for r in result for y in flat(r)]
    return [torch.tensor(result)] if isinstance(result, (bool, int, float)) else []


def convert(x, function):
    if isinstance(x, torch.Tensor):
        return function(x)
    if isinstance(x, (list, tuple)):
        return type(x)(convert(e, function) for e in x) if type(x) in (list, tuple) else x
    return {k: convert(v, function) for k, v in x.items()} if isinstance(x, dict) else x


# --- One sample -----------------------------------------------------------------------------------------------------------------


def off(have, want, exact=None):
    """None where the numbers agree, else how they differ. exact: PyTorch's in float64, where that is known: twice PyTorch's own error, and
    what is nearer to it, pass."""
    relative, absolute = TOLERANCE.get(want.dtype, (0, 0))
    have, want = have.double() if want.dtype in TOLERANCE else have, want.double() if want.dtype in TOLERANCE else want
    close = torch.isclose(have, want, rtol=relative, atol=absolute, equal_nan=True)
    if close.all():
        return None
    if exact is not None and exact.shape == want.shape:
        exact = exact.double()
        allowed = 2 * (want - exact).abs() + absolute + relative * exact.abs()
        close |= (have - exact).abs() <= allowed
        close |= (have == exact) | (have.isnan() & exact.isnan())
        if close.all():
            return None
    place = (~close).flatten().nonzero()[0, 0]
    return f"{int((~close).sum())} of {close.numel()} elements, at {int(place)}: have {have.flatten()[place].item()!r}, want {want.flatten()[place].item()!r}"


def weights_of(wants, text, order):
    """What the results are multiplied by, the same at each call."""
    generator = torch.Generator().manual_seed(zlib.crc32(text.encode()) + order)
    return [torch.randn(w.shape, generator=generator, dtype=torch.float64).to(w.dtype).requires_grad_() for w in wants]


def in_float64(op, args, kwargs, smooth=(), weights=()):
    """PyTorch's results of the same numbers as float64, and the gradients of those in `smooth`; None where it refuses."""
    leaves = []

    def widen(t):
        wide = (t.detach().double() if t.is_floating_point() else t.detach()).requires_grad_(t.requires_grad and bool(weights))
        leaves.extend([wide] if wide.requires_grad else [])
        return wide

    try:
        torch.manual_seed(0)
        results = flat(op(*convert(args, widen), **convert(kwargs, widen)))
        total = sum((results[i] * w.double()).sum() for i, w in zip(smooth, weights))
        found = torch.autograd.grad(total, leaves, allow_unused=True) if leaves else []
        return [r.detach() for r in results], [torch.zeros_like(x) if g is None else g for g, x in zip(found, leaves)]
    except Exception:
        return None, None


class Judge:
    def __init__(self, tapir, op, name, report):
        self.tapir, self.op, self.name, self.report = tapir, op, name, report
        self.theirs = op
        if op.name == "nn.functional.ctc_loss":  # PyTorch's gradient is right of log_softmax's results only; calls.cpp does the same
            self.theirs = lambda x, *args, **kwargs: op(x.log_softmax(-1), *args, **kwargs)

    def compare(self, kind, text, haves, wants, exact=None):
        if len(haves) != len(wants):
            return self.report("count", text, f"have {len(haves)} results, want {len(wants)}")
        for i, (have, want) in enumerate(zip(haves, wants)):
            where = f"result {i}: " if len(wants) > 1 else ""
            if have.shape != want.shape:
                return self.report("shape", text, f"{where}have {tuple(have.shape)}, want {tuple(want.shape)}")
            if have.dtype != want.dtype:
                return self.report("dtype", text, f"{where}have {have.dtype}, want {want.dtype}")
            difference = off(have, want)
            if difference and exact:  # these take long
                true = exact()
                difference = off(have, want, true[i] if true and len(true) == len(wants) else None)
            if difference:
                return self.report(kind, text, where + difference)
        self.report("equal", text, "")

    def sample(self, text, sample, derivatives):
        args, kwargs = [sample.input, *sample.args], sample.kwargs
        if kwargs.get("dropout_p", 0) not in (0, 1):
            return  # random
        fresh = lambda x: convert(x, lambda t: t.detach().clone(memory_format=torch.preserve_format).requires_grad_(t.requires_grad))
        theirs_args, theirs_kwargs = fresh(args), fresh(kwargs)
        try:
            torch.manual_seed(0)
            wants = flat(self.theirs(*theirs_args, **theirs_kwargs))
        except Exception:
            return
        if any(w.dtype not in DTYPES or w.layout != torch.strided for w in wants):
            return
        exact = lambda: in_float64(self.theirs, args, kwargs)[0]
        leaves = []
        tape = self.tapir.lib.judge_tape()
        try:
            try:
                status, ys = self.tapir.call(self.name, args, kwargs, leaves)
            except CannotEncode:
                return
            if status == NO_CALL and all(isinstance(a, torch.Tensor) for a in args):  # *tensors
                leaves.clear()
                status, ys = self.tapir.call(self.name, [list(args)], kwargs, leaves)
            if status == NO_CALL:
                return self.report("arguments", text, "no call takes these arguments")
            if status:
                return self.report("untyped" if status == UNTYPED else "refused", text, self.tapir.message())
            haves = [self.tapir.read(y) for y in ys]
            self.compare("value", text, haves, [w.detach() for w in wants], exact)
            if not derivatives or len(haves) != len(wants) or any(h.shape != w.shape or h.dtype != w.dtype for h, w in zip(haves, wants)):
                return
            theirs = []
            convert([theirs_args, theirs_kwargs], lambda t: theirs.append(t) if t.requires_grad else None)
            # leaves of kwargs come after those of args in both
            smooth = [i for i, w in enumerate(wants) if w.requires_grad and w.grad_fn is not None]
            if smooth and len(theirs) == len(leaves):
                exact = lambda: in_float64(self.theirs, args, kwargs, smooth, weights_of([wants[i] for i in smooth], text, 1))[1]
                self.gradients(tape, text, [wants[i] for i in smooth], [ys[i] for i in smooth], theirs, [h for _, h in leaves], exact)
        finally:
            self.tapir.lib.judge_end(ctypes.c_void_p(tape))
            self.tapir.forget()

    def gradients(self, tape, text, wants, ys, xs, handles, exact=None, order=1):
        weights = weights_of(wants, text, order)
        again = order == 1 and wants[0].dtype == torch.float64 and self.op.supports_gradgrad
        try:
            theirs = torch.autograd.grad(sum((w * v).sum() for w, v in zip(wants, weights)), xs, create_graph=again, allow_unused=True)
        except (RuntimeError, NotImplementedError):
            return
        theirs = [torch.zeros_like(x) if g is None else g for g, x in zip(theirs, xs)]
        if any(g.layout != torch.strided for g in theirs):
            return
        weight_handles = [self.tapir.tensor(v, leaf=True) for v in weights]
        status, ours = self.tapir.gradient(tape, ys, weight_handles, handles, again)
        kind = "gradient" if order == 1 else "second"
        if status:
            return self.report("untyped" if status == UNTYPED else kind + " refused", text, self.tapir.message())
        self.compare(kind, text, [self.tapir.read(g) for g in ours], [g.detach() for g in theirs], exact)
        smooth = [i for i, g in enumerate(theirs) if g.requires_grad and g.grad_fn is not None]
        if again and smooth:
            self.gradients(tape, text, [theirs[i] for i in smooth], [ours[i] for i in smooth], xs + weights, handles + weight_handles, order=2)

    def error(self, text, sample):
        args, kwargs = [sample.input, *sample.args], sample.kwargs
        try:
            self.theirs(*args, **kwargs)
            return  # only a variant of the op refuses it
        except Exception:
            pass
        try:
            status, _ = self.tapir.call(self.name, args, kwargs, [])
        except (CannotEncode, OverflowError):
            return
        finally:
            self.tapir.forget()
        if status == NO_CALL or status in TYPED:
            return self.report("equal" if status in TYPED else "no overload", text, "")
        self.report("untyped" if status == UNTYPED else "not refused", text, self.tapir.message())


# --- All samples of an op, in a process of its own --------------------------------------------------------------------------------


def chosen(text, part):
    return not part or zlib.crc32(text.encode()) % 10 == 0


def run_op(tapir, op, name, part, large, say):
    full = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
    for dtype in DTYPES:
        if dtype not in op.supported_dtypes("cpu"):
            continue
        derivatives = op.supports_autograd and dtype in (torch.float32, torch.float64)
        torch.manual_seed(0), numpy.random.seed(0), random.seed(0)
        try:
            samples = op.reference_inputs if large else op.sample_inputs  # the former are many, and slow to make
            for i, sample in enumerate(samples("cpu", dtype, requires_grad=derivatives)):
                identity = f"{full} {dtype} {i}"
                if chosen(identity, part):
                    text = f"{str(dtype).replace('torch.', '')} #{i}: {describe([sample.input, *sample.args], sample.kwargs)}"
                    say("at", text, "")
                    state = torch.get_rng_state()
                    Judge(tapir, op, name, say).sample(text, sample, derivatives)
                    torch.set_rng_state(state)
        except Exception as e:
            say("no samples", str(dtype), f"{type(e).__name__}: {e}")
    try:
        errors = list(op.error_inputs("cpu")) if op.error_inputs_func else []
    except Exception:
        errors = []
    for i, error in enumerate(errors):
        sample = error.sample_input
        text = f"error #{i}: {describe([sample.input, *sample.args], sample.kwargs)}"
        if chosen(full + text, part):
            say("at", text, "")
            Judge(tapir, op, name, say).error(text, sample)


def child(tapir, op, name, options, pipe):
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS_PER_OP, SECONDS_PER_OP))  # what hangs ends, too
    with os.fdopen(pipe, "w", buffering=1) as out:
        clean = lambda s: s.replace("\n", " ").replace("\t", " ")[:600]
        run_op(tapir, op, name, options.part, options.reference, lambda *row: out.write("\t".join(map(clean, row)) + "\n"))
    os._exit(0)


# --- What is accepted -------------------------------------------------------------------------------------------------------------


def read_accepted(path):
    """Lines: op | kind | pattern of the sample | reason."""
    rows = []
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            op, kind, pattern, reason = (part.strip() for part in line.split(" | ", 3))
            rows.append((op, kind, re.compile(pattern), line))
    return rows


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("library")
    parser.add_argument("--part", action="store_true")
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--ops", default="")
    parser.add_argument("--log", type=Path)
    options = parser.parse_args()
    tapir = Tapir(options.library)
    work = []
    for op in op_db:
        names = [op.name, re.sub(r"^(nn\.functional|special)\.", "", op.name)]
        name = next((n for n in names if tapir.lib.judge_knows(n.encode())), None)
        if name and re.search(options.ops, op.name) and not RANDOM.search(names[1]):
            work.append((op, name))
    print(f"{len(work)} of PyTorch {torch.__version__}'s {len(op_db)} ops have a call here", flush=True)

    accepted, used = read_accepted(Path(__file__).with_name("accepted.txt")), set()
    counts, new, seen = Counter(), defaultdict(list), Counter()
    log = options.log.open("w", buffering=1) if options.log else None

    def take(op, kind, text, how):
        if kind in ("equal", "at", "no overload"):
            counts[kind] += 1
            return
        full = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
        row = next((r for r in accepted if r[0] in (op.name, full) and r[1] == kind and r[2].search(text + " -> " + how)), None)
        if log:
            log.write(f"{'accepted' if row else 'NEW'}\t{full}\t{kind}\t{text}\t{how}\n")
        if row:
            used.add(row[3])
        counts["new" if not row else "not offered" if kind == "arguments" else "refused on purpose" if "refused" in kind else "accepted"] += 1
        if not row:
            new[full, kind].append((text, how))

    begin, running, todo, done = time.monotonic(), {}, list(work), 0
    while todo or running:
        while todo and len(running) < options.jobs:
            op, name = todo.pop(0)
            reader, writer = os.pipe()
            sys.stdout.flush()
            pid = os.fork()
            if not pid:
                os.close(reader)
                child(tapir, op, name, options, writer)
            os.close(writer)
            running[pid] = (op, os.fdopen(reader, errors="replace"), time.monotonic())
        pid, (op, out, since) = next(iter(running.items()))
        last = ""
        for line in out:
            kind, text, how = line.rstrip("\n").split("\t")
            last = text if kind == "at" else last
            take(op, kind, text, how)
        _, status = os.waitpid(pid, 0)
        del running[pid]
        if status:
            take(op, "crash", last, f"the process ended with status {status}")
        done += 1
        if done % 25 == 0 or not (todo or running):
            print(f"{time.monotonic() - begin:5.0f} s: {done} of {len(work)} ops, {counts['at']} samples, {counts['new']} new differences", flush=True)

    for (name, kind), found in sorted(new.items()):
        print(f"\n{name}: {kind}: {len(found)} differences that accepted.txt does not list, as\n    {found[0][0]}\n    {found[0][1]}")
    unused = [] if options.part or options.reference or options.ops else [row[3] for row in accepted if row[3] not in used and not row[3].endswith(ROUNDING)]
    for line in unused:
        print(f"\nNo longer a difference: {line}")
    checks = sum(counts[k] for k in ("equal", "accepted", "refused on purpose", "new"))
    print(f"\n{len(work)} of PyTorch's {len(op_db)} ops, {counts['at']} samples, {checks} checks: {counts['equal']} equal, {counts['accepted']} accepted, "
          f"{counts['refused on purpose']} refused on purpose, {counts['new']} new differences of {len(new)} kinds. Not compared: "
          f"{counts['not offered']} samples whose arguments no overload takes, {counts['no overload']} errors that C++'s types leave no place for")
    return 1 if new or unused else 0


if __name__ == "__main__":
    sys.exit(main())

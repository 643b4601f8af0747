// The parts of the library's types that the gdb script must know, and the script itself.
#include <vector>

#include "tapir/autograd/log_impl.h"
#include "tapir/autograd/meta_impl.h"
#include "tapir/autograd/trace/graph/graph.h"
#include "tapir/core/gdb/hooks_impl.h"
#include "tapir/core/gdb/layout_impl.h"
#include "tapir/core/module_name.h"

#pragma GCC diagnostic ignored "-Winvalid-offsetof"  // no virtual bases here

namespace tapir {
namespace {

static_assert(sizeof(Tensor) == sizeof(void*) && sizeof(Loc) == sizeof(void*));
static_assert(sizeof(std::vector<void*>) == 3 * sizeof(void*), "begin, end, end of the memory");

}  // namespace

// Offsets of the private members of graphs.
struct gdb::GraphLayout {
    static constexpr std::size_t terms = offsetof(SymInt, terms_), constant = offsetof(SymInt, constant_), divisor = offsetof(SymInt, divisor_),
                                 after = offsetof(SymInt, after_), inputs = offsetof(Graph, inputs_), parameters = offsetof(Graph, parameters_),
                                 nodes = offsetof(Graph, nodes_), outputs = offsetof(Graph, outputs_),
                                 form = offsetof(Graph::Node, attributes_) + offsetof(Attributes, form_);
};
using Value = Graph::Value;
using Node = Graph::Node;
using Output = Graph::Output;
using Use = Graph::Use;

extern "C" {
// The names of all rows of ops, each followed by '\0', so that `tapir break` can tell unknown names.
#define TAPIR_OP_NAME(op) #op "\0"
#define TAPIR_UNARY0(name, ...) #name "\0"
#define TAPIR_UNARY1(name, ...) #name "\0"
#define TAPIR_UNARY2(name, ...) #name "\0"
#define TAPIR_PREDICATE(name, ...) #name "\0"
#define TAPIR_BINARY(name, ...) #name "\0"
#define TAPIR_COMPARE(name, ...) #name "\0"
#define TAPIR_TERNARY(name, ...) #name "\0"
extern const char tapir_gdb_op_names[];
extern const std::size_t tapir_gdb_op_names_size;
[[gnu::used, gnu::retain]] constexpr char tapir_gdb_op_names[] =
#include "tapir/core/elementwise_rows.inc"
#include "tapir/ops/op_list.inc"
    ;
#undef TAPIR_OP_NAME
[[gnu::used, gnu::retain]] constexpr std::size_t tapir_gdb_op_names_size = sizeof tapir_gdb_op_names - 1;

[[gnu::used, gnu::retain]] constexpr gdb::LayoutEntry tapir_gdb_layout[] = {
    {"version", 1},
    TAPIR_GDB_SIZE(TensorImpl),
    TAPIR_GDB_OFFSET(TensorImpl, refs),
    TAPIR_GDB_OFFSET(TensorImpl, dtype),
    TAPIR_GDB_OFFSET(TensorImpl, rank),
    TAPIR_GDB_OFFSET(TensorImpl, flags),
    TAPIR_GDB_OFFSET(TensorImpl, storage),
    TAPIR_GDB_OFFSET(TensorImpl, data),
    TAPIR_GDB_OFFSET(TensorImpl, numel),
    TAPIR_GDB_OFFSET(TensorImpl, node),
    TAPIR_GDB_OFFSET(TensorImpl, device),
    TAPIR_GDB_OFFSET(TensorImpl, meta),
    TAPIR_GDB_OFFSET(TensorImpl, sizes),
    TAPIR_GDB_OFFSET(TensorImpl, strides),
    TAPIR_GDB_FLAG(TensorImpl, kContiguous),
    TAPIR_GDB_FLAG(TensorImpl, kRequiresGrad),
    TAPIR_GDB_FLAG(TensorImpl, kView),
    TAPIR_GDB_OFFSET(NodeRef, tape),
    TAPIR_GDB_OFFSET(NodeRef, index),
    TAPIR_GDB_OFFSET(Device, type),
    TAPIR_GDB_OFFSET(Device, index),
    {"kMaxRank", kMaxRank},

    TAPIR_GDB_OFFSET(Storage, refs),
    TAPIR_GDB_OFFSET(Storage, version),
    TAPIR_GDB_OFFSET(Storage, data),
    TAPIR_GDB_OFFSET(Storage, nbytes),
    TAPIR_GDB_OFFSET(Storage, last_write),
    TAPIR_GDB_OFFSET(Storage, device),

    TAPIR_GDB_OFFSET(AutogradMeta, grad),
    TAPIR_GDB_OFFSET(AutogradMeta, rows),
    TAPIR_GDB_OFFSET(AutogradMeta, products),
    TAPIR_GDB_OFFSET(AutogradMeta, used_rows),
    TAPIR_GDB_OFFSET(AutogradMeta, name),
    TAPIR_GDB_SIZE(SparseRows),
    TAPIR_GDB_OFFSET(SparseRows, indices),
    TAPIR_GDB_OFFSET(SparseRows, values),
    TAPIR_GDB_OFFSET(ProductRows, rows),

    TAPIR_GDB_SIZE(Record),
    TAPIR_GDB_OFFSET(Record, op),
    TAPIR_GDB_OFFSET(Record, loc),
    TAPIR_GDB_OFFSET(Record, module),
    TAPIR_GDB_OFFSET(Record, input_count),
    TAPIR_GDB_OFFSET(Record, output_count),
    TAPIR_GDB_OFFSET(Record, saved_count),
    TAPIR_GDB_OFFSET(Record, flags),
    TAPIR_GDB_OFFSET(Record, dtype),
    TAPIR_GDB_OFFSET(Record, rank),
    TAPIR_GDB_OFFSET(Record, device),
    TAPIR_GDB_OFFSET(Record, inputs_),
    TAPIR_GDB_FLAG(Record, kReleased),
    TAPIR_GDB_FLAG(Record, kHooked),
    TAPIR_GDB_FLAG(Record, kExtra),
    TAPIR_GDB_FLAG(Record, kLeaf),
    TAPIR_GDB_FLAG(Record, kObject),
    {"kNoValue", kNoValue},
    TAPIR_GDB_SIZE(SavedTensor),
    TAPIR_GDB_OFFSET(SavedTensor, impl),
    TAPIR_GDB_OFFSET(SavedTensor, version),
    TAPIR_GDB_OFFSET(OpInfo, name),
    TAPIR_GDB_OFFSET(ModuleName, path),
    TAPIR_GDB_OFFSET(ModuleName, type),
    TAPIR_GDB_OFFSET(ModuleName, next),

    TAPIR_GDB_OFFSET(Log, id),
    TAPIR_GDB_OFFSET(Log, depth),
    TAPIR_GDB_OFFSET(Log, opened),
    TAPIR_GDB_OFFSET(Log, last_backward),
    TAPIR_GDB_OFFSET(Log, records),
    TAPIR_GDB_OFFSET(Log, leaves),

    TAPIR_GDB_OFFSET(GdbLog, log),
    TAPIR_GDB_OFFSET(GdbLog, next),
    TAPIR_GDB_OFFSET(GdbLog, thread),
    TAPIR_GDB_OFFSET(GdbLog, tapes),
    TAPIR_GDB_OFFSET(GdbLog, begin),
    TAPIR_GDB_OFFSET(GdbLog, opened),

    TAPIR_GDB_OFFSET(GdbState, watching),
    TAPIR_GDB_OFFSET(GdbState, results),
    TAPIR_GDB_OFFSET(GdbState, checking),
    TAPIR_GDB_OFFSET(GdbState, wanted),
    {"sizeof.GdbState.wanted", sizeof(GdbState::wanted)},
    TAPIR_GDB_OFFSET(GdbState, kind),
    TAPIR_GDB_OFFSET(GdbState, line),
    TAPIR_GDB_OFFSET(GdbState, op),
    TAPIR_GDB_OFFSET(GdbState, file),
    TAPIR_GDB_OFFSET(GdbState, tensor),
    TAPIR_GDB_OFFSET(GdbState, module),
    TAPIR_GDB_OFFSET(GdbState, message),
    TAPIR_GDB_OFFSET(GdbState, watching_ops),
    TAPIR_GDB_OFFSET(GdbState, logs),

    TAPIR_GDB_SIZE(SymInt),
    {"SymInt.terms_", gdb::GraphLayout::terms},
    {"SymInt.constant_", gdb::GraphLayout::constant},
    {"SymInt.divisor_", gdb::GraphLayout::divisor},
    {"SymInt.after_", gdb::GraphLayout::after},
    {"Graph.inputs_", gdb::GraphLayout::inputs},
    {"Graph.parameters_", gdb::GraphLayout::parameters},
    {"Graph.nodes_", gdb::GraphLayout::nodes},
    {"Graph.outputs_", gdb::GraphLayout::outputs},
    TAPIR_GDB_SIZE(Value),
    TAPIR_GDB_OFFSET(Value, number),
    TAPIR_GDB_OFFSET(Value, name),
    TAPIR_GDB_OFFSET(Value, kind),
    TAPIR_GDB_OFFSET(Value, dtype),
    TAPIR_GDB_OFFSET(Value, device),
    TAPIR_GDB_OFFSET(Value, shape),
    TAPIR_GDB_OFFSET(Value, maker),
    TAPIR_GDB_OFFSET(Value, uses),
    TAPIR_GDB_SIZE(Node),
    {"Node.form", gdb::GraphLayout::form},
    TAPIR_GDB_OFFSET(OpForm, op),
    TAPIR_GDB_OFFSET(Node, inputs),
    TAPIR_GDB_OFFSET(Node, results),
    TAPIR_GDB_OFFSET(Node, loc),
    TAPIR_GDB_OFFSET(Node, module),
    TAPIR_GDB_SIZE(Output),
    TAPIR_GDB_OFFSET(Output, name),
    TAPIR_GDB_OFFSET(Output, value),
    TAPIR_GDB_SIZE(Use),
    {"sizeof.string", sizeof(std::string)},

    // The element types, with the numbers that tensors hold.
    {"dtype.bool", bool_},
    {"dtype.uint8", uint8},
    {"dtype.int32", int32},
    {"dtype.int64", int64},
    {"dtype.float16", float16},
    {"dtype.bfloat16", bfloat16},
    {"dtype.float32", float32},
    {"dtype.float64", float64},
    {},
};
}
static_assert(kDTypes == 8, "the script wants to know a new element type, too");

}  // namespace tapir

// The script, which gdb runs when it loads the program or the library: byte 4 says that Python text follows, with its name in the
// first line. It becomes a module, so that its names are its own.
#if defined(__ELF__) && defined(TAPIR_GDB_SCRIPT)
asm(".pushsection \".debug_gdb_scripts\", \"MS\",%progbits,1\n"
    ".byte 4\n"
    ".ascii \"tapir_gdb.py\\n\"\n"
    ".ascii \"import sys, types\\nsys.modules['tapir_gdb'] = types.ModuleType('tapir_gdb')\\n\"\n"
    ".ascii \"exec(compile(r'''\"\n"
    ".incbin \"" TAPIR_GDB_SCRIPT
    "\"\n"
    ".ascii \"''', 'tapir_gdb.py', 'exec'), sys.modules['tapir_gdb'].__dict__)\\n\"\n"
    ".byte 0\n"
    ".popsection\n");
#endif

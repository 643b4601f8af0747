// Walks through a module's members, and the functions built on that.
#include "tapir/nn/module.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <ostream>
#include <string_view>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>

#include "tapir/autograd/log_impl.h"
#include "tapir/autograd/meta_impl.h"
#include "tapir/autograd/tape.h"
#include "tapir/core/device_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/io/safetensors_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/nn/state_diff_impl.h"
#include "tapir/nn/type_name_impl.h"

namespace tapir::nn {

std::string type_name(const std::type_info& type) {
    int status = 0;
    char* full = abi::__cxa_demangle(type.name(), nullptr, nullptr, &status);
    std::string name = status == 0 ? full : "Module";
    std::free(full);
    if (const std::size_t bracket = name.find('<'); bracket != std::string::npos) name.resize(bracket);
    if (const std::size_t colon = name.rfind("::"); colon != std::string::npos) name.erase(0, colon + 2);
    return name;
}

namespace {

std::string type_name(const Module& module) { return nn::type_name(typeid(module)); }

// True if `known` equals `path`, or is a longer path from a walk further up: "encoder.cell" covers "cell".
bool covers(std::string_view known, std::string_view path) {
    if (!known.ends_with(path)) return false;
    return known.size() == path.size() || path.empty() || known[known.size() - path.size() - 1] == '.';
}

// Several threads may walk a model. Names are published with release, because other threads read the text behind the pointer.
// A tensor with several names keeps the first.
void note_place(const Tensor& parameter, const std::string& path) {
    AutogradMeta* meta = parameter.impl()->meta;
    if (!meta) return;
    const char* known = meta->name_now();
    if (!known || (path.size() > std::strlen(known) && covers(path, known))) {
        __atomic_store_n(&meta->name, tapir::detail::interned(path), __ATOMIC_RELEASE);
    }
}

}  // namespace

void note_place(const Module& module, const std::string& path) {
    const ModuleName* known = __atomic_load_n(&module.place_, __ATOMIC_ACQUIRE);
    if (known && covers(known->path, path)) return;
    __atomic_store_n(&module.place_, tapir::detail::module_name(path, type_name(module)), __ATOMIC_RELEASE);
}

const ModuleName* Module::name_without_place() const {
    const ModuleName* name = tapir::detail::module_name("", type_name(*this));
    __atomic_store_n(&place_, name, __ATOMIC_RELEASE);
    return name;
}

ModuleScope::ModuleScope(const Module& module) : outer_(tapir::detail::thread.module), outer_call_(tapir::detail::thread.module_call) {
    auto& thread = tapir::detail::thread;
    const ModuleName* name = __atomic_load_n(&module.place_, __ATOMIC_ACQUIRE);
    if (!name && !outer_ && tapir::detail::is_tracing()) {  // a model that the traced function captured: the graph's parameters get its names
        module.named_parameters();
        name = __atomic_load_n(&module.place_, __ATOMIC_ACQUIRE);
    }
    thread.module = name ? name : module.name_without_place();
    thread.module_call = ++thread.module_calls;
}

ModuleScope::~ModuleScope() {
    tapir::detail::thread.module = outer_;
    tapir::detail::thread.module_call = outer_call_;
}

namespace {

void check_names(Module& module);

// Walks down the tree of modules and calls one of the two functions for each tensor and module. At the end it compares names by their
// hashes, as a set of strings would take longer than the walk; only if two are equal a second walk checks them.
template <class OnTensor, class OnModule>
class Walk : public Members {
 public:
    /// names: filled by the walk, which throws for a name that is there already.
    Walk(OnTensor on_tensor, OnModule on_module, std::unordered_set<std::string>* names = nullptr)
        : tensor_(std::move(on_tensor)), module_(std::move(on_module)), names_(names) {}

    /// Throws ValueError, at the end, for a name that a module gave twice.
    void start(Module& module) {
        enter(module);
        std::sort(hashes_.begin(), hashes_.end());
        if (std::adjacent_find(hashes_.begin(), hashes_.end()) != hashes_.end()) check_names(module);
    }

 private:
    void enter(Module& module) {
        note_place(module, path_);
        module_(path_, module, [&] { module.members(*this); });
    }
    void on_tensor(const char* name, std::int64_t index, Tensor& tensor, bool is_buffer, const Loc& loc) override {
        const std::size_t length = extend(name, index, loc);
        if (tensor.defined()) {
            note_place(tensor, path_);
            tensor_(path_, tensor, is_buffer);
        }
        path_.resize(length);
    }
    void on_module(const char* name, std::int64_t index, Module& module, const Loc& loc) override {
        const std::size_t length = extend(name, index, loc);
        enter(module);
        path_.resize(length);
    }
    std::size_t extend(const char* name, std::int64_t index, const Loc& loc) {
        const std::size_t length = path_.size();
        const std::string_view text = tapir::detail::given_view(name, loc);
        if (length) path_ += '.';
        path_ += text;
        if (index >= 0) {
            if (!text.empty()) path_ += '.';
            path_ += std::to_string(index);
        }
        if (!names_) {
            hashes_.push_back(std::hash<std::string_view>()(path_));
        } else if (!names_->insert(path_).second) {
            fail<ValueError>(loc, "members: there is a member \"{}\" already", path_);
        }
        return length;
    }

    OnTensor tensor_;
    OnModule module_;
    std::string path_;
    std::unordered_set<std::string>* names_;
    std::vector<std::size_t> hashes_;  // of all names so far
};

// Throws at the second of two members with the same name, with the line that names it.
void check_names(Module& module) {
    std::unordered_set<std::string> names;
    Walk walk([](const std::string&, Tensor&, bool) {}, [](const std::string&, Module&, auto&& inside) { inside(); }, &names);
    walk.start(module);
}

// Calls on_tensor(path, tensor, is_buffer) for all tensors, repeated ones too.
template <class OnTensor>
void for_tensors(const Module& module, OnTensor on_tensor) {
    Walk walk(std::move(on_tensor), [](const std::string&, Module&, auto&& inside) { inside(); });
    walk.start(const_cast<Module&>(module));  // members() hands out references; const callers only read
}

template <class OnModule>
void for_modules(Module& module, OnModule on_module) {
    Walk walk([](const std::string&, Tensor&, bool) {}, std::move(on_module));
    walk.start(module);
}

// Calls take(path, tensor) for each parameter, or each buffer, once.
template <class Take>
void for_distinct(const Module& module, bool buffers, const Take& take) {
    std::unordered_set<const TensorImpl*> seen;
    for_tensors(module, [&](const std::string& path, Tensor& t, bool is_buffer) {
        if (is_buffer == buffers && seen.insert(t.impl()).second) take(path, t);
    });
}

std::vector<Tensor> tensors_of(const Module& module, bool buffers) {
    std::vector<Tensor> result;
    for_distinct(module, buffers, [&](const std::string&, const Tensor& t) { result.push_back(t); });
    return result;
}

NamedTensors collect(const Module& module, bool buffers) {
    NamedTensors result;
    for_distinct(module, buffers, [&](const std::string& path, const Tensor& t) { result.push_back({path, t}); });
    return result;
}

// Throws TapeError if this thread's tape has recorded the tensor: its backward would meet two devices or dtypes.
void check_not_recorded(const std::string& path, const Tensor& t, const Loc& loc) {
    const Tape* tape = Tape::current();
    if (!tape) return;
    const Log& log = tape->log();
    const AutogradMeta* meta = t.impl()->meta;
    const bool is_used = meta && meta->leaf_number < log.leaf_slots.size() && log.leaf_slots[meta->leaf_number].tape == log.id;
    if (!is_used && !log.knows(t.impl())) return;
    fail<TapeError>(loc, "to: {} is recorded on the tape of line {}; convert the module when the tape is gone", path, log.opened.line());
}

// A tensor, its new form and its new gradient.
struct Conversion {
    Tensor tensor, made, gradient;
    std::vector<SparseRows> rows;  // one part, or none
    Tensor used_rows;
    bool is_sure_of_rows = false;
};

// Converts every tensor and its gradient. Makes all new ones before it puts the first in place.
template <class Convert>
void convert_all(Module& module, const Convert& convert, const Loc& loc) {
    const tapir::detail::PauseRecording pause;
    std::vector<Conversion> conversions;
    std::unordered_set<const TensorImpl*> seen;
    for_tensors(module, [&](const std::string& path, Tensor& t, bool) {
        if (!seen.insert(t.impl()).second) return;
        Conversion c{t, convert(t), {}, {}, {}, false};
        if (c.made.is_same(t)) return;
        check_not_recorded(path, t, loc);
        if (AutogradMeta* meta = t.impl()->meta) {
            const std::lock_guard lock(tapir::detail::gradient_mutex());
            if (const SparseRows rows = tapir::detail::rows_or_settle(*meta, t.shape()); rows.defined()) {
                c.rows.push_back({convert(rows.indices), convert(rows.values)});
            } else if (meta->grad.defined()) {
                c.gradient = convert(meta->grad);
                c.is_sure_of_rows = meta->is_sure_of_rows();
                if (meta->used_rows.defined()) c.used_rows = convert(meta->used_rows);
            }
        }
        conversions.push_back(std::move(c));
    });
    for (Conversion& c : conversions) {  // from here on nothing fails
        tapir::detail::become(c.tensor, c.made, loc);
        AutogradMeta* meta = c.tensor.impl()->meta;
        if (!meta) continue;
        const std::lock_guard lock(tapir::detail::gradient_mutex());
        meta->drop_gradient();
        meta->grad = std::move(c.gradient);
        meta->rows = std::move(c.rows);
        meta->used_rows = std::move(c.used_rows);
        meta->note_rows_version(c.is_sure_of_rows);
    }
}

// Returns state_dict(), for a module that has tensors.
NamedTensors state_of(const char* op, const Module& module, const Loc& loc) {
    NamedTensors state = module.state_dict();
    if (!state.empty()) return state;
    fail<ValueError>(loc,
                     "{}: this {} has no tensors; those that it shall have are named in it by "
                     "void members(nn::Members& m) override {{ m(\"weight\", weight)(\"layer\", layer); }}",
                     op, type_name(module));
}

void copy_state(const NamedTensors& own, const NamedTensors& state, const Loc& loc) {
    const tapir::detail::PauseRecording pause;
    std::unordered_map<std::string, const Tensor*> given;
    for (const NamedTensor& t : state) given.emplace(t.name, &t.tensor);
    for (const NamedTensor& t : own) {
        if (const auto found = given.find(t.name); found != given.end()) Tensor(t.tensor).copy_(*found->second, loc);
    }
}

}  // namespace

Parameter::Parameter(const Tensor& data, bool requires_grad, Loc loc) : Tensor(data) {
    const CallerScope caller(loc);
    if (!data.defined()) tapir::detail::fail_undefined("Parameter", loc);
    static_cast<Tensor&>(*this) = data.detach();
    requires_grad_(requires_grad, loc);
}

Parameter& Parameter::operator=(In data) & {
    Tensor& self = *this;
    if (!data.tensor.defined() || data.tensor.requires_grad()) {
        self = data.tensor;
        return *this;
    }
    const TensorImpl* mine = impl();
    const bool is_frozen = mine && !(mine->flags & TensorImpl::kRequiresGrad) && mine->node.tape == 0;
    Tensor leaf = data.tensor.detach();
    leaf.requires_grad_(!is_frozen, data.loc);
    if (mine && mine->meta) tapir::detail::meta_of(leaf).sparse = mine->meta->sparse;
    self = std::move(leaf);
    return *this;
}

std::vector<Tensor> Module::parameters() const { return tensors_of(*this, false); }
NamedTensors Module::named_parameters() const { return collect(*this, false); }
std::vector<Tensor> Module::buffers() const { return tensors_of(*this, true); }
NamedTensors Module::named_buffers() const { return collect(*this, true); }

std::vector<NamedModule> Module::named_modules() {
    std::vector<NamedModule> result;
    for_modules(*this, [&](const std::string& path, Module& module, auto&& inside) {
        result.push_back({path, &module});
        inside();
    });
    return result;
}

std::vector<Module*> Module::modules() {
    std::vector<Module*> result;
    for_modules(*this, [&](const std::string&, Module& module, auto&& inside) {
        result.push_back(&module);
        inside();
    });
    return result;
}

std::int64_t Module::parameter_count() const {
    std::int64_t count = 0;
    for (const Tensor& t : parameters()) count += t.numel();
    return count;
}

void Module::train(bool on) {
    for (Module* module : modules()) module->training_ = on;
}

void Module::requires_grad_(bool on, Loc loc) {
    const CallerScope caller(loc);
    for (Tensor& t : parameters()) t.requires_grad_(on, loc);
}

void Module::zero_grad() {
    for_tensors(*this, [](const std::string&, Tensor& t, bool) { t.zero_grad(); });
}

void Module::to(DType dtype, Loc loc) {
    const CallerScope caller(loc);
    if (!is_floating(dtype)) fail<DTypeError>(loc, "to: parameters need a floating dtype, got {}", name(dtype));
    convert_all(*this, [&](const Tensor& t) { return is_floating(t.dtype()) ? t.to(dtype, loc) : t; }, loc);
}

void Module::to(Device device, Loc loc) {
    const CallerScope caller(loc);
    tapir::detail::check_device("to", device, loc);
    convert_all(*this, [&](const Tensor& t) { return t.to(device, loc); }, loc);
}

void Module::apply(const std::function<void(Module&)>& fn, Loc loc) {
    tapir::detail::check_function("apply", fn, loc);
    for_modules(*this, [&](const std::string&, Module& module, auto&& inside) {
        inside();
        fn(module);
    });
}

NamedTensors Module::state_dict(Loc loc) const {
    const CallerScope caller(loc);
    NamedTensors result;
    for_tensors(*this, [&](const std::string& path, Tensor& t, bool) { result.push_back({path, t.detach()}); });
    return result;
}

IncompatibleKeys Module::load_state_dict(const NamedTensors& state, bool strict, Loc loc) {
    const CallerScope caller(loc);
    const NamedTensors own = state_dict(loc);
    StateDiff diff = state_diff(own, state, strict);
    if (!diff.text.empty()) fail<ValueError>(loc, "load_state_dict: the state does not fit this {}:{}", type_name(*this), diff.text);
    copy_state(own, state, loc);
    return std::move(diff.keys);
}

std::string Module::str() const {
    std::string text;
    std::unordered_map<const TensorImpl*, std::string> first;  // the name a tensor was shown under
    std::vector<std::size_t> parents;                          // lengths of the part of a path that names the enclosing modules
    const auto line = [&](const std::string& path) {
        return std::string(parents.size() * 2, ' ') + path.substr(parents.empty() ? 0 : parents.back());
    };
    Walk walk(
        [&](const std::string& path, Tensor& t, bool is_buffer) {
            const auto [place, is_new] = first.emplace(t.impl(), path);
            text += fmt::format("{} {}", line(path), t.shape());
            if (t.dtype() != float32) text += fmt::format(" {}", name(t.dtype()));
            if (is_buffer) text += ", buffer";
            if (!is_buffer && !(t.impl()->flags & TensorImpl::kRequiresGrad)) text += ", frozen";
            if (!is_new) text += ", shared with " + place->second;
            text += '\n';
        },
        [&](const std::string& path, Module& module, auto&& inside) {
            const std::string details = module.describe();
            text += line(path) + (path.empty() ? "" : ": ") + type_name(module);
            if (!details.empty()) text += "(" + details + ")";
            if (path.empty()) text += fmt::format(", {} parameters", parameter_count());
            text += '\n';
            parents.push_back(path.empty() ? 0 : path.size() + 1);
            inside();
            parents.pop_back();
        });
    walk.start(const_cast<Module&>(*this));
    text.pop_back();
    return text;
}

namespace {

// Turns 1234567 into "1,234,567".
std::string with_commas(std::int64_t n) {
    const std::string digits = std::to_string(n);
    std::string text;
    for (std::size_t i = 0; i < digits.size(); ++i) {
        if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
        text += digits[i];
    }
    return text;
}

// Aligns rows of cells in columns: numbers to the right, text to the left.
std::string align(const std::vector<std::vector<std::string>>& rows, const std::vector<bool>& to_the_right) {
    std::vector<std::size_t> widths(to_the_right.size());
    for (const auto& row : rows) {
        for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    std::string text;
    for (const auto& row : rows) {
        for (std::size_t i = 0; i < row.size(); ++i) {
            const char* between = i + 1 < row.size() ? "  " : "";
            text += to_the_right[i] ? fmt::format("{:>{}}{}", row[i], widths[i], between)
                                    : fmt::format("{:<{}}{}", row[i], i + 1 < row.size() ? widths[i] : 0, between);
        }
        text += '\n';
    }
    return text;
}

}  // namespace

std::string Module::parameter_table() const {
    struct Sum {
        std::int64_t tensors = 0, count = 0, bytes = 0;
        void add(const Tensor& t) {
            ++tensors;
            count += t.numel();
            bytes += t.numel() * static_cast<std::int64_t>(itemsize(t.dtype()));
        }
        std::string str(const char* what) const {
            return fmt::format("{} {}: {} numbers, {} bytes\n", with_commas(tensors), what, with_commas(count), with_commas(bytes));
        }
    };
    Sum trained, frozen, buffers;
    std::vector<std::vector<std::string>> rows = {{"name", "shape", "dtype", "device", "count", "bytes", "kind"}};
    std::unordered_map<const TensorImpl*, std::string> first;  // the name a tensor was shown under
    for_tensors(*this, [&](const std::string& path, Tensor& t, bool is_buffer) {
        const auto [place, is_new] = first.emplace(t.impl(), path);
        const bool is_trained = t.impl()->flags & TensorImpl::kRequiresGrad;
        Sum& sum = is_buffer ? buffers : is_trained ? trained : frozen;
        if (is_new) sum.add(t);
        const std::string kind = is_buffer ? "buffer" : is_trained ? "trained" : "frozen";
        rows.push_back({path, t.shape().str(), name(t.dtype()), fmt::format("{}", name(t.device())), with_commas(t.numel()),
                        with_commas(t.numel() * static_cast<std::int64_t>(itemsize(t.dtype()))), is_new ? kind : "the same as " + place->second});
    });
    std::string text = align(rows, {false, false, false, false, true, true, false});
    text += trained.str("trained");
    if (frozen.tensors) text += frozen.str("frozen");
    if (buffers.tensors) text += buffers.str("buffers");
    return text;
}

std::ostream& operator<<(std::ostream& out, const Module& module) { return out << module.str() << '\n'; }

void detail::own_tensors(const char* name, const Module& original, Module& copy, bool shares_elements, const Loc& loc) {
    const CallerScope caller(loc);
    if (typeid(original) != typeid(copy)) {
        fail<ValueError>(loc, "{}: the module is a {}, of which this would copy the part that is a {}", name, type_name(original), type_name(copy));
    }
    const tapir::detail::PauseRecording pause;
    std::unordered_set<const void*> theirs;  // tensors and modules of the original
    Walk walk([&](const std::string&, Tensor& t, bool) { theirs.insert(&t); },
              [&](const std::string&, Module& module, auto&& inside) {
                  theirs.insert(&module);
                  inside();
              });
    walk.start(const_cast<Module&>(original));
    const auto check_own = [&](const std::string& path, const void* member) {
        if (!theirs.contains(member)) return;
        fail<ValueError>(loc, "{}: {} is held by a pointer that copies of this {} share; give the copy one of its own", name, path,
                         type_name(original));
    };
    std::unordered_map<const TensorImpl*, Tensor> made;
    std::vector<std::pair<Tensor*, Tensor>> places;
    Walk copied(
        [&](const std::string& path, Tensor& t, bool) {
            check_own(path, &t);
            Tensor& fresh = made[t.impl()];
            if (!fresh.defined()) {
                fresh = shares_elements ? t.detach(loc) : t.clone(loc);
                if (const AutogradMeta* meta = t.impl()->meta) tapir::detail::meta_of(fresh).sparse = meta->sparse;
                fresh.requires_grad_(t.impl()->flags & TensorImpl::kRequiresGrad, loc);
            }
            places.emplace_back(&t, fresh);
        },
        [&](const std::string& path, Module& module, auto&& inside) {
            check_own(path, &module);
            inside();
        });
    copied.start(copy);
    for (auto& [place, tensor] : places) *place = tensor;
}

void save(const Module& module, const TextArg& path, Loc loc) {
    const CallerScope caller(loc);
    io::save_safetensors("save", path, state_of("save", module, loc), {}, nullptr, loc);
}

IncompatibleKeys load(Module& module, const TextArg& path, bool strict, Loc loc) {
    const CallerScope caller(loc);
    return load(module, path, {.strict = strict, .rename = {}}, loc);
}

IncompatibleKeys load(Module& module, const TextArg& path, const LoadOptions& options, Loc loc) {
    const CallerScope caller(loc);
    const NamedTensors own = state_of("load", module, loc);
    FileMetadata metadata;
    NamedTensors state = io::load_safetensors("load", path, &metadata, loc);
    if (options.rename) state = rename(std::move(state), options.rename, loc);
    StateDiff diff = state_diff(own, state, options.strict);
    const bool is_run =
        std::find(metadata.begin(), metadata.end(), std::pair<std::string, std::string>("format", kTrainingStateFormat)) != metadata.end();
    if (is_run && !options.rename && (!diff.text.empty() || diff.keys.unexpected_keys.size() == state.size())) {
        const std::string part = part_that_fits(own, state);
        fail<FileError>(loc, "load: {} is the state of a whole run, which TrainingState saved and loads; {}", path,
                        part.empty()
                            ? fmt::format("no part of it fits this {}", type_name(module))
                            : fmt::format("for this {} alone: nn::load(model, path, {{.rename = only_prefix(\"{}.\")}})", type_name(module), part));
    }
    if (!diff.text.empty()) fail<FileError>(loc, "load: {} does not fit this {}:{}", path, type_name(module), diff.text);
    copy_state(own, state, loc);
    return std::move(diff.keys);
}

}  // namespace tapir::nn

// The C interface that check.py loads with ctypes: tensors as handles, calls by name, gradients of what they gave.
#include "binding.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

namespace judge {
namespace {

struct Parameter {
    std::string name, fallback;  // the text behind "="; empty: it must be given
};

/// "(In input, Dims dim = {}, Flag keepdim = false)"
std::vector<Parameter> read_parameters(const std::string& text) {
    std::vector<Parameter> parameters;
    std::string part;
    int depth = 0;
    for (std::size_t i = 1; i < text.size(); ++i) {
        if (text[i] == '(' || text[i] == '{' || text[i] == '<') ++depth;
        const bool ends = i + 1 == text.size() || (text[i] == ',' && depth == 0);
        if (text[i] == ')' || text[i] == '}' || text[i] == '>') --depth;
        if (!ends) {
            part += text[i];
            continue;
        }
        const std::size_t equals = part.find(" = ");
        const std::string declared = part.substr(0, equals);
        if (!declared.empty())
            parameters.push_back({declared.substr(declared.rfind(' ') + 1), equals == std::string::npos ? "" : part.substr(equals + 3)});
        part.clear();
    }
    return parameters;
}

Value fallback_value(const std::string& text) {
    Value v;
    if (text == "{}") return v;
    if (text == "true" || text == "false") {
        v.kind = Value::boolean, v.whole = text == "true";
    } else if (text[0] == '"' || text.starts_with("Reduction::")) {
        static std::map<std::string, std::string> words;
        v.kind = Value::text, v.word = (words[text] = text[0] == '"' ? text.substr(1, text.size() - 2) : text.substr(11)).c_str();
    } else if (text.find("inf") != std::string::npos) {
        v.kind = Value::number, v.real = text[0] == '-' ? -__builtin_inf() : __builtin_inf();
    } else if (text.find_first_of(".e") != std::string::npos) {
        v.kind = Value::number, v.real = std::strtod(text.c_str(), nullptr);
    } else {
        v.kind = Value::integer, v.whole = std::strtoll(text.c_str(), nullptr, 10);
    }
    return v;
}

/// The arguments in the parameters' order; false where they do not fit.
bool arrange(const std::vector<Parameter>& parameters, const Value* given, const char* const* names, int count, std::vector<Value>& bound) {
    std::vector<const Value*> of(parameters.size());
    for (int i = 0; i < count; ++i) {
        std::size_t p = static_cast<std::size_t>(i);
        if (names[i]) {
            for (p = 0; p < parameters.size() && parameters[p].name != names[i];) ++p;
        }
        if (p >= parameters.size() || of[p]) return false;
        of[p] = given + i;
    }
    bound.clear();
    for (std::size_t p = 0; p < parameters.size(); ++p) {
        if (!of[p] && parameters[p].fallback.empty()) return false;
        const bool use_fallback = !of[p] || (of[p]->kind == Value::none && !parameters[p].fallback.empty());
        bound.push_back(use_fallback ? fallback_value(parameters[p].fallback) : *of[p]);
    }
    return true;
}

enum Status { ok, shape, dtype, device, index, value, tape, memory, file, untyped = 20, no_call = 30 };
thread_local std::string message;

template <class F>
int guarded(F&& work) {
    const auto typed = [](const std::exception& e, Status status) { return message = e.what(), status; };
    try {
        return work();
    } catch (const ShapeError& e) {
        return typed(e, shape);
    } catch (const DTypeError& e) {
        return typed(e, dtype);
    } catch (const DeviceError& e) {
        return typed(e, device);
    } catch (const IndexError& e) {
        return typed(e, index);
    } catch (const ValueError& e) {
        return typed(e, value);
    } catch (const TapeError& e) {
        return typed(e, tape);
    } catch (const OutOfMemory& e) {
        return typed(e, memory);
    } catch (const FileError& e) {
        return typed(e, file);
    } catch (const std::exception& e) {
        return typed(e, untyped);
    }
}

}  // namespace
}  // namespace judge

using namespace judge;

extern "C" {

const char* judge_message() { return message.c_str(); }

/// A leaf with its own copy of `bytes` bytes, strided like PyTorch's.
Tensor* judge_tensor(const void* data, std::int64_t bytes, const std::int64_t* sizes, const std::int64_t* strides, int rank, int type, int leaf) {
    Tensor* x = nullptr;
    guarded([&] {
        void* copy = std::aligned_alloc(64, static_cast<std::size_t>(bytes + 64) / 64 * 64);
        std::memcpy(copy, data, static_cast<std::size_t>(bytes));
        x = new Tensor(from_blob(copy, Shape(sizes, rank), Shape(strides, rank), std::free, static_cast<DType>(type)));
        if (leaf) x->requires_grad_();
        return ok;
    });
    return x;
}
void judge_free(Tensor* x) { delete x; }
void judge_about(const Tensor* x, int* type, int* rank, std::int64_t* sizes) {
    *type = static_cast<int>(x->dtype()), *rank = x->dim();
    for (int d = 0; d < *rank; ++d) sizes[d] = x->size(d);
}
void judge_copy(const Tensor* x, void* to) {
    const Tensor rows = x->detach().contiguous();
    if (rows.numel()) std::memcpy(to, rows.raw_data(), rows.nbytes());
}

int judge_knows(const char* name) {
    for (const Call& call : calls()) {
        if (call.name == name) return 1;
    }
    return 0;
}

/// Calls what fits the arguments first. `results` has place for 256.
int judge_call(const char* name, const Value* given, const char* const* names, int count, Tensor** results, int* result_count) {
    return guarded([&]() -> int {
        std::vector<Value> bound;
        for (const Call& call : calls()) {
            if (call.name != name || !arrange(read_parameters(call.parameters), given, names, count, bound) || !call.fits(bound.data())) continue;
            Tensors tensors;
            call.run(bound.data(), tensors);
            *result_count = 0;
            for (const Tensor& y : tensors) {
                if (*result_count < 256) results[(*result_count)++] = new Tensor(y);
            }
            return ok;
        }
        message = "no call takes these arguments";
        return no_call;
    });
}

Tape* judge_tape() { return new Tape(); }
void judge_end(Tape* tape) { delete tape; }

/// The gradients of sum over i of sum(ys[i] * weights[i]).
int judge_gradient(Tape* tape, Tensor** ys, Tensor** weights, int y_count, Tensor** xs, int x_count, int again, Tensor** gradients) {
    return guarded([&] {
        Tensor loss;
        for (int i = 0; i < y_count; ++i) {
            const Tensor part = sum(*ys[i] * *weights[i]);
            loss = loss.defined() ? loss + part : part;
        }
        Tensors of;
        for (int i = 0; i < x_count; ++i) of.push_back(*xs[i]);
        const Tensors found = tape->gradient(loss, of, {.create_graph = again != 0, .retain_graph = true});
        for (int i = 0; i < x_count; ++i) gradients[i] = new Tensor(found[static_cast<std::size_t>(i)]);
        return ok;
    });
}

}  // extern "C"

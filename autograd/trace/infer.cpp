// Finding out what an op gives by calling it.
#include "tapir/autograd/trace/infer_impl.h"

#include <algorithm>
#include <set>

#include "tapir/autograd/trace/fit_impl.h"
#include "tapir/autograd/trace/names_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/generator_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/thread_impl.h"

namespace tapir {
namespace {

Tensor zeros_of(const Graph::Value& value, const DimSizes& sizes, const Loc& loc) {
    if (value.kind == Graph::Kind::constant) return value.data;
    Shape shape;
    for (const SymInt& size : value.shape) shape.push_back(size.value(sizes, loc), loc);
    Tensor zeros = detail::make_empty(shape, value.dtype, value.device, loc);
    return zeros.fill_(0);
}

}  // namespace

std::vector<detail::Inferred> detail::infer_results(const Attributes& attributes, const std::vector<Graph::Value*>& inputs, const Loc& loc) {
    std::set<std::string> names;
    const auto note = [&](const SymInt& size) {
        for (std::string& name : size.dims()) names.insert(std::move(name));
    };
    for (const Graph::Value* input : inputs) std::for_each(input->shape.begin(), input->shape.end(), note);
    for (const auto& [name, attribute] : attributes.all()) {
        if (const auto* size = std::get_if<SymInt>(&attribute)) note(*size);
        if (const auto* sizes = std::get_if<std::vector<SymInt>>(&attribute)) std::for_each(sizes->begin(), sizes->end(), note);
    }
    DimSizes first;
    std::int64_t next = 4;
    for (const std::string& name : names) first[name] = next += 2;
    const std::vector<DimSizes> samples = detail::samples_of(first);
    const detail::PauseRecording pause;
    const detail::KeptGenerator generator;  // draws of ops that are only tried do not count
    const CallerScope caller(loc);
    std::vector<std::vector<Tensor>> made;
    for (const DimSizes& sizes : samples) {
        std::vector<Tensor> arguments;
        for (const Graph::Value* input : inputs) arguments.push_back(zeros_of(*input, sizes, loc));
        std::vector<const Tensor*> addresses;
        for (const Tensor& argument : arguments) addresses.push_back(&argument);
        std::vector<Tensor> results(256);
        const Attributes call = attributes.with(sizes, loc);
        run_form(call.form(), {addresses.data(), static_cast<int>(addresses.size()), call.data()}, results.data());
        while (!results.empty() && !results.back().defined()) results.pop_back();
        made.push_back(std::move(results));
    }
    std::vector<Inferred> list;
    for (std::size_t k = 0; k < made[0].size(); ++k) {
        const Tensor& y = made[0][k];
        Inferred result{y.dtype(), y.device(), {}};
        for (int d = 0; d < y.dim(); ++d) {
            std::vector<std::int64_t> values;
            for (const auto& results : made) values.push_back(results[k].size(d));
            const auto size = detail::fit(samples, values);
            result.shape.push_back(size ? *size : SymInt::dim("unknown"));
        }
        list.push_back(std::move(result));
    }
    return list;
}

}  // namespace tapir

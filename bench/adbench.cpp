// Rows of ADBench: objectives, and their gradients or Jacobians.
#include "adbench.h"

#ifdef __SSE__
#include <xmmintrin.h>
#endif

#include "rows.h"

namespace bench {
namespace {

/// While it lives, and if `wanted`, subnormal numbers (of float64: below 2e-308 in size) count as 0. Some processors take over 100 cycles
/// for an operation with one.
class SubnormalsFlushed {
 public:
    explicit SubnormalsFlushed([[maybe_unused]] bool wanted) {
#ifdef __SSE__
        if (wanted) _mm_setcsr(before_ | 0x8040);  // flush to zero, denormals are zero
#endif
    }
#ifdef __SSE__
    ~SubnormalsFlushed() { _mm_setcsr(before_); }

 private:
    unsigned before_ = _mm_getcsr();
#endif
};

enum class What { objective, derivatives };

/// The rows adbench/NAME/objective and adbench/NAME/DERIVATIVES. read() gives the data, or nothing; derivatives(model) is what is timed,
/// and returns tensors. flushed: see SubnormalsFlushed.
template <class Model, class Read, class Derivatives>
void add_problem(const std::string& name, const std::string& derivatives_name, const Read& read, const Derivatives& derivatives,
                 bool flushed = false) {
    for (const What what : {What::objective, What::derivatives}) {
        const auto run = [=](State& state) {
            const auto data = read();
            if (!data) return state.SkipWithError("no ADBench data: set TAPIR_ADBENCH_DIR");
            const Model model(*data);
            const SubnormalsFlushed scope(flushed);
            if (what == What::objective) {
                const NoGradients guard;
                state.counters["check"] = total(model());
                for (auto _ : state) benchmark::DoNotOptimize(model());
            } else {
                double check = 0;
                for (const Tensor& t : derivatives(model)) check += total(t);
                state.counters["check"] = check;
                for (auto _ : state) benchmark::DoNotOptimize(derivatives(model));
            }
            state.SetItemsProcessed(state.iterations());
        };
        add_row("adbench/" + name + "/" + (what == What::objective ? "objective" : derivatives_name), "us", run);
    }
}

/// The gradient of model() by its parameters.
template <class Model>
Tensors gradient_of(const Model& model) {
    const Tensors parameters = model.parameters();
    gradients(parameters, model);
    Tensors made;
    for (const Tensor& p : parameters) made.push_back(p.grad());
    return made;
}

}  // namespace

void add_adbench_rows() {
    for (const std::string name : {"d2_K5", "d10_K25", "d20_K50", "d64_K5"}) {
        add_problem<Gmm>("gmm_" + name, "gradient", [=] { return read_gmm(name); }, gradient_of<Gmm>);
    }
    // Points far from a Gaussian have subnormal weights, which the product of the gradient reads, unless logsumexp leaves them out.
    add_problem<Gmm>("gmm_d64_K5_flushed", "gradient", [] { return read_gmm("d64_K5"); }, gradient_of<Gmm>, /*flushed=*/true);
    add_problem<Lstm>("lstm_l2_c1024", "gradient", [] { return read_lstm("l2_c1024"); }, gradient_of<Lstm>);
    add_problem<Bundle>(
        "ba1_n49_m7776_p31843", "jacobian", [] { return read_bundle("ba1_n49_m7776_p31843"); },
        [](const Bundle& model) { return Tensors{model.jacobian()}; });
}

}  // namespace bench

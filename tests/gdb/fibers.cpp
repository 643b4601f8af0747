// Instances of batch(), for `tapir fibers`.
#include <tapir/tapir.h>

#include <vector>

using tapir::Tensor;

// Where the tests stop, in one line whatever the optimization.
template <class... T>
[[gnu::noinline]] void look_at(const T&... values) { const void* addresses[] = {&values...}; asm volatile("" : : "r"(addresses) : "memory"); }

namespace {

[[gnu::noinline]] Tensor encoded(const tapir::nn::Linear& layer, const Tensor& x) {
    look_at(x);
    const Tensor h = layer(x);
    look_at(h);
    return h;
}

[[gnu::noinline]] Tensor half_of(const Tensor& x, int half) {
    const Tensor y = half == 0 ? exp(x) : sigmoid(x);
    look_at(y);
    return y;
}

// Instances that wait for different ops, and one that forks.
[[gnu::noinline]] Tensor run_item(const tapir::nn::Linear& layer, int item) {
    const Tensor x = tapir::full({1, 2}, static_cast<double>(item));
    if (item == 0) return x;
    if (item == 1) {
        const Tensor y = tanh(x);
        return y;
    }
    if (item == 2) {
        const std::vector<int> halves{0, 1};
        const std::vector<Tensor> made = tapir::batch(halves, [&](int half) { return half_of(x, half); });
        return made[0];
    }
    const Tensor h = encoded(layer, x);
    return h;
}

}  // namespace

void fibers() {
    const tapir::nn::Linear layer(2, 2);
    const std::vector<int> items{0, 1, 2, 3, 4, 5};
    const std::vector<Tensor> made = tapir::batch(items, [&](int item) { return run_item(layer, item); }, {.most = 5, .all_wait = true});
    look_at(made);
}

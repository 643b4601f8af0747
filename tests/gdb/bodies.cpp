// Ops in the bodies of threads, lambdas and templates, whose frames the optimizer takes apart.
#include <tapir/tapir.h>

#include <functional>
#include <future>
#include <thread>

using tapir::Tensor;

namespace {

template <class T>
[[gnu::noinline]] Tensor doubled(const T& x) {
    return exp(x);
}

template <class T>
Tensor twice(const T& x) {
    return exp(x) * 2;
}

[[gnu::noinline]] Tensor applied(const std::function<Tensor(const Tensor&)>& function, const Tensor& x) { return function(x); }

[[gnu::noinline]] Tensor pointed(Tensor (*function)(const Tensor&), const Tensor& x) { return function(x); }

}  // namespace

void bodies() {
    const Tensor a = tapir::ones({2});
    std::thread([] {
        const Tensor x = tapir::ones({3});
        const Tensor y = exp(x);
    }).join();
    std::async(std::launch::async, [&a] { return exp(a); }).get();
    const auto one = [&a](int k) {
        const Tensor b = exp(a);
        return b * k;
    };
    std::thread first(one, 1);
    first.join();
    std::thread second(one, 2);
    second.join();
    applied([](const Tensor& x) { return exp(x); }, a);
    applied([&](const Tensor& x) {
        const Tensor y = x + a;
        return exp(y);
    }, a);
    pointed([](const Tensor& x) { return exp(x); }, a);
    doubled(a);
    std::thread([&] { twice(a); }).join();
    std::thread([] {
        const Tensor w = tapir::ones({4}).requires_grad_();
        tapir::Tape tape;
        const Tensor y = exp(w);
        const Tensor loss = sum(y);
        tape.backward(loss);
    }).join();
    std::async(std::launch::async, [] {
        const Tensor w = tapir::ones({4}).requires_grad_();
        tapir::Tape tape;
        tape.backward(sum(exp(w)));
    }).get();
}

// A user's program: a gradient through an op of each kind that the library links something for.
#include <tapir/tapir.h>

#include <cstdio>

tapir::Tensor twice(const tapir::Tensor& x);  // other.cpp

int main() {
    tapir::Tensor x = tapir::ones({3, 4}).requires_grad_();
    tapir::Tape tape;
    tapir::Tensor loss = tapir::matmul(twice(x), tapir::ones({4, 2})).sum();
    tape.backward(loss);
    const float value = loss.item<float>(), gradient = x.grad().sum().item<float>();
    std::printf("loss %g, sum of gradients %g\n", static_cast<double>(value), static_cast<double>(gradient));
    return value == 48.0f && gradient == 48.0f ? 0 : 1;
}

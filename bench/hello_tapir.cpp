// The 20-line program whose compile time, start-up time and memory are measured: a model, a loss, a step.
#include <tapir/tapir.h>

#include <cstdio>

int main() {
    tapir::Tensor w = tapir::randn({3, 2}).requires_grad_();
    tapir::Tensor b = tapir::zeros({3}).requires_grad_();
    tapir::optim::SGD optimizer({w, b}, {.lr = 0.1});
    const tapir::Tensor x = tapir::randn({8, 2});
    const tapir::Tensor y = tapir::randn({8, 3});
    for (int step = 0; step < 3; ++step) {
        tapir::Tape tape;
        const tapir::Tensor loss = tapir::mse_loss(tapir::tanh(tapir::linear(x, w, b)), y);
        tape.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
        std::printf("%d %f\n", step, loss.item<double>());
    }
}

// The 20-line program whose compile time, start-up time and memory are measured: a model, a loss, a step.
#include <torch/torch.h>

#include <cstdio>

int main() {
    torch::Tensor w = torch::randn({3, 2}).requires_grad_();
    torch::Tensor b = torch::zeros({3}).requires_grad_();
    torch::optim::SGD optimizer({w, b}, /*lr=*/0.1);
    const torch::Tensor x = torch::randn({8, 2});
    const torch::Tensor y = torch::randn({8, 3});
    for (int step = 0; step < 3; ++step) {
        const torch::Tensor loss = torch::mse_loss(torch::tanh(torch::linear(x, w, b)), y);
        loss.backward();
        optimizer.step();
        optimizer.zero_grad();
        std::printf("%d %f\n", step, loss.item<double>());
    }
}

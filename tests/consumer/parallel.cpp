// A user's program that links Tapir::parallel: without a launcher it is a group of one; then two threads.
#include <tapir/nn/parallel/parallel.h>
#include <tapir/tapir.h>

#include <cstdio>

int main(int argc, char** argv) {
    using namespace tapir;
    const parallel::Group world = parallel::init(argc, argv);
    const Tensor w = ones({3}).requires_grad_();
    const parallel::Replicas replicas({w}, world);
    Tape tape;
    tape.backward(sum(w * w));
    double total = 0;
    parallel::spawn(2, [&](const parallel::Group& both) {
        const double sum = both.all_reduce(full({}, both.rank() + 1.0)).item<double>();
        if (both.rank() == 0) total = sum;
    });
    std::printf("%d process, gradient %g, sum over threads %g\n", world.size(), w.grad()[0].item<double>(), total);
    return world.size() == 1 && total == 3 ? 0 : 1;
}

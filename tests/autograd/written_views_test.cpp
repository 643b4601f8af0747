// Views of a constant, and recorded ops that write to its elements: what is read of them afterwards has the gradient that finite
// differences say, or is refused; it is never a constant by mistake.
#include <cmath>
#include <functional>
#include <optional>
#include <string>

#include "../fails.h"
#include "tapir/autograd/trace/trace.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

struct View {
    const char* name;
    std::function<std::vector<Tensor>(const Tensor&)> make;
};

// Of a (4, 4) matrix.
const std::vector<View>& views() {
    static const std::vector<View> list = {
        {"x[1]", [](const Tensor& x) { return std::vector{x[1]}; }},
        {"x[1][2]", [](const Tensor& x) { return std::vector{x[1][2]}; }},
        {"x[1:3]", [](const Tensor& x) { return std::vector{x[Slice(1, 3)]}; }},
        {"x[:, 1]", [](const Tensor& x) { return std::vector{x.index({Slice(), 1})}; }},
        {"x[None]", [](const Tensor& x) { return std::vector{x[None]}; }},
        {"select", [](const Tensor& x) { return std::vector{x.select(1, 0)}; }},
        {"narrow", [](const Tensor& x) { return std::vector{x.narrow(1, 1, 2)}; }},
        {"slice", [](const Tensor& x) { return std::vector{x.slice(0, Slice(0, 4, 2))}; }},
        {"unbind", [](const Tensor& x) { return x.unbind(1); }},
        {"chunk", [](const Tensor& x) { return x.chunk(2); }},
        {"split", [](const Tensor& x) { return x.split(2, 1); }},
        {"split of sizes", [](const Tensor& x) { return x.split(std::vector<std::int64_t>{1, 3}); }},
        {"tensor_split", [](const Tensor& x) { return tensor_split(x, 3); }},
        {"transpose", [](const Tensor& x) { return std::vector{x.transpose(0, 1)}; }},
        {"swapaxes", [](const Tensor& x) { return std::vector{x.swapaxes(0, 1)}; }},
        {"t", [](const Tensor& x) { return std::vector{x.t()}; }},
        {"permute", [](const Tensor& x) { return std::vector{x.permute(1, 0)}; }},
        {"movedim", [](const Tensor& x) { return std::vector{x.movedim(0, 1)}; }},
        {"diagonal", [](const Tensor& x) { return std::vector{x.diagonal()}; }},
        {"view", [](const Tensor& x) { return std::vector{x.view(16)}; }},
        {"view_as", [](const Tensor& x) { return std::vector{x.view_as(zeros({2, 8}))}; }},
        {"reshape", [](const Tensor& x) { return std::vector{x.reshape(2, 8)}; }},
        {"flatten", [](const Tensor& x) { return std::vector{x.flatten()}; }},
        {"ravel", [](const Tensor& x) { return std::vector{x.ravel()}; }},
        {"unflatten", [](const Tensor& x) { return std::vector{x.unflatten(1, {2, 2})}; }},
        {"unsqueeze", [](const Tensor& x) { return std::vector{x.unsqueeze(1)}; }},
        {"squeeze", [](const Tensor& x) { return std::vector{x.unsqueeze(1).squeeze(1)}; }},
        {"expand", [](const Tensor& x) { return std::vector{x.expand(2, 4, 4)}; }},
        {"broadcast_to", [](const Tensor& x) { return std::vector{x.broadcast_to({2, 4, 4})}; }},
        {"unfold", [](const Tensor& x) { return std::vector{x.unfold(0, 2, 1)}; }},
        {"a view of a view", [](const Tensor& x) { return std::vector{x.t().narrow(0, 1, 2)[0]}; }},
        {"rows of a loop",
         [](const Tensor& x) {
             std::vector<Tensor> rows;
             for (const Tensor& row : x) rows.push_back(row);
             return rows;
         }},
        {"detach", [](const Tensor& x) { return std::vector{x.detach()}; }},
        {"of detach", [](const Tensor& x) { return std::vector{x.detach()[1]}; }},
    };
    return list;
}

struct Write {
    const char* name;
    std::function<void(Tensor x, const Tensor& w)> run;  // x: any shape; w: 0-d
};

Tensor rows_like(const Tensor& x) { return zeros({x.size(0)}, int64); }

// All that write in place and that a gradient of another operand flows through.
const std::vector<Write>& writes() {
    static const std::vector<Write> list = {
#define TAPIR_BINARY(op, types, ...) {#op, [](Tensor x, const Tensor& w) { x.op##_(w); }},
#define TAPIR_TERNARY(op, ...) {#op, [](Tensor x, const Tensor& w) { x.op##_(w + 0.25, w * 0.5); }},
#include "tapir/ops/elementwise/elementwise.def"
        {"+=", [](Tensor x, const Tensor& w) { x += w; }},
        {"/=", [](Tensor x, const Tensor& w) { x /= w; }},
        {"lerp of a number", [](Tensor x, const Tensor& w) { x.lerp_(w.expand(x.shape()), 0.3); }},
        {"copy", [](Tensor x, const Tensor& w) { x.copy_(w); }},
        {"x[0] = w", [](Tensor x, const Tensor& w) { x.index_put_({0}, w); }},
        {"x[...] = w", [](Tensor x, const Tensor& w) { x.index_put_({Ellipsis}, w); }},
        {"x[0] += w", [](Tensor x, const Tensor& w) { x.index_put_({0}, w, true); }},
        {"x[tensor] = w", [](Tensor x, const Tensor& w) { x.index_put_({tensor({0, 1})}, w); }},
        {"x[mask] = w", [](Tensor x, const Tensor& w) { x.index_put_({x > 1.4}, w); }},
        {"masked_fill", [](Tensor x, const Tensor& w) { x.masked_fill_(x > 1.4, w); }},
        {"scatter", [](Tensor x, const Tensor& w) { x.scatter_(0, zeros(x.shape(), int64), w.expand(x.shape())); }},
        {"scatter_add", [](Tensor x, const Tensor& w) { x.scatter_add_(0, zeros(x.shape(), int64), w.expand(x.shape())); }},
        {"scatter_reduce", [](Tensor x, const Tensor& w) { x.scatter_reduce_(0, zeros(x.shape(), int64), w.expand(x.shape()), "prod"); }},
        {"index_copy", [](Tensor x, const Tensor& w) { x.index_copy_(0, arange(x.size(0)), w.expand(x.shape())); }},
        {"index_add", [](Tensor x, const Tensor& w) { x.index_add_(0, rows_like(x), w.expand(x.shape())); }},
    };
    return list;
}

Tensor matrix() { return arange(16, float64).view(4, 4) * 0.1 + 0.5; }

// A sum in which each element counts differently.
Tensor weighted(const std::vector<Tensor>& list) {
    Tensor total = zeros({}, float64);
    for (const Tensor& t : list) total = total + sum(t * (arange(t.numel(), float64).view(t.shape()) * 0.37 + 1));
    return total;
}

using Program = std::function<Tensor(const Tensor& w)>;

double at(const Program& program, double w) { return program(tensor(w, float64)).item(); }

// The gradient at 0.83, or nothing where a TapeError says that there is none.
std::optional<double> gradient_of(const Program& program, std::string& message) {
    const Tensor w = tensor(0.83, float64).requires_grad_();
    Tape tape;
    try {
        const Tensor y = program(w) + w;
        return tape.gradient(y, w).item();
    } catch (const TapeError& error) {
        message = error.what();
        return {};
    }
}

// Returns whether there is a gradient.
bool is_right_or_refused(const Program& program) {
    std::string message;
    const std::optional<double> gradient = gradient_of(program, message);
    if (!gradient) {
        CHECK((message.find("written_views_test.cpp:") == 0 || message.find("elementwise.def:") == 0));
        return false;
    }
    const double eps = 1e-6, quotient = (at(program, 0.83 + eps) - at(program, 0.83 - eps)) / (2 * eps) + 1;
    CHECK(*gradient == Approx(quotient).epsilon(1e-5).margin(1e-7));
    return true;
}

// Some ops do not compute on these shapes or numbers; that is another test's.
bool runs(const Program& program) {
    try {
        return std::isfinite(at(program, 0.83));
    } catch (const Error&) {
        return false;
    }
}

}  // namespace

TEST_CASE("a view of a constant that a recorded op writes to gives a gradient, or is refused") {
    int compared = 0, refused = 0;
    for (const View& view : views()) {
        for (const Write& write : writes()) {
            INFO(view.name << ", " << write.name);
            const auto count = [&](const Program& program) {
                if (!runs(program)) return;
                (is_right_or_refused(program) ? compared : refused)++;
            };
            count([&](const Tensor& w) {  // written to, then read through a view made before
                const Tensor x = matrix();
                const std::vector<Tensor> seen = view.make(x);
                write.run(x, w);
                return weighted(seen);
            });
            count([&](const Tensor& w) {  // read before, too
                const Tensor x = matrix();
                const std::vector<Tensor> seen = view.make(x);
                const Tensor before = weighted(seen) * w;
                write.run(x, w);
                return before + weighted(seen) + weighted({x});
            });
            count([&](const Tensor& w) {  // a view of a view made before
                const Tensor x = matrix();
                const std::vector<Tensor> seen = view.make(x);
                write.run(x, w);
                return weighted({seen.back()[None]});
            });
            count([&](const Tensor& w) {  // written to through a view
                const Tensor x = matrix();
                write.run(view.make(x).back(), w);
                return weighted({x});
            });
            count([&](const Tensor& w) {  // and read through another one
                const Tensor x = matrix(), other = x.narrow(1, 0, 3);
                write.run(view.make(x).back(), w);
                return weighted({other}) + weighted(view.make(x));
            });
            count([&](const Tensor& w) {  // written to through what was the only one to see the elements
                Tensor x = view.make(matrix()).back();
                const Tensor row = x[None];
                write.run(x, w);
                return weighted({row}) + weighted({x});
            });
            if (std::string(view.name).find("detach") != std::string::npos) continue;  // a constant, as it was asked for
            count([&](const Tensor& w) {                                               // the program that is right: views taken afterwards
                const Tensor x = matrix();
                write.run(x, w);
                return weighted(view.make(x));
            });
        }
    }
    CHECK(compared > 1000);
    CHECK(refused > 1000);
}

TEST_CASE("a view that is taken after the write has its gradient") {
    for (const View& view : views()) {
        if (std::string(view.name).find("detach") != std::string::npos) continue;
        INFO(view.name);
        std::string message;
        const Program program = [&](const Tensor& w) {
            Tensor x = matrix();
            const std::vector<Tensor> before = view.make(x);
            x.index_put_({Ellipsis}, w);
            return sum(view.make(x)[0]);
        };
        const std::optional<double> gradient = gradient_of(program, message);
        REQUIRE(gradient);
        CHECK(*gradient == Approx(static_cast<double>(view.make(matrix())[0].numel()) + 1));
    }
}

TEST_CASE("the error of a view that is out of date names both lines, and how to go on") {
    const Tensor w = ones({2}).requires_grad_();
    Tensor buffer = zeros({2, 2}), row = buffer[0], frozen = buffer.detach();
    Tensor leaf = buffer[1];
    leaf.requires_grad_();
    Tape tape;
    const int line = __LINE__ + 1;
    buffer.index_put_({0}, w);
    const std::string says = "before its elements were written to at written_views_test.cpp:" + std::to_string(line) + " by an op";
    FAILS_IN(TapeError, "a view of shape (2,) was made ", says, sum(row));
    FAILS_IN(TapeError, "a view of shape (2,) was made ", says, row * 2);
    FAILS_IN(TapeError, "a view of shape (2,) was made ", says, stack({buffer[0], row}));
    FAILS_IN(TapeError, "a view of shape (2,) was made ", says, row.fill_(1));
    FAILS_IN(TapeError, "a view of shape (2,) was made ", says, Tensor(zeros({2})).copy_(row));
    FAILS_IN(TapeError, "a view of shape (2,) was made ", says, leaf * 2);
    FAILS_IN(TapeError, "a view of shape (2, 2) was made ", says, sum(frozen));
    FAILS_IN(TapeError, "a view of shape (2,) was made ", says, tape.gradient(sum(buffer), {leaf}));
    CHECK(buffer.to_vector<float>() == std::vector<float>{1, 1, 0, 0});
    CHECK(row.to_vector<float>() == std::vector<float>{1, 1});  // to look is no op
    CHECK(row.str() == "[1. 1.]");
    // The ways out.
    CHECK(tape.gradient(sum(buffer[0]), w).to_vector<float>() == std::vector<float>{1, 1});
    CHECK(tape.gradient(sum(row.detach() * w), w).to_vector<float>() == std::vector<float>{1, 1});
    CHECK(tape.gradient(sum(buffer.detach() * w), w).to_vector<float>() == std::vector<float>{1, 1});
    const NoGradScope pause;
    CHECK(sum(row).item<float>() == 2);
}

TEST_CASE("states that are written step by step") {
    // A memory whose columns are encoded one after the other, read through columns taken before.
    Tensor encoder = tensor({0.5, 2.0}).requires_grad_();
    Tensor memory = zeros({2, 3});
    const std::vector<Tensor> columns = memory.unbind(1);
    {
        Tape tape;
        for (int i = 0; i < 3; ++i) memory.index_put_({Slice(), i}, encoder * (i + 1));
        CHECK_THROWS_AS(sum(columns[1]), TapeError);
        CHECK(tape.gradient(sum(memory.unbind(1)[1]), encoder).to_vector<float>() == std::vector<float>{2, 2});
    }
    // When the tape has ended all of it is constant.
    CHECK(sum(columns[1]).item<float>() == 5);
    Tape tape;
    CHECK(tape.gradient(sum(columns[1] * encoder), encoder).to_vector<float>() == std::vector<float>{1, 4});
    CHECK(tape.gradient(sum(memory * encoder.unsqueeze(1)), encoder).to_vector<float>() == std::vector<float>{3, 12});
}

TEST_CASE("writes that are not recorded leave views constants") {
    Tensor w = ones({2}).requires_grad_();
    Tensor running = zeros({2, 2}), row = running[0];
    Tape tape;
    running.add_(1);
    CHECK(tape.gradient(sum(row * w), w).to_vector<float>() == std::vector<float>{1, 1});
    {
        const NoGradScope pause;
        running.index_put_({0}, w * 5);
    }
    CHECK(tape.gradient(sum(row * w), w).to_vector<float>() == std::vector<float>{5, 5});
    row.mul_(2);
    CHECK(tape.gradient(sum(row * w), w).to_vector<float>() == std::vector<float>{10, 10});
    // What is made under a NoGradScope of a written tensor is a constant, too.
    running.index_put_({1}, w);
    Tensor constant;
    {
        const NoGradScope pause;
        constant = running[1];
    }
    CHECK(tape.gradient(sum(constant * w), w).to_vector<float>() == std::vector<float>{1, 1});
    // A write that nobody records does not make a view current that was not.
    {
        const NoGradScope pause;
        row.add_(1);
    }
    CHECK_THROWS_AS(sum(row), TapeError);
}

TEST_CASE("a traced training step does not lose the gradient of a view either") {
    Tensor w = ones({2}).requires_grad_();
    const auto step = [&](const Tensor& x) {
        Tensor buffer = zeros({2, 2});
        const Tensor row = buffer[0];
        Tape tape;
        buffer.index_put_({0}, w * x);
        return tape.gradient(sum(row) + sum(w), w);
    };
    CHECK_THROWS_AS(trace(step, {{"x", ones({2})}}), TapeError);
    const auto right = [&](const Tensor& x) {
        Tensor buffer = zeros({2, 2});
        Tape tape;
        buffer.index_put_({0}, w * x);
        return tape.gradient(sum(buffer[0]) + sum(w), w);
    };
    const Graph graph = trace(right, {{"x", ones({2})}});
    CHECK(graph({full({2}, 3.0)})[0].to_vector<float>() == std::vector<float>{4, 4});
}

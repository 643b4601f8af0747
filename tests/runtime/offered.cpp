// All that runtime.h says Tapir::runtime has, called once: what is offered there links, and does what it does in Tapir::tapir. It needs no file.
#include <tapir/runtime.h>

#include <cstdio>
#include <exception>
#include <sstream>

using namespace tapir;

namespace {

void check(bool holds, int line) {
    if (holds) return;
    std::fprintf(stderr, "offered.cpp:%d: is not so\n", line);
    throw ValueError("a check failed", Loc::current());
}
#define CHECK(...) check(static_cast<bool>(__VA_ARGS__), __LINE__)

void make_tensors() {
    float memory[] = {1, 2, 3, 4, 5, 6};
    bool is_given_back = false;
    {
        const Tensor x = from_blob(memory, {2, 3}, [&](void*) { is_given_back = true; });
        CHECK(x[1][2].item<float>() == 6);
        CHECK(from_blob(memory, {3, 2}, {1, 3}, nullptr).at<float>({2, 1}) == 6);
    }
    CHECK(is_given_back && from_blob(memory, {6}).numel() == 6);
    CHECK(tensor({{1, 2}, {3, 4}}).dtype() == int64 && tensor(std::vector<float>{1, 2}).dtype() == float32);
    CHECK(tensor(std::vector<std::vector<double>>{{1, 2}, {3, 4}}).size(1) == 2 && tensor(std::vector<bool>{true}).dtype() == bool_);
    CHECK(tensor_from(memory, {3}, float32, float64)[2].item() == 3);
    CHECK(empty({2, 3}).numel() == 6 && empty(2, 3).numel() == 6 && empty_like(zeros({4})).size(0) == 4);
    CHECK(zeros({2}).allclose(zeros_like(ones({2}))) && ones({2}).allclose(ones_like(zeros({2}))));
    CHECK(full({2}, 3.0)[1].item() == 3 && full_like(zeros({2}), 3)[1].item() == 3);
    CHECK(arange(4)[3].item<int>() == 3 && arange(1, 4).numel() == 3 && arange(0, 1, 0.25).numel() == 4);
    CHECK(linspace(0, 1, 5)[4].item() == 1 && logspace(0, 2, 3)[2].item() == 100);
    CHECK(eye(3)[1][1].item() == 1 && tril_indices(3, 3).size(1) == 6 && triu_indices(3, 3, 1).size(1) == 3);
}

void draw() {
    manual_seed(1);
    const Tensor first = rand({4});
    manual_seed(1);
    CHECK(first.allclose(rand(4)));
    Generator own(7);
    own.manual_seed(8);
    own.set_state(own.state());
    CHECK(rand({4}, own).numel() + randn({4}, own).numel() + randint(3, {4}, own).numel() == 12);
    CHECK(randint(0, 3, {4}, own).numel() + randperm(4, own).numel() + bernoulli({4}, 0.5, own).numel() == 12);
    CHECK(randn({4}).numel() + randn(2, 2).numel() + randint(3, {4}).numel() + randint(1, 3, {4}).numel() == 16);
    CHECK(randperm(4).numel() + bernoulli({4}, 0.5).numel() + bernoulli(full({4}, 0.5)).numel() + bernoulli(full({4}, 0.5), own).numel() == 16);
    CHECK(rand_like(first).numel() + randn_like(first).numel() + randint_like(first, 3).numel() + randint_like(first, 1, 3).numel() == 16);
    CHECK(multinomial(ones({4}), 2).numel() + multinomial(ones({4}), 2, true, own).numel() == 4);
    CHECK(default_generator().seed() == 1);
}

void look_and_index() {
    Tensor x = tensor({{1.0f, 2.0f}, {3.0f, 4.0f}});
    CHECK(x.dim() == 2 && x.size(-1) == 2 && x.stride(0) == 2 && x.nbytes() == 16 && x.device() == cpu && x.is_contiguous());
    CHECK(x.data<float>()[3] == 4 && x.at<float>({1, 0}) == 3 && x.to_vector<int>()[2] == 3 && x.to_vector<bool>()[0]);
    CHECK(x[0][0].item() == 1 && x[0][0].item<float>() == 1 && x[0][0].item<std::int64_t>() == 1 && x[0][0].item<bool>());
    double total = 0;
    for (const Tensor row : x) total += row[1].item();
    CHECK(total == 6);
    CHECK(x[tensor({false, true})].numel() == 2 && x.index({Ellipsis, 0})[1].item() == 3 && x.index({Slice(0, 1), None}).dim() == 3);
    CHECK(x[tensor({1, 0})].at<float>({0, 0}) == 3 && x.index(std::vector<Index>{1, Slice()}).numel() == 2);
    Tensor y = x.clone();
    y[0] = 7;
    y[1] = tensor({8.0f, 9.0f});
    y.index_put_({0, 1}, 5).index_put_({1, 1}, tensor(6.0f));
    y.copy_(y.contiguous());
    CHECK(y.equal(tensor({{7.0f, 5.0f}, {8.0f, 6.0f}})) && !y.equal(x) && !y.allclose(x));
    std::ostringstream text;
    text << x << x.shape() << x.dtype() << x.device();
    CHECK(text.str() == x.str() + "(2, 2)float32cpu" && to_string(x, {.precision = 1}) == "[[1. 2.]\n [3. 4.]]");
    set_print_options(print_options());
}

void work_on_results() {
    const Tensor x = tensor({{1.0f, 3.0f}, {2.0f, 0.5f}});
    CHECK(x.reshape({4}).numel() == 4 && x.reshape(4, 1).size(0) == 4 && x.squeeze().dim() == 2);
    CHECK(x.transpose(0, 1).at<float>({1, 0}) == 3 && x.permute({1, 0}).size(0) == 2 && x.unsqueeze(0).squeeze(0).dim() == 2);
    CHECK(x.narrow(0, 1, 1).size(0) == 1 && x.select(0, 1).dim() == 1);
    CHECK(x.softmax(0).at<float>({0, 0}) < x.softmax(0).at<float>({0, 1}));
    CHECK(x.argmax(1).at<std::int64_t>({0}) == 1 && x.argmax().item<int>() == 1 && x.argmin().item<int>() == 3);
    CHECK(x.topk(1, 1).values.numel() == 2 && x.to(float64).dtype() == float64 && x.cpu().is_same(x));
    CHECK(x.t().at<float>({1, 0}) == 3 && x.T().equal(x.t()) && x.argsort().at<std::int64_t>({1, 0}) == 1 && x.argmin(0).numel() == 2);
    CHECK((x * 2 + x).equal(3 * x) && (x > 1.5).to_vector<int>()[1] == 1 && (-x / x).at<float>({0, 0}) == -1);
    Tensor y = x.clone();
    y += x;
    y -= 1;
    y *= 2;
    y /= x;
    CHECK(y.at<float>({0, 1}) == 10.0f / 3 && ((x == x) & (x <= 3) & !(x != x)).equal(x >= 0) && (1 - x < 1).equal(x > 0));
    // As functions.
    CHECK(softmax(x, 1).equal(x.softmax(1)) && argmax(x, 1).equal(x.argmax(1)) && argmax(x).equal(x.argmax()) && argmin(x).equal(x.argmin()));
    CHECK(argmin(x, 1, true).equal(x.argmin(1, true)) && argsort(x, 0, true).equal(x.argsort(0, true)) &&
          topk(x, 2, 1).values.equal(x.topk(2, 1).values));
    CHECK(equal(x, x) && !equal(x, x.t()) && allclose(x, x) && !allclose(x, x.t(), 1e-3, 1e-3));
}

void run_graphs() {
    const Graph graph = Graph::parse(
        "input x: float32 (n, 2)\ninput y: float32 (n, 2)\n%2: float32 (n, 2) = add(x, y)\n"
        "%3: float32 (n, 2) = exp(%2)\noutput sum = %2\noutput exp = %3\n");
    const Tensor x = ones({3, 2}), y = zeros({3, 2});
    CHECK(graph.run({{"x", x}, {"y", y}}, {"sum"})[0].equal(x) && graph({x, y}).size() == 2);
    CHECK(graph.dims().size() == 1 && graph.value("sum")->shape.size() == 2 && Graph::parse(graph.str()).str() == graph.str());
    graph.print();
    const CompiledGraph sum = graph.compile({"sum"}), both = graph.compile();
    const auto [first, second] = both.call<2>(x, y);
    CHECK(sum(x, y).equal(first) && sum({x, y})[0].equal(first) && both({x, y})[1].equal(second));
    CHECK(sum.inputs().size() == 2 && both.output_count() == 2 && both.planned_bytes() < 1000);
    const CompiledGraph one = Graph::parse("input x: float32 (2,)\n%1: float32 (2,) = neg(x)\noutput y = %1\n").compile();
    CHECK(one({ones({2})})[0][0].item() == -1);
    Graph copy = graph, moved = std::move(copy);
    copy = moved;
    CHECK(copy.inputs().size() == 2);
}

template <class E, class Fn>
void throws(const Fn& fn, int line) {
    try {
        fn();
    } catch (const E& error) {
        return check(error.where().line() > 0, line);
    }
    check(false, line);
}

void catch_errors() {
    const Graph graph = Graph::parse("input x: float32 (2,)\n%1: float32 (2,) = neg(x)\noutput y = %1\n");
    throws<ShapeError>([&] { graph({ones({3})}); }, __LINE__);
    throws<DTypeError>([&] { graph({ones({2}, float64)}); }, __LINE__);
    throws<ValueError>([&] { graph.run({{"z", ones({2})}}); }, __LINE__);
    throws<IndexError>([&] { ones({2})[5]; }, __LINE__);
    throws<FileError>([] { load_graph("no such file"); }, __LINE__);
    throws<FileError>([] { load_safetensors("no such file"); }, __LINE__);
    throws<DeviceError>([] { zeros({2}, cuda(0)); }, __LINE__);
    throws<Error>(
        [] {
            const CallerScope caller(Loc::current());
            Graph::parse("nothing");
        },
        __LINE__);
}

}  // namespace

int main() {
    try {
        make_tensors();
        draw();
        look_and_index();
        work_on_results();
        run_graphs();
        catch_errors();
        save_safetensors("offered.safetensors", {{"x", ones({2})}}, {{"made", "here"}});
        FileMetadata metadata;
        CHECK(load_safetensors("offered.safetensors", &metadata)[0].tensor.equal(ones({2})) && metadata.size() == 1);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}

// In-place ops: overlapping sources, stale sources, expanded tensors, and views that nothing else sees.
#include <catch2/catch.hpp>
#include <cmath>
#include <string>
#include <vector>

#include "tapir/tapir.h"

using namespace tapir;

namespace {

using Values = std::vector<double>;

Values values(const Tensor& t) { return t.to_vector<double>(); }
std::uint32_t version(const Tensor& t) { return t.impl()->storage->version; }

// fn must throw an E with this text, and leave t as it is.
template <class E, class Fn>
void refuses(const Tensor& t, const std::string& text, const Fn& fn) {
    const Values before = values(t);
    const std::uint32_t before_version = version(t), before_node = t.impl()->node.index;
    std::string message = "nothing thrown";
    try {
        fn();
    } catch (const E& error) {
        message = error.what();
    }
    INFO(message);
    CHECK(message.find(text) != std::string::npos);
    CHECK(values(t) == before);
    CHECK(version(t) == before_version);
    CHECK(t.impl()->node.index == before_node);
}

const std::string kIsView = "writing into a view is not recorded";

Tensor weights() { return tensor({{1.0, 10.0}, {100.0, 1000.0}}); }

}  // namespace

TEST_CASE("copy_ from a view of the same storage is recorded") {
    Tensor x = tensor({{1.0, 2.0}, {3.0, 4.0}}).requires_grad_();
    SECTION("the transpose") {
        Tape tape;
        Tensor h = x * 2;
        h.copy_(h.t());
        CHECK(values(h) == Values{2, 6, 4, 8});
        CHECK(version(h) == 1);
        tape.backward(sum(h * weights()));
        CHECK(values(x.grad()) == Values{2, 200, 20, 2000});
    }
    SECTION("broadcast, and used in a product afterwards") {
        Tape tape;
        Tensor h = x * 2;
        h.copy_(h[0]);
        CHECK(values(h) == Values{2, 4, 2, 4});
        tape.backward(sum(h * h));  // 2 * ((2 x00)^2 + (2 x01)^2)
        CHECK(values(x.grad()) == Values{16, 32, 0, 0});
    }
    SECTION("a detached view is a constant") {
        Tape tape;
        Tensor h = x * 2;
        h.copy_(h.detach().t());
        CHECK(values(h) == Values{2, 6, 4, 8});
        tape.backward(sum(h * weights()) + sum(x));
        CHECK(values(x.grad()) == Values{1, 1, 1, 1});
    }
    SECTION("without a tape") {
        Tensor h = x.detach().clone();
        h.copy_(h.t());
        CHECK(values(h) == Values{1, 3, 2, 4});
    }
}

TEST_CASE("a source that is a leaf in the same storage keeps its gradient") {
    Tensor a = tensor({1.0, 2.0});
    Tensor leaf = a.detach().requires_grad_();
    const Tensor c = tensor({3.0, 5.0});
    Tape tape;
    SECTION("copy_") {
        a.copy_(leaf);
        tape.backward(sum(a * c));
        CHECK(values(leaf.grad()) == Values{3, 5});
    }
    SECTION("add_") {
        a.add_(leaf);
        CHECK(values(a) == Values{2, 4});
        tape.backward(sum(a * c));
        CHECK(values(leaf.grad()) == Values{3, 5});
    }
    SECTION("mul_ keeps the old values for its rule") {
        a.mul_(leaf);
        CHECK(values(a) == Values{1, 4});
        tape.backward(sum(a * c));  // the old a is a constant
        CHECK(values(leaf.grad()) == Values{3, 10});
    }
    SECTION("index_put_") {
        a.index_put_({0}, leaf[1]);
        CHECK(values(a) == Values{2, 2});
        tape.backward(sum(a * c));
        CHECK(values(leaf.grad()) == Values{0, 3});
    }
}

TEST_CASE("in-place ops refuse a source that was overwritten since it was recorded") {
    Tensor x = tensor({{1.0, 2.0}, {3.0, 4.0}}).requires_grad_();
    Tape tape;
    Tensor h = x * 2;
    SECTION("stale views") {
        const Tensor v = h[0];
        const int line = __LINE__ + 1;
        h.mul_(2);
        const std::string stale =
            "a recorded tensor of shape (2,) was modified in place at in_place_test.cpp:" + std::to_string(line) + " through another view";
        const std::size_t size = tape.size();
        refuses<TapeError>(h, stale, [&] { h + v; });
        refuses<TapeError>(h, stale, [&] { h.add_(v); });
        refuses<TapeError>(h, stale, [&] { h += v; });
        refuses<TapeError>(h, stale, [&] { h.mul_(v); });
        refuses<TapeError>(h, stale, [&] { h.copy_(v); });
        refuses<TapeError>(h, stale, [&] { h.index_put_({1}, v); });
        refuses<TapeError>(h, stale, [&] { h.index_put_({tensor({1, 0})}, v); });
        Tensor other = ones({2, 2});  // of another storage: refused before it is written, too
        refuses<TapeError>(other, stale, [&] { other.add_(v); });
        refuses<TapeError>(other, stale, [&] { other.copy_(v); });
        refuses<TapeError>(other, stale, [&] { other.index_put_({0}, v); });
        CHECK(tape.size() == size);
        tape.backward(sum(h * weights()));
        CHECK(values(x.grad()) == Values{4, 40, 400, 4000});
    }
    SECTION("a view made after the write is right") {
        h.mul_(2);
        h.add_(h[0]);
        CHECK(values(h) == Values{8, 16, 16, 24});
        tape.backward(sum(h * weights()));  // 4 x[i] + 4 x[0]
        CHECK(values(x.grad()) == Values{408, 4080, 400, 4000});
    }
    SECTION("its product, whose rule needs the old values") {
        h.mul_(h[0]);
        CHECK(values(h) == Values{4, 16, 12, 32});
        tape.backward(sum(h));  // 4 (x00^2 + x10 x00) + 4 (x01^2 + x11 x01)
        CHECK(values(x.grad()) == Values{4 * (2 + 3), 4 * (4 + 4), 4 * 1, 4 * 2});
    }
}

namespace {

// t: of shape (3,), all of it one element
void refuses_all_writes(Tensor t) {
    const std::string rest = ": several elements of the (3,) tensor share memory; clone() it first";
    refuses<ValueError>(t, "add_" + rest, [&] { t.add_(1); });
    refuses<ValueError>(t, "add_" + rest, [&] { t += 1; });
    refuses<ValueError>(t, "mul_" + rest, [&] { t.mul_(ones({3})); });
    refuses<ValueError>(t, "sub_" + rest, [&] { t.sub_(t); });
    refuses<ValueError>(t, "tanh_" + rest, [&] { t.tanh_(); });
    refuses<ValueError>(t, "fill_" + rest, [&] { t.fill_(7); });
    refuses<ValueError>(t, "fill_" + rest, [&] { t.zero_(); });
    refuses<ValueError>(t, "copy_" + rest, [&] { t.copy_(tensor({1.0, 2.0, 3.0})); });
    refuses<ValueError>(t, "index_put_" + rest, [&] { t.index_put_({0}, 7); });
    refuses<ValueError>(t, "index_put_" + rest, [&] { t.index_put_({tensor({0, 2})}, ones({2})); });
    refuses<ValueError>(t, "index_put_" + rest, [&] { t.index_put_({tensor({true, false, true})}, 7); });
}

}  // namespace

TEST_CASE("in-place ops refuse expanded tensors") {
    SECTION("without a tape") {
        const Tensor base = tensor({5.0});
        refuses_all_writes(base.expand({3}));
        refuses_all_writes(tensor(5.0).expand({3}));
        refuses<ValueError>(base, "share memory", [&] { base.expand({3}).add_(1); });
    }
    SECTION("on a tape, recorded or not") {
        Tensor x = tensor({1.5}).requires_grad_();
        Tape tape;
        const Tensor h = x * 2, constant = tensor({5.0});
        refuses_all_writes(h.expand({3}));
        refuses_all_writes(constant.expand({3}));
        refuses_all_writes((x * 2).expand({3}));  // the only owner
        tape.backward(sum(h.expand({3})));
        CHECK(values(x.grad()) == Values{6});
    }
    SECTION("in one dimension of several") {
        Tensor t = tensor({{1.0}, {2.0}}).expand({2, 3}), turned = t.t();
        refuses<ValueError>(t, "add_: several elements of the (2, 3) tensor", [&] { t.add_(1); });
        refuses<ValueError>(turned, "copy_: several elements of the (3, 2) tensor", [&] { turned.copy_(ones({2})); });
        Tensor column = t.select(1, 2);
        CHECK(values(column.add_(1)) == Values{2, 3});  // one column is one element each
    }
    SECTION("what may be written") {
        CHECK(values(zeros({1}).expand({1}).add_(1)) == Values{1});
        CHECK(values(zeros({2}).expand({1, 2}).add_(1)) == Values{1, 1});
        CHECK(zeros({0, 1}).expand({0, 3}).add_(1).numel() == 0);
        CHECK(values(zeros({1}).expand({3}).clone().add_(1)) == Values{1, 1, 1});
        CHECK(values(ones({3}).add_(tensor({5.0}).expand({3}))) == Values{6, 6, 6});
        CHECK(values(zeros({2, 2}).t().add_(weights())) == Values{1, 10, 100, 1000});
    }
}

TEST_CASE("a view that nothing else sees is written in place on a tape") {
    Tensor w = tensor({{1.0, 2.0}, {3.0, 4.0}}).requires_grad_(), b = tensor({10.0, 20.0}).requires_grad_();
    const Tensor c = tensor({1.0, 10.0});
    Tape tape;
    SECTION("a squeezed product") {
        const Tensor a = tensor({{1.0, 2.0}});
        Tensor y = matmul(a, w).squeeze(0), same = y;
        const std::uint32_t node = y.impl()->node.index;
        y += b;
        CHECK(y.impl()->node.index > node);
        y *= y;
        CHECK(values(same) == Values{17 * 17, 30 * 30});
        tape.backward(sum(same * c));
        CHECK(values(w.grad()) == Values{34, 600, 68, 1200});
        CHECK(values(b.grad()) == Values{34, 600});
    }
    SECTION("a row of what is gone") {
        Tensor y = (w * 2)[1];
        y += b;
        tape.backward(sum(y * c));
        CHECK(values(w.grad()) == Values{0, 0, 2, 20});
        CHECK(values(b.grad()) == Values{1, 10});
    }
    SECTION("a transposed one: index_put_") {
        Tensor y = (w * 2).t();
        y.index_put_({0}, b);
        CHECK(values(y) == Values{10, 20, 4, 8});
        tape.backward(sum(y * weights()));
        CHECK(values(w.grad()) == Values{0, 200, 0, 2000});
        CHECK(values(b.grad()) == Values{1, 10});
    }
    SECTION("a transposed one: a rule that reads the result") {
        Tensor y = (w * 0.5).t();
        y.exp_();
        tape.backward(sum(y * weights()));
        const double factors[] = {1, 100, 10, 1000};
        for (int i = 0; i < 4; ++i) {
            const double expected = 0.5 * std::exp(0.5 * (i + 1)) * factors[i];
            CHECK(w.grad().to_vector<double>()[static_cast<std::size_t>(i)] == Approx(expected).epsilon(1e-5));
        }
    }
    SECTION("a buffer that was not recorded") {
        Tensor y = zeros({2, 1}).squeeze(1);
        y.copy_(b * 3);
        tape.backward(sum(y * c));
        CHECK(values(b.grad()) == Values{3, 30});
    }
    SECTION("from then on it is a tensor of its own") {
        Tensor y = (w * 2)[1], z = y[0];
        refuses<TapeError>(y, kIsView, [&] { y += b; });  // z sees it
        z = Tensor();
        y += b;
        z = y[0];
        refuses<TapeError>(z, kIsView, [&] { z += 1; });
        y += b;
        refuses<TapeError>(y, "through another view", [&] { y += z; });
        tape.backward(sum(y * c));
        CHECK(values(w.grad()) == Values{0, 0, 2, 20});
        CHECK(values(b.grad()) == Values{2, 20});
    }
    SECTION("not what others hold") {
        const Tensor h = w * 2;
        Tensor row = h[0];
        refuses<TapeError>(row, kIsView, [&] { row += b; });
        refuses<TapeError>(row, kIsView, [&] { row.copy_(b); });
        refuses<TapeError>(row, kIsView, [&] { row.index_put_({0}, b[0]); });
        refuses<TapeError>(row, kIsView, [&] { row.zero_(); });
        Tensor saved = exp(w)[0];  // exp's record holds its result
        refuses<TapeError>(saved, kIsView, [&] { saved += b; });
        Tensor leaf = ones({2, 2}).requires_grad_(), of_leaf = leaf.view({4});
        leaf = Tensor();  // its record holds it
        refuses<TapeError>(of_leaf, "a leaf that requires a gradient is written to", [&] { of_leaf += 1; });
    }
    SECTION("not what was overwritten since it was recorded") {
        Tensor h = w * 2, row = h[0];
        h.mul_(2);
        h = Tensor();
        refuses<TapeError>(row, "through another view", [&] { row += b; });
    }
}

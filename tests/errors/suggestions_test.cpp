// What a message suggests where the cause is likely; and that what it suggests is what mends it.
#include <string>
#include <thread>
#include <vector>

#include "../fails.h"
#include "tapir/tapir.h"

using namespace tapir;

TEST_CASE("suggestions: a transposed operand") {
    const Tensor a = ones({2, 3}), b = ones({4, 3}), c = ones({2, 5}), d = ones({5, 2}), v = ones({3});
    FAILS(ShapeError, "(2, 3) x (4, 3); the second would fit transposed, by t()", matmul(a, b));
    CHECK(matmul(a, b.t()).shape() == Shape{2, 4});
    FAILS(ShapeError, "(2, 3) x (2, 5); the first would fit transposed, by t()", mm(a, c));
    CHECK(mm(a.t(), c).shape() == Shape{3, 5});
    FAILS(ShapeError, "(2, 3) x (5, 2); in the other order they would fit", matmul(a, d));
    CHECK(matmul(d, a).shape() == Shape{5, 3});
    FAILS(ShapeError, "(1, 2, 3) x (1, 4, 3); the second would fit transposed, by transpose(-2, -1)", bmm(ones({1, 2, 3}), ones({1, 4, 3})));
    CHECK(bmm(ones({1, 2, 3}), ones({1, 4, 3}).transpose(-2, -1)).shape() == Shape{1, 2, 4});
    FAILS(ShapeError, "(3, 2) x (3,); the first would fit transposed, by t()", mv(a.t(), v));
    CHECK(mv(a, v).shape() == Shape{2});
    FAILS(ShapeError, "addmm: inner dimensions differ: (2, 3) x (4, 3); the second would fit transposed, by t()",
          addmm(ones({2, 4}), ones({2, 3}), b));
}

TEST_CASE("suggestions: the product that none fits has none") {
    try {
        matmul(ones({2, 3}), ones({4, 5}));
        FAIL("nothing thrown");
    } catch (const ShapeError& error) {
        CHECK(std::string(error.what()).ends_with(": matmul: inner dimensions differ: (2, 3) x (4, 5)"));
    }
    FAILS(ShapeError, "matmul: batch dimensions do not broadcast: (2, 4, 3) x (5, 3, 4)", matmul(ones({2, 4, 3}), ones({5, 3, 4})));
    FAILS(ShapeError, "the batches of a of shape (2, 3, 3) and b of shape (5, 3, 1) do not broadcast",
          linalg::solve(ones({2, 3, 3}), ones({5, 3, 1})));
    const Tensor q = ones({2, 4, 8}), k = ones({3, 4, 8});
    FAILS(ShapeError, "batch dimensions do not broadcast: query (2, 4, 8), key (3, 4, 8)", scaled_dot_product_attention(q, k, k));
    FAILS(ShapeError, "the mask (5, 5) does not broadcast to the scores (2, 4, 4)", scaled_dot_product_attention(q, q, q, ones({5, 5})));
}

TEST_CASE("suggestions: a layer's input") {
    const Tensor weight = ones({10, 12}), images = ones({8, 3, 2, 2});
    FAILS(ShapeError, "linear: an input of shape (8, 3, 2, 2) does not fit a weight of shape (10, 12) (out, in); flatten(x, 1) would fit",
          linear(images, weight));
    CHECK(linear(flatten(images, 1), weight).shape() == Shape{8, 10});
    FAILS(ShapeError, "(out, in); the weight would fit transposed, by t()", linear(ones({8, 10}), weight));
    CHECK(linear(ones({8, 10}), weight.t()).shape() == Shape{8, 12});
    FAILS(ShapeError, "(out, in); the input would fit transposed, by t()", linear(ones({12, 8}), weight));
    CHECK(linear(ones({12, 8}).t(), weight).shape() == Shape{8, 10});
    FAILS(DTypeError, "got int64, float32 and no bias; convert the input with x.to(float32)", linear(ones({8, 12}, int64), weight));

    const Tensor kernel = ones({6, 1, 3, 3}), colour = ones({6, 3, 3, 3});
    FAILS(ShapeError, "conv2d: an input of shape (8, 5, 5) does not fit a weight of shape (6, 1, 3, 3)", conv2d(ones({8, 5, 5}), kernel));
    FAILS(ShapeError, "; is dimension 0 the batch? x.unsqueeze(1) has a channel", conv2d(ones({8, 5, 5}), kernel));
    CHECK(conv2d(ones({8, 5, 5}).unsqueeze(1), kernel).shape() == Shape{8, 6, 3, 3});
    FAILS(ShapeError, "; are the channels its last dimension? movedim(x, {3}, {1}) has them in dimension 1", conv2d(ones({8, 5, 5, 3}), colour));
    CHECK(conv2d(movedim(ones({8, 5, 5, 3}), {3}, {1}), colour).shape() == Shape{8, 6, 3, 3});
    FAILS(ShapeError, "; are the channels its last dimension? movedim(x, {2}, {0}) has them in dimension 0", conv2d(ones({5, 5, 3}), colour));
    CHECK(conv2d(movedim(ones({5, 5, 3}), {2}, {0}), colour).shape() == Shape{6, 3, 3});

    const nn::BatchNorm2d norm(3);
    FAILS(ShapeError, "BatchNorm2d: needs 4 dimensions, got (3, 5, 5); is the batch's dimension missing? x.unsqueeze(0) has it",
          norm(ones({3, 5, 5})));
    CHECK(norm(ones({3, 5, 5}).unsqueeze(0)).shape() == Shape{1, 3, 5, 5});
    const char* const channel = "; is the channels' dimension missing? x.unsqueeze(0) has it";
    const Tensor line = ones({5}), image = ones({5, 5}), solid = ones({5, 5, 5}), wide = ones({1, 6, 3, 3});
    FAILS(ShapeError, channel, conv1d(line, ones({6, 1, 3})));
    CHECK(conv1d(line.unsqueeze(0), ones({6, 1, 3})).shape() == Shape{6, 3});
    FAILS(ShapeError, channel, conv2d(image, kernel));
    CHECK(conv2d(image.unsqueeze(0), kernel).shape() == Shape{6, 3, 3});
    FAILS(ShapeError, channel, conv3d(solid, ones({6, 1, 3, 3, 3})));
    CHECK(conv3d(solid.unsqueeze(0), ones({6, 1, 3, 3, 3})).shape() == Shape{6, 3, 3, 3});
    FAILS(ShapeError, channel, nn::Conv2d(1, 6, 3)(image));
    FAILS(ShapeError, channel, conv_transpose2d(image, wide));
    CHECK(conv_transpose2d(image.unsqueeze(0), wide).shape() == Shape{6, 7, 7});
    FAILS(ShapeError, "got (5, 5) and (6, 3, 3, 3)", conv2d(image, colour));  // where a dimension more would not fit
    try {
        conv2d(image, colour);
    } catch (const ShapeError& error) {
        CHECK(std::string(error.what()).find("missing?") == std::string::npos);
    }
    FAILS(ShapeError, channel, max_pool1d(line, 2));
    FAILS(ShapeError, channel, avg_pool2d(image, 2));
    FAILS(ShapeError, channel, nn::MaxPool2d(2)(image));
    FAILS(ShapeError, channel, max_pool3d(solid, 2));
    CHECK(max_pool2d(image.unsqueeze(0), 2).shape() == Shape{1, 2, 2});
    const char* const time = "; is the time's dimension missing? x.unsqueeze(0) has it";
    const nn::GRU gru(5, 4);
    FAILS(ShapeError, time, gru(line));
    CHECK(gru(line.unsqueeze(0)).output.shape() == Shape{1, 4});
    FAILS(ShapeError, time, nn::LSTM(5, 4)(line));
    FAILS(ShapeError, time, nn::RNN(5, 4)(line));
    const Tensor word = ones({6}), words = word.unsqueeze(0);
    const nn::MultiheadAttention attention(6, 2);
    FAILS(ShapeError, time, attention(word, word, word));
    CHECK(attention(words, words, words).output.shape() == Shape{1, 6});
    FAILS(DTypeError, "got int64; convert with to(float32)", layer_norm(ones({2, 3}, int64), {3}));
    FAILS(DTypeError, "an index tensor must be int64 or int32, not float32; convert it with to(int64)", embedding(ones({2}), weight));
    FAILS(DTypeError, "not uint8; convert it with to(int64), or a mask with to(bool_)", weight[ones({2}, uint8)]);
}

TEST_CASE("suggestions: a loss") {
    const Tensor logits = ones({4, 3});
    FAILS(DTypeError, "targets must be class indices, not float32: convert them with targets.to(int64)", nll_loss(logits, ones({4})));
    FAILS(ShapeError, "the classes are dimension 1: write targets.squeeze(1)", cross_entropy(logits, ones({4, 1}, int64)));
    FAILS(DTypeError, "cross_entropy: needs an input of a floating dtype, not int64; the order is (input, target)",
          cross_entropy(ones({4}, int64), logits));
    FAILS(DTypeError, "nll_loss: needs an input of a floating dtype, not int64; the order is (input, target)", nll_loss(ones({4}, int64), logits));
    const auto of_integers = [&](const Tensor& targets) -> std::string {
        try {
            cross_entropy(ones({4, 3}, int64), targets);
        } catch (const DTypeError& error) {
            return error.what();
        }
        return "";
    };
    CHECK(of_integers(ones({4}, int64)).ends_with("not int64"));  // in order, and of a wrong dtype
    CHECK(of_integers(ones({4})).ends_with("not int64"));
    FAILS(IndexError, "target 3 at position 1 is out of range for 3 classes; they are counted from 0", cross_entropy(logits, tensor({1, 3, 2, 1})));
    FAILS(ShapeError,
          "the input has shape (4, 1), the target has (4,), and together they would be (4, 4): reshape one of them, by target.reshape(input.shape())",
          binary_cross_entropy_with_logits(ones({4, 1}), ones({4})));
    FAILS(ShapeError, "the input has shape (1, 4), the target has (4,); target.reshape(input.shape()) would fit",
          binary_cross_entropy(ones({1, 4}), ones({4})));
    FAILS(ShapeError, "and together they would be (4, 4): reshape one of them, by target.reshape(input.shape())", mse_loss(ones({4, 1}), ones({4})));
    FAILS(ShapeError, "shapes (4, 3) and (4,) do not broadcast; the second would with a dimension more, by unsqueeze(-1)", logits - ones({4}));
    CHECK((logits - ones({4}).unsqueeze(-1)).shape() == Shape{4, 3});
    FAILS(ShapeError, "shapes (4,) and (4, 3) do not broadcast; the first would with a dimension more, by unsqueeze(-1)", ones({4}) * logits);
    FAILS(ShapeError, "item: needs exactly one element, got shape (4, 3); to_vector() gives all of them", logits.item());
}

TEST_CASE("suggestions: a tape that is not there") {
    const Tensor w = ones({3}).requires_grad_();
    Tensor loss;
    {
        Tape tape;
        loss = (w * 2).sum();
        std::string elsewhere;
        std::thread([&] {
            try {
                loss.backward();
            } catch (const TapeError& error) {
                elsewhere = error.what();
            }
        }).join();
        CHECK(
            elsewhere.ends_with(": backward: no tape is active on this thread: this tensor was recorded on a tape of another one; "
                                "call backward there"));
    }
    const std::string ended = ": no tape is active: the tape that this tensor was recorded on has ended; call ";
    FAILS(TapeError, "backward" + ended + "backward in that tape's scope", loss.backward());
    FAILS(TapeError, "gradient" + ended + "gradient in that tape's scope", gradient(loss, {w}));
    Tape other;
    FAILS(TapeError, "backward: this tensor was not recorded on the tape: the tape it was recorded on has ended", loss.backward());
    CHECK_FALSE(w.grad().defined());
}

TEST_CASE("suggestions: a leaf that is written to through a view") {
    Tensor w = ones({3, 2}).requires_grad_();
    const std::string leaf =
        "_: a leaf that requires a gradient is written to while the tape records; end the tape first, or use "
        "NoGradScope";
    const std::string view = "_: writing into a view is not recorded; write through the tensor it is a view of";
    Tape tape;
    FAILS(TapeError, "fill" + leaf, w[0] = 1);
    FAILS(TapeError, "mul" + leaf, w.t()[0][Slice(1, 3)] *= 2);
    FAILS(TapeError, "add" + leaf, unbind(w, 0)[2] += 1);
    FAILS(TapeError, "copy" + leaf, w[1].copy_(ones({2})));
    Tensor y = w * 2;
    FAILS(TapeError, "fill" + view, y[0] = 1);
    FAILS(TapeError, "add" + view, unbind(y, 0)[2] += 1);
    Tensor flat = ones({4});  // another part of it is a leaf
    Tensor part = flat[Slice(0, 2)].requires_grad_(), rest = flat[Slice(2, 4)];
    FAILS(TapeError, "mul" + view, rest *= part);
    {
        const NoGradScope pause;
        w[0] = 5;
    }
    CHECK(w.sum().item() == 14);
}

TEST_CASE("suggestions: a gradient that has not come") {
    const Tensor w = ones({3}).requires_grad_();
    const std::string hint = "the tensor is undefined; if it is a grad(), that is undefined until a backward has reached its tensor";
    FAILS(ValueError, "sum: " + hint, w.grad().sum());
    FAILS(ValueError, "mul: " + hint, w.grad() * 2);
    FAILS(ValueError, "read: " + hint, w.grad().shape());
    try {
        sum(Tensor());  // long after
        FAIL("nothing thrown");
    } catch (const ValueError& error) {
        CHECK(std::string(error.what()).ends_with(": sum: the tensor is undefined"));
    }
    Tape tape;
    tape.backward(sum(w));
    CHECK(w.grad().sum().item() == 3);
}

TEST_CASE("suggestions: a result that its operand cannot hold") {
    Tensor t = ones({2}, int64);
    FAILS(DTypeError, "div_: a result of float32 cannot be written into int64; write t = t / x, or convert t with to(float32) first", t /= 2);
    FAILS(DTypeError, "add_: a result of float32 cannot be written into int64; write t = t + x, or", t += 0.5);
    FAILS(DTypeError, "; write t = addcdiv(t, ...), or convert t with to(float32) first", t.addcdiv_(ones({2}), ones({2})));
    t = t / 2;
    CHECK(t.dtype() == float32);
    CHECK(t.sum().item() == 1);
}

TEST_CASE("suggestions: a tape") {
    const Tensor w = ones({3}).requires_grad_();
    Tensor loss = (w * 2).sum();
    FAILS(TapeError, "no tape is active; make one before computing the loss: Tape tape;", loss.backward());
    Tape tape;
    const std::string causes =
        "no tensor it was computed from requires a gradient, or it was computed before the tape began, under a "
        "NoGradScope, or through stop_gradient(), detach(), item() or argmax(): make the tape first, and "
        "parameters with requires_grad_()";
    FAILS(TapeError, causes, tape.backward(loss));
    {
        const NoGradScope pause;
        const std::string paused =
            "not recorded on the tape: recording is paused here, as by a NoGradScope: what is computed while "
            "one is alive is a constant";
        loss = (w * 2).sum();
        FAILS(TapeError, paused, tape.backward(loss));
        FAILS(TapeError, paused, loss.backward());
        FAILS(TapeError, paused, gradient(loss, {w}));
    }
    FAILS(TapeError, causes, tape.backward(loss));
    FAILS(TapeError, causes, tape.backward(stop_gradient(w).sum()));
    FAILS(TapeError, "no gradient flows through integers and bools, as argmax() and comparisons give them", tape.backward(argmax(w)));
    Tensor recorded = (w * 2).sum();
    {
        const NoGradScope pause;
        tape.backward(recorded);  // was recorded before the pause
    }
    CHECK(w.grad().sum().item() == 6);
    FAILS(TapeError, "needs a scalar, got shape (3,); take its sum() or mean(), or pass its own gradient", tape.backward(w * 2));
    Tensor leaf = w;
    FAILS(TapeError, "end the tape first, or use NoGradScope", leaf += 1);
    FAILS(DTypeError, "this one holds int64; convert it with to(float32)", ones({3}, int64).requires_grad_());
}

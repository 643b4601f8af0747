// Random tensors. Note [The numbers of a draw] in core/generator.h states which numbers are drawn.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "tapir/autograd/op.h"
#include "tapir/autograd/op_form.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/generator_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/thread_impl.h"
#include "tapir/ops/arrange/sort.h"
#include "tapir/ops/elementwise/elementwise_impl.h"
#include "tapir/ops/index/embedding.h"
#include "tapir/ops/make/copy.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/make/make_impl.h"
#include "tapir/ops/on_stream_impl.h"
#include "tapir/ops/parallel_impl.h"
#include "tapir/ops/random/random.h"
#include "tapir/ops/random/random_kernels.h"
#include "tapir/ops/reduce/extreme.h"
#include "tapir/ops/reduce/reduce.h"

namespace tapir {

TAPIR_OP(bernoulli, NonDiff, "1 with probability p, else 0.",
         TAPIR_SAMPLE_AS("i(3,4)<2", "torch.bernoulli(x[0].to(torch.float32))", bernoulli(to(x[0], float32))));
TAPIR_OP(multinomial, NonDiff, "Indices drawn with probability proportional to weights.",
         TAPIR_SAMPLE_AS("i(3)<4", "torch.multinomial(one_hot(x[0], 4).to(torch.float32), 2, True)",
                         multinomial(to(one_hot(x[0], 4), float32), 2, true)));
// Samples that leave nothing to chance are compared with PyTorch.
TAPIR_OP(rand, Given, "Uniform on [0, 1).",
         TAPIR_SAMPLE_AS("f(2,3)", "torch.rand(2, 3, dtype=x[0].dtype) * 0", rand({2, 3}, {x[0].dtype(), x[0].device()}) * 0));
TAPIR_OP(randn, Given, "Normal, mean 0 and variance 1.",
         TAPIR_SAMPLE_AS("f(2,3)", "torch.randn(2, 3, dtype=x[0].dtype) * 0", randn({2, 3}, {x[0].dtype(), x[0].device()}) * 0));
TAPIR_OP(rand_like, Given, "Uniform on [0, 1), as a tensor in shape, dtype and device.", TAPIR_SAMPLE("f(2,3)", rand_like(x[0]) * 0));
TAPIR_OP(randn_like, Given, "Normal, as a tensor in shape, dtype and device.", TAPIR_SAMPLE("f(2,3)", randn_like(x[0]) * 0));
TAPIR_OP(randint, Given, "Integers in [low, high).",
         TAPIR_SAMPLE_AS("f(2,3)", "torch.randint(1, 2, (2, 3), dtype=x[0].dtype)", randint(1, 2, {2, 3}, {x[0].dtype(), x[0].device()})),
         TAPIR_SAMPLE("", randint(3, 4, {2, 3})));
TAPIR_OP(randint_like, Given, "Integers in [low, high), as a tensor in shape and dtype.", TAPIR_SAMPLE("f(2,3)", randint_like(x[0], 1, 2)));
TAPIR_OP(randperm, Given, "0 ... n - 1 in random order.", TAPIR_SAMPLE_AS("", "torch.randperm(5).sort()[0]", sort(randperm(5)).values));
TAPIR_OP(uniform, Overwritten, "Overwrites a tensor with uniform numbers.",
         TAPIR_SAMPLE_AS("f(3,4)", "x[0].clone().uniform_(0.5, 0.5)", clone(x[0]).uniform_(0.5, 0.5)));
TAPIR_OP(normal, Overwritten, "Overwrites a tensor with normal numbers.",
         TAPIR_SAMPLE_AS("f(3,4)", "x[0].clone().normal_(0.5, 0)", clone(x[0]).normal_(0.5, 0)));
TAPIR_OP(bernoulli_fill, Overwritten, "Overwrites a tensor: 1 with probability p, else 0.",
         TAPIR_SAMPLE_AS("f(3,4)", "x[0].clone().bernoulli_(1)", clone(x[0]).bernoulli_(1)),
         TAPIR_SAMPLE_AS("f(3,4)", "x[0].clone().bernoulli_(0)", clone(x[0]).bernoulli_(0)));

void detail::fail_own_generator() {
    fail<TapeError>(thread.op_loc,
                    "{}: it draws from a Generator of its own; a graph draws from the default generator only: trace without it, and "
                    "seed with manual_seed()",
                    thread.op ? thread.op : "trace");
}

namespace {

using kernels::Draw;
using std::int64_t;

constexpr int64_t kGrain = 16 * 1024;  // the fewest numbers that one thread draws

// Takes the counters for n elements of `words` 32-bit words each.
Draw take(Generator& generator, int64_t n, int words) {
    detail::check_traced(generator);
    const auto counters = (static_cast<std::uint64_t>(n) * static_cast<std::uint64_t>(words) + 3) / 4;
    return {generator.seed(), generator.take(counters)};
}

// Returns the draw that begins at element `first`, a multiple of 4.
Draw at(Draw draw, int64_t first, int words) { return {draw.seed, draw.counter + static_cast<std::uint64_t>(first / 4 * words)}; }

// Calls body(part of the draw, first, count) for parts of n elements.
template <class Body>
void in_parts(Draw draw, int64_t n, int words, const Body& body) {
    parallel_for(n, kGrain, [&](int64_t begin, int64_t end) { body(at(draw, begin, words), begin, end - begin); });
}

enum class Fill { uniform, normal };

void fill(Fill what, const Tensor& t, Generator& generator) {
    TensorImpl* impl = t.impl();
    const int words = impl->dtype == float64 ? 2 : 1;
    const Draw draw = take(generator, impl->numel, words);
    if (on_gpu(impl)) {
        if (impl->numel == 0) return;
        return what == Fill::uniform ? gpu::random_uniform(draw, impl->dtype, on_stream(t), impl->numel)
                                     : gpu::random_normal(draw, impl->dtype, on_stream(t), impl->numel);
    }
    const auto& kernel = what == Fill::uniform ? kernels::random_uniform : kernels::random_normal;
    const auto size = static_cast<int64_t>(itemsize(impl->dtype));
    in_parts(draw, impl->numel, words, [&](Draw part, int64_t first, int64_t count) { kernel(part, impl->dtype, impl->data + first * size, count); });
}

void check_floating(const char* op, DType dtype, const Loc& loc) {
    if (!is_floating(dtype)) fail<DTypeError>(loc, "{}: needs a floating dtype, got {}", op, name(dtype));
}

// Returns the attributes of a draw for watchers.
auto drawn_by(Generator& generator) {
    return [&generator](const MakeAttrs& attrs) { return RandomAttrs{attrs, &generator}; };
}

Tensor filled(const OpInfo& op, Fill what, const Shape& shape, Generator& generator, const TensorOptions& options, const Loc& loc) {
    const DType dtype = options.dtype.value_or(default_dtype());
    check_floating(op.name, dtype, loc);
    detail::begin_op(op.name, detail::device_for(options), loc);
    Tensor t = detail::make_empty(shape, dtype, detail::device_for(options), loc);
    const detail::UndoneByError undone(generator);
    fill(what, t, generator);
    detail::finish_making(op, t, options, loc, drawn_by(generator));
    return t;
}

Tensor filled_like(const OpInfo& op, Fill what, const In& x, TensorOptions options) {
    detail::begin_like(x, op.name, options);
    const DType dtype = options.dtype.value_or(x.tensor.dtype());
    check_floating(op.name, dtype, x.loc);
    Tensor t = detail::make_empty_like(x.tensor.impl(), dtype, x.loc, *options.device);
    const detail::UndoneByError undone(default_generator());
    fill(what, t, default_generator());
    detail::finish_making(op, t, options, x.loc, drawn_by(default_generator()), &x.tensor);
    return t;
}

// Returns the integers that a dtype holds exactly and that randint may be asked for: [first, second).
std::pair<int64_t, int64_t> integer_range(DType dtype) {
    switch (dtype) {
        case DType::boolean: return {0, 2};
        case DType::uint8: return {0, 256};
        case DType::int32: return {INT32_MIN, int64_t{INT32_MAX} + 1};
        case DType::float16: return {-2048, 2049};
        case DType::bfloat16: return {-256, 257};
        case DType::float32: return {-(int64_t{1} << 24), (int64_t{1} << 24) + 1};
        case DType::float64: return {-(int64_t{1} << 53), (int64_t{1} << 53) + 1};
        default: return {INT64_MIN, INT64_MAX};
    }
}

// Draws integers of the options' dtype.
Tensor integers(const char* op, int64_t low, int64_t high, const Shape& shape, Generator& generator, const TensorOptions& options, const Loc& loc) {
    const DType dtype = *options.dtype;
    if (low >= high) fail<ValueError>(loc, "{}: there is no integer in [{}, {})", op, low, high);
    const auto [first_held, end_held] = integer_range(dtype);
    if (low < first_held || high > end_held) {
        fail<ValueError>(loc, "{}: {} does not hold all of [{}, {})", op, name(dtype), low, high);
    }
    const detail::UnrecordedPartsOf parts(loc);
    const bool directly = detail::device_for(options).type == DeviceType::cuda;
    Tensor t = detail::make_empty(shape, directly ? dtype : int64, detail::device_for(options), loc);
    const detail::UndoneByError undone(generator);
    const std::uint64_t range = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
    const Draw draw = take(generator, t.numel(), 2);
    if (on_gpu(t)) {
        if (t.numel() > 0) gpu::random_integers(draw, low, range, dtype, on_stream(t), t.numel());
        return t;
    }
    auto* out = static_cast<int64_t*>(t.raw_data());
    in_parts(draw, t.numel(), 2, [&](Draw part, int64_t first, int64_t count) { kernels::random_integers(part, low, range, out + first, count); });
    return t.to(dtype, loc);
}

auto drawn_in(int64_t low, int64_t high, Generator& generator) {
    return [low, high, &generator](const MakeAttrs& attrs) { return RandintAttrs{{attrs, &generator}, low, high}; };
}

// Holds a number for each element in turn, from double uniforms drawn ahead.
class Uniforms {
 public:
    Uniforms(Generator& generator, int64_t n) : values_(static_cast<std::size_t>(n)) {
        in_parts(take(generator, n, 2), n, 2,
                 [&](Draw part, int64_t first, int64_t count) { kernels::random_uniform(part, float64, values_.data() + first, count); });
    }
    double operator[](int64_t i) const { return values_[static_cast<std::size_t>(i)]; }

 private:
    std::vector<double> values_;
};

// Draws `samples` indices by bisection of the running sums.
void draw_replacing(const double* weights, int64_t n, const Uniforms& u, int64_t first, int64_t samples, int64_t* out) {
    std::vector<double> sums(static_cast<std::size_t>(n));
    std::partial_sum(weights, weights + n, sums.begin());
    for (int64_t s = 0; s < samples; ++s) {
        const auto place = std::upper_bound(sums.begin(), sums.end(), u[first + s] * sums.back());
        out[s] = std::min<int64_t>(place - sums.begin(), n - 1);
    }
}

// Efraimidis & Spirakis 2006: takes the smallest of exponential times with rates `weights`; they are in the order of a draw
// one by one.
void draw_distinct(const double* weights, int64_t n, const Uniforms& u, int64_t first, int64_t samples, int64_t* out) {
    std::vector<std::pair<double, int64_t>> times;
    times.reserve(static_cast<std::size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
        if (weights[i] > 0) times.emplace_back(-std::log1p(-u[first + i]) / weights[i], i);
    }
    std::partial_sort(times.begin(), times.begin() + samples, times.end());
    for (int64_t s = 0; s < samples; ++s) out[s] = times[static_cast<std::size_t>(s)].second;
}

void check_weights(const double* weights, int64_t n, int64_t samples, bool replacement, const Loc& loc) {
    int64_t positive = 0;
    double total = 0;
    for (int64_t i = 0; i < n; ++i) {
        if (!(weights[i] >= 0) || std::isinf(weights[i])) {
            fail<ValueError>(loc, "multinomial: weight {} is {}; weights must be finite and not negative", i, weights[i]);
        }
        positive += weights[i] > 0 ? 1 : 0;
        total += weights[i];
    }
    if (positive == 0) fail<ValueError>(loc, "multinomial: all weights are 0");
    if (std::isinf(total)) fail<ValueError>(loc, "multinomial: the sum of the weights is infinite");
    if (!replacement && samples > positive) {
        fail<ValueError>(loc, "multinomial: {} samples without replacement from {} weights above 0", samples, positive);
    }
}

// True for p in [0, 1], false for nan.
bool is_probability(double p) { return p >= 0 && p <= 1; }

// The kernel reports numbers that are no probability: reading them here would wait.
Tensor bernoulli_on_gpu(const In& p, Generator& generator) {
    const Tensor values = contiguous(p);
    detail::begin_op("bernoulli", values.impl(), p.loc);
    const Tensor t = detail::make_empty_like(values.impl(), values.dtype(), p.loc);
    const Draw draw = take(generator, t.numel(), 1);
    if (t.numel() > 0) gpu::random_bernoulli_of(draw, on_stream(values), t.dtype(), on_stream(t), t.numel());
    return t;
}

}  // namespace

Tensor rand(const Shape& shape, TensorOptions options, Loc loc) { return rand(shape, default_generator(), options, loc); }
Tensor rand(const Shape& shape, Generator& generator, TensorOptions options, Loc loc) {
    return filled(rand_op, Fill::uniform, shape, generator, options, loc);
}

Tensor randn(const Shape& shape, TensorOptions options, Loc loc) { return randn(shape, default_generator(), options, loc); }
Tensor randn(const Shape& shape, Generator& generator, TensorOptions options, Loc loc) {
    return filled(randn_op, Fill::normal, shape, generator, options, loc);
}

Tensor rand_like(In x, TensorOptions options) { return filled_like(rand_like_op, Fill::uniform, x, options); }
Tensor randn_like(In x, TensorOptions options) { return filled_like(randn_like_op, Fill::normal, x, options); }

Tensor randint_like(In x, int64_t low, int64_t high, TensorOptions options) {
    detail::begin_like(x, "randint_like", options);
    options.dtype = detail::dtype_given("randint_like", options, x.tensor.dtype(), x.loc);
    Tensor t = integers("randint_like", low, high, x.tensor.shape(), default_generator(), options, x.loc);
    detail::finish_making(randint_like_op, t, options, x.loc, drawn_in(low, high, default_generator()), &x.tensor);
    return t;
}
Tensor randint_like(In x, int64_t high, TensorOptions options) { return randint_like(x, 0, high, options); }

Tensor randint(int64_t high, const Shape& shape, TensorOptions options, Loc loc) {
    return randint(0, high, shape, default_generator(), options, loc);
}
Tensor randint(int64_t low, int64_t high, const Shape& shape, TensorOptions options, Loc loc) {
    return randint(low, high, shape, default_generator(), options, loc);
}
Tensor randint(int64_t high, const Shape& shape, Generator& generator, TensorOptions options, Loc loc) {
    return randint(0, high, shape, generator, options, loc);
}

Tensor randint(int64_t low, int64_t high, const Shape& shape, Generator& generator, TensorOptions options, Loc loc) {
    options.dtype = detail::dtype_for("randint", options, int64, loc);
    Tensor t = integers("randint", low, high, shape, generator, options, loc);
    detail::finish_making(randint_op, t, options, loc, drawn_in(low, high, generator));
    return t;
}

Tensor randperm(int64_t n, Loc loc) { return randperm(n, default_generator(), loc); }
Tensor randperm(int64_t n, Generator& generator, Loc loc) {
    const CallerScope caller(loc);
    if (n < 0) fail<ValueError>(loc, "randperm: n is negative: {}", n);
    detail::begin_op("randperm", Device{}, loc);
    Tensor t = detail::make_empty({n}, int64, Device{}, loc);
    std::vector<std::uint32_t> words(2 * static_cast<std::size_t>(n));
    const detail::UndoneByError undone(generator);
    in_parts(take(generator, n, 2), n, 2,
             [&](Draw part, int64_t first, int64_t count) { kernels::random_words(part, words.data() + 2 * first, 2 * count); });
    // Fisher and Yates: each place takes one of the numbers that are left. 64 random bits times their count choose it (Lemire 2019).
    __extension__ using Wide = unsigned __int128;
    auto* out = static_cast<int64_t*>(t.raw_data());
    for (int64_t i = 0; i < n; ++i) {
        const std::uint64_t bits =
            words[2 * static_cast<std::size_t>(i)] | static_cast<std::uint64_t>(words[2 * static_cast<std::size_t>(i) + 1]) << 32;
        const auto place = static_cast<int64_t>(static_cast<Wide>(bits) * static_cast<std::uint64_t>(i + 1) >> 64);
        out[i] = out[place];
        out[place] = i;
    }
    const TensorOptions options;
    t = detail::moved_to(std::move(t), options, loc);
    detail::finish_making(randperm_op, t, options, loc, drawn_by(generator));
    return t;
}

Tensor bernoulli(const Shape& shape, double p, TensorOptions options, Loc loc) { return bernoulli(shape, p, default_generator(), options, loc); }

namespace {

Tensor flips(const Shape& shape, double p, Generator& generator, DType dtype, Device device, const Loc& loc) {
    const detail::UnrecordedPartsOf parts(loc);
    const bool directly = device.type == DeviceType::cuda;
    Tensor t = detail::make_empty(shape, directly ? dtype : uint8, device, loc);
    const detail::UndoneByError undone(generator);
    const Draw draw = take(generator, t.numel(), 1);
    if (on_gpu(t)) {
        if (t.numel() > 0) gpu::random_bernoulli(draw, p, dtype, on_stream(t), t.numel());
        return t;
    }
    auto* out = static_cast<std::uint8_t*>(t.raw_data());
    in_parts(draw, t.numel(), 1, [&](Draw part, int64_t first, int64_t count) { kernels::random_bernoulli(part, p, out + first, count); });
    return t.to(dtype, loc);
}

}  // namespace

Tensor bernoulli(const Shape& shape, double p, Generator& generator, TensorOptions options, Loc loc) {
    const DType dtype = detail::dtype_for("bernoulli", options, default_dtype(), loc);
    if (!is_probability(p)) fail<ValueError>(loc, "bernoulli: p must be in [0, 1], got {}", p);
    Tensor t = flips(shape, p, generator, dtype, detail::device_for(options), loc);
    const auto attrs = [&](const MakeAttrs& all) { return BernoulliAttrs{{all, &generator}, p}; };
    detail::finish_making(bernoulli_op, t, options, loc, attrs);
    return t;
}

Tensor bernoulli(In p) { return bernoulli(p, default_generator()); }

Tensor bernoulli(In p, Generator& generator) {
    detail::check_defined(p, "bernoulli");
    check_floating("bernoulli", p.tensor.dtype(), p.loc);
    const detail::UndoneByError undone(generator);
    const CallerScope caller(p.loc);
    return unrecorded_op(
        bernoulli_op, p.loc, {&p.tensor},
        [&] {
            if (on_gpu(p.tensor)) return bernoulli_on_gpu(p, generator);
            const Tensor values = to(contiguous(p), float64);
            const auto* probability = static_cast<const double*>(values.raw_data());
            for (int64_t i = 0; i < values.numel(); ++i) {
                if (!is_probability(probability[i])) fail<ValueError>(p.loc, "bernoulli: p must be in [0, 1], got {}", probability[i]);
            }
            Tensor t = detail::make_empty_like(p.tensor.impl(), uint8, p.loc);
            auto* out = static_cast<std::uint8_t*>(t.raw_data());
            in_parts(take(generator, t.numel(), 1), t.numel(), 1, [&](Draw part, int64_t first, int64_t count) {
                std::uint32_t words[256];
                for (int64_t done = 0; done < count; done += 256) {
                    const int64_t n = std::min<int64_t>(256, count - done);
                    kernels::random_words(at(part, done, 1), words, n);
                    for (int64_t i = 0; i < n; ++i) out[first + done + i] = words[i] < probability[first + done + i] * 0x1p32 ? 1 : 0;
                }
            });
            return to(t, p.tensor.dtype());
        },
        BernoulliAttrs{{{p.tensor.shape(), p->dtype, p->device}, &generator}, 0});
}

Tensor multinomial(In weights, int64_t samples, bool replacement) { return multinomial(weights, samples, replacement, default_generator()); }

Tensor multinomial(In weights, int64_t samples, bool replacement, Generator& generator) {
    detail::check_defined(weights, "multinomial");
    check_floating("multinomial", weights.tensor.dtype(), weights.loc);
    const detail::UndoneByError undone(generator);
    const int rank = weights.tensor.dim();
    if (rank != 1 && rank != 2) {
        fail<ShapeError>(weights.loc, "multinomial: weights must be (n,) or (rows, n), got {}", weights.tensor.shape());
    }
    if (samples < 0) fail<ValueError>(weights.loc, "multinomial: the number of samples is negative: {}", samples);
    const CallerScope caller(weights.loc);
    return unrecorded_op(
        multinomial_op, weights.loc, {&weights.tensor},
        [&] {
            if (on_gpu(weights.tensor)) {  // rare, and checking the weights would wait for them anyway
                const Tensor here = weights.tensor.to(cpu, weights.loc);
                return multinomial(In(here, weights.loc), samples, replacement, generator).to(weights.tensor.device(), weights.loc);
            }
            const Tensor values = to(contiguous(weights), float64);
            const int64_t n = weights->sizes[rank - 1], rows = rank == 2 ? weights->sizes[0] : 1;
            const auto* w = static_cast<const double*>(values.raw_data());
            for (int64_t row = 0; row < rows; ++row) check_weights(w + row * n, n, samples, replacement, weights.loc);
            Tensor t = detail::make_empty(rank == 2 ? Shape(rows, samples) : Shape(samples), int64, Device{}, weights.loc);
            auto* out = static_cast<int64_t*>(t.raw_data());
            const int64_t per_row = replacement ? samples : n;
            const Uniforms u(generator, rows * per_row);
            for (int64_t row = 0; row < rows; ++row) {
                const auto draw = replacement ? draw_replacing : draw_distinct;
                draw(w + row * n, n, u, row * per_row, samples, out + row * samples);
            }
            return t;
        },
        MultinomialAttrs{&generator, samples, replacement});
}

// --- In place --------------------------------------------------------------------------------------------------------------

namespace {

// Writes the result of `draw(dtype)`. 16-bit floats are rounded from float32.
template <class Values>
void draw_into(const OpInfo& op, const char* name, Tensor& x, const RandomFillAttrs& attrs, const Loc& loc, const Values& draw) {
    check_in_place(name, x, {}, loc);
    {
        const CallerScope caller(loc);
        const detail::UnrecordedPartsOf parts(loc);
        copy_elements(x, draw(x.dtype() == float16 || x.dtype() == bfloat16 ? float32 : x.dtype()));
    }
    mark_written(x, loc);
    record(op, loc, {&x}, x, {}, attrs);
}

}  // namespace

namespace {

// Returns the largest number of a dtype that is below `high`.
template <class T>
double below_16_bits(double high) {
    T number(static_cast<float>(high));
    if (static_cast<double>(static_cast<float>(number)) < high) return static_cast<float>(number);
    if (static_cast<float>(number) > 0) {
        --number.bits;
    } else {
        number.bits = static_cast<std::uint16_t>(static_cast<float>(number) == 0 ? 0x8001 : number.bits + 1);
    }
    return static_cast<float>(number);
}
double below(double high, DType dtype) {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    if (dtype == float16) return below_16_bits<Half>(high);
    if (dtype == bfloat16) return below_16_bits<BFloat16>(high);
    if (dtype == float64) return std::nextafter(high, -kInf);
    const float number = static_cast<float>(high);
    return static_cast<double>(number) < high ? number : std::nextafter(number, static_cast<float>(-kInf));
}

}  // namespace

Tensor& Tensor::uniform_(double low, double high, Loc loc) { return uniform_(low, high, default_generator(), loc); }
Tensor& Tensor::uniform_(double low, double high, Generator& generator, Loc loc) {
    detail::check_defined(In(*this, loc), "uniform_");
    check_floating("uniform_", dtype(), loc);
    if (!(low <= high)) fail<ValueError>(loc, "uniform_: low {} is above high {}", low, high);
    const double widest = dtype() == float64 ? std::numeric_limits<double>::max() : std::numeric_limits<float>::max();
    if (!(high - low <= widest)) fail<ValueError>(loc, "uniform_: {} does not hold numbers from {} to {}", name(dtype()), low, high);
    const detail::UndoneByError undone(generator);
    const double highest = low < high ? std::max(low, below(high, dtype())) : low;  // rounding must not exceed it
    draw_into(uniform_op, "uniform", *this, {&generator, low, high}, loc,
              [&](DType of) { return tapir::clamp_max(rand(shape(), generator, {of, impl_->device}) * (high - low) + low, highest); });
    return *this;
}

Tensor& Tensor::normal_(double mean, double std, Loc loc) { return normal_(mean, std, default_generator(), loc); }
Tensor& Tensor::normal_(double mean, double std, Generator& generator, Loc loc) {
    detail::check_defined(In(*this, loc), "normal_");
    check_floating("normal_", dtype(), loc);
    if (!(std >= 0)) fail<ValueError>(loc, "normal_: the standard deviation {} is {}", std, std < 0 ? "negative" : "no number");
    const detail::UndoneByError undone(generator);
    draw_into(normal_op, "normal", *this, {&generator, mean, std}, loc,
              [&](DType of) { return randn(shape(), generator, {of, impl_->device}) * std + mean; });
    return *this;
}

Tensor& Tensor::bernoulli_(double p, Loc loc) { return bernoulli_(p, default_generator(), loc); }
Tensor& Tensor::bernoulli_(double p, Generator& generator, Loc loc) {
    detail::check_defined(In(*this, loc), "bernoulli_");
    if (!is_probability(p)) fail<ValueError>(loc, "bernoulli_: p must be in [0, 1], got {}", p);
    draw_into(bernoulli_fill_op, "bernoulli", *this, {&generator, p, 0}, loc,
              [&](DType of) { return bernoulli(shape(), p, generator, {of, impl_->device}); });
    return *this;
}

// --- Forms -------------------------------------------------------------------------------------------------------------------

namespace {

// The generator is no field: a graph draws from the default generator.
void random_fields(Fields& f, MakeAttrs& a) { f("shape", a.shape)("dtype", a.dtype)("device", a.device); }
void random_like_fields(Fields& f, MakeAttrs& a) { f("dtype", a.dtype)("device", a.device); }
TensorOptions options_of(const MakeAttrs& a) { return {a.dtype, a.device}; }
Tensor drawn_bernoulli(const FormCall& x, const BernoulliAttrs& a) { return x.count > 0 ? bernoulli(x[0]) : bernoulli(a.shape, a.p, options_of(a)); }

}  // namespace

TAPIR_RANDOM_FORM(rand, 0, RandomAttrs, made(t.sizes("shape"), a.dtype, a.device), rand(a.shape, options_of(a)), random_fields(f, a));
TAPIR_RANDOM_FORM(randn, 0, RandomAttrs, made(t.sizes("shape"), a.dtype, a.device), randn(a.shape, options_of(a)), random_fields(f, a));
TAPIR_RANDOM_FORM(rand_like, 1, RandomAttrs, made(t[0].shape, a.dtype, a.device), rand_like(x[0], options_of(a)), random_like_fields(f, a));
TAPIR_RANDOM_FORM(randn_like, 1, RandomAttrs, made(t[0].shape, a.dtype, a.device), randn_like(x[0], options_of(a)), random_like_fields(f, a));
TAPIR_RANDOM_FORM(randint, 0, RandintAttrs, made(t.sizes("shape"), a.dtype, a.device), randint(a.low, a.high, a.shape, options_of(a)),
                  f("low", a.low)("high", a.high);
                  random_fields(f, a));
TAPIR_RANDOM_FORM(randint_like, 1, RandintAttrs, made(t[0].shape, a.dtype, a.device), randint_like(x[0], a.low, a.high, options_of(a)),
                  f("low", a.low)("high", a.high);
                  random_like_fields(f, a));
TAPIR_RANDOM_FORM(randperm, 0, RandomAttrs, made(t.sizes("shape"), DType::int64, a.device), randperm(a.shape[0]), random_fields(f, a));
TAPIR_RANDOM_FORM(bernoulli, Operands(0, 1), BernoulliAttrs, t.count > 0 ? same(t[0]) : made(t.sizes("shape"), a.dtype, a.device),
                  drawn_bernoulli(x, a), f("p", a.p);
                  random_fields(f, a));
TAPIR_RANDOM_FORM(multinomial, 1, MultinomialAttrs, shaped(t[0], leading(ranked(t[0], 1, 2), 1, {t.size("num_samples")}), DType::int64),
                  multinomial(x[0], a.samples, a.replacement), f("num_samples", a.samples)("replacement", a.replacement));
TAPIR_RANDOM_FORM(uniform, 1, RandomFillAttrs, same(t[0]), rand_like(x[0]) * (a.b - a.a) + a.a, f("low", a.a)("high", a.b));
TAPIR_RANDOM_FORM(normal, 1, RandomFillAttrs, same(t[0]), randn_like(x[0]) * a.b + a.a, f("mean", a.a)("std", a.b));
TAPIR_RANDOM_FORM(bernoulli_fill, 1, RandomFillAttrs, same(t[0]), bernoulli(x[0].shape(), a.a, TensorOptions(x[0].dtype(), x[0].device())),
                  f("p", a.a));

}  // namespace tapir

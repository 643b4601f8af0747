// Convolution by oneDNN. Activations have their channels last, which it reads and writes as fast as layouts of its own;
// weights are put into the layout that the primitive asks for, at each call, since training changes them at each step. Graphs keep them: see
// KeptWeight.
// Primitives are made once for each set of sizes and kept.
#include "tapir/ops/convolution/convolution_impl.h"

#ifdef TAPIR_HAVE_ONEDNN
#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tapir/core/hash_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/ops/convolution/kept_weight_impl.h"
#include "tapir/ops/linear/matmul_impl.h"
#include "tapir/ops/onednn_impl.h"
#include "tapir/ops/parallel_impl.h"
#endif

namespace tapir {

#ifdef TAPIR_HAVE_ONEDNN
namespace {

using dnnl::memory;
using onednn::around;
using onednn::engine;
using std::int64_t;

// --- Layouts -------------------------------------------------------------------------------------------------------------

// (batch, channels, spatial...), channels last.
memory::desc activations(const Convolution& c, int64_t channels, const int64_t* spatial, memory::data_type type) {
    memory::dims sizes{c.batch, channels}, strides{0, 1};
    int64_t step = channels;
    for (int64_t d = 0; d < c.dims; ++d) {
        sizes.push_back(spatial[3 - c.dims + d]);
        strides.push_back(0);
    }
    for (int64_t d = c.dims; d-- > 0;) {
        strides[static_cast<std::size_t>(2 + d)] = step;
        step *= sizes[static_cast<std::size_t>(2 + d)];
    }
    strides[0] = step;
    return {sizes, type, strides};
}

memory::dims weight_sizes(const Convolution& c) {
    memory::dims sizes = c.groups > 1 ? memory::dims{c.groups, c.group_out(), c.group_in()} : memory::dims{c.out_channels, c.in_channels};
    for (int64_t d = 3 - c.dims; d < 3; ++d) sizes.push_back(c.kernel[d]);
    return sizes;
}

memory::desc row_major(const memory::dims& sizes, memory::data_type type) {
    memory::dims strides(sizes.size(), 1);
    for (std::size_t d = sizes.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * sizes[d + 1];
    return {sizes, type, strides};
}

// --- Primitives ----------------------------------------------------------------------------------------------------------

// Has no gaps: it is compared and hashed as bytes.
struct Key {
    Convolution conv;
    ConvPart part;
    bool is_bfloat16, has_bias;
    std::uint8_t none = 0;
    std::int32_t threads;  // the work is split when the primitive is made
};

// oneDNN objects that a call has to itself while it runs. They are kept: oneDNN 2 crashes when it makes one without memory.
template <class T>
class Pool {
 public:
    class Taken {
     public:
        template <class Make>
        Taken(Pool& pool, const Make& make) : pool_(pool), object_(pool.take(make)) {}
        ~Taken() {
            const std::lock_guard lock(pool_.mutex_);
            pool_.spare_.push_back(std::move(object_));  // there is room for all that were made
        }
        Taken(const Taken&) = delete;
        Taken& operator=(const Taken&) = delete;
        T& operator*() const noexcept { return *object_; }

     private:
        Pool& pool_;
        std::unique_ptr<T> object_;
    };

 private:
    template <class Make>
    std::unique_ptr<T> take(const Make& make) {
        const std::lock_guard lock(mutex_);
        if (spare_.empty()) {
            spare_.reserve(made_ + 1);
            auto fresh = std::make_unique<T>(make());
            ++made_;
            return fresh;
        }
        auto kept = std::move(spare_.back());
        spare_.pop_back();
        return kept;
    }

    std::mutex mutex_;
    std::vector<std::unique_ptr<T>> spare_;
    std::size_t made_ = 0;
};

Pool<dnnl::stream>& streams() {
    static auto* const all = new Pool<dnnl::stream>;
    return *all;
}

// The memory that a primitive reads and writes; each call sets the addresses.
struct Arguments {
    memory a, b, bias, out, scratch, given_weight, weight;
};

struct Primitive {
    dnnl::primitive run;
    dnnl::reorder reorder;  // of the weight into its layout, or out of it
    memory::desc a, b, bias, out, scratch, given_weight, weight;
    bool has_reorder = false;
};

Primitive make(const Key& key) {
    const Convolution& c = key.conv;
    const auto type = key.is_bfloat16 ? memory::data_type::bf16 : memory::data_type::f32;
    const memory::desc x = activations(c, c.in_channels, c.in, type), y = activations(c, c.out_channels, c.out, type);
    const memory::desc any_weight(weight_sizes(c), type, memory::format_tag::any);
    memory::dims strides, dilations, before, after;
    for (int64_t d = 3 - c.dims; d < 3; ++d) {
        // A stride between places of which there is one says nothing; oneDNN's kernels fail for some that are large.
        strides.push_back(c.out[d] == 1 ? 1 : c.stride[d]);
        dilations.push_back(c.kernel[d] == 1 ? 0 : c.dilation[d] - 1);
        before.push_back(c.before[d]);
        after.push_back((c.out[d] - 1) * c.stride[d] + (c.kernel[d] - 1) * c.dilation[d] + 1 - c.in[d] - c.before[d]);
    }
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    constexpr auto direct = dnnl::algorithm::convolution_direct;
    Primitive made;
    if (key.has_bias) made.bias = memory::desc({c.out_channels}, type, memory::dims{1});
    using Forward = dnnl::convolution_forward;
#if DNNL_VERSION_MAJOR < 3
    const auto forward = [&](dnnl::prop_kind kind) {
        const auto desc = key.has_bias ? Forward::desc(kind, direct, x, any_weight, made.bias, y, strides, dilations, before, after)
                                       : Forward::desc(kind, direct, x, any_weight, y, strides, dilations, before, after);
        return Forward::primitive_desc(desc, attr, engine());
    };
    const auto of_input = [&](const Forward::primitive_desc& hint) {
        using Data = dnnl::convolution_backward_data;
        return Data::primitive_desc(Data::desc(direct, x, any_weight, y, strides, dilations, before, after), attr, engine(), hint);
    };
    const auto of_weight = [&](const Forward::primitive_desc& hint) {
        using Weights = dnnl::convolution_backward_weights;
        return Weights::primitive_desc(Weights::desc(direct, x, any_weight, y, strides, dilations, before, after), attr, engine(), hint);
    };
#else
    const auto forward = [&](dnnl::prop_kind kind) {
        return key.has_bias ? Forward::primitive_desc(engine(), kind, direct, x, any_weight, made.bias, y, strides, dilations, before, after, attr)
                            : Forward::primitive_desc(engine(), kind, direct, x, any_weight, y, strides, dilations, before, after, attr);
    };
    const auto of_input = [&](const Forward::primitive_desc& hint) {
        return dnnl::convolution_backward_data::primitive_desc(engine(), direct, x, any_weight, y, strides, dilations, before, after, hint, attr);
    };
    const auto of_weight = [&](const Forward::primitive_desc& hint) {
        return dnnl::convolution_backward_weights::primitive_desc(engine(), direct, x, any_weight, y, strides, dilations, before, after, hint, attr);
    };
#endif
    made.given_weight = row_major(weight_sizes(c), type);
    // oneDNN computes what it has no kernels for by loops over single elements, at a thousandth of the speed: large kernels in three dimensions,
    // numbers of channels that fill no vector in transposed convolutions.
    const auto check_kernel = [](const auto& pd) {
        if (std::string_view(pd.impl_info_str()).starts_with("ref")) throw dnnl::error(dnnl_unimplemented, "a reference implementation");
    };
    switch (key.part) {
        case ConvPart::output: {
            const auto pd = forward(dnnl::prop_kind::forward_inference);
            check_kernel(pd);
            made.run = Forward(pd);
            made.a = pd.src_desc(), made.b = made.weight = pd.weights_desc(), made.out = pd.dst_desc();
            made.scratch = pd.scratchpad_desc();
            break;
        }
        case ConvPart::input: {
            const auto pd = of_input(forward(dnnl::prop_kind::forward_training));
            check_kernel(pd);
            made.run = dnnl::convolution_backward_data(pd);
            made.a = pd.diff_dst_desc(), made.b = made.weight = pd.weights_desc(), made.out = pd.diff_src_desc();
            made.scratch = pd.scratchpad_desc();
            break;
        }
        case ConvPart::weight: {
            const auto pd = of_weight(forward(dnnl::prop_kind::forward_training));
            check_kernel(pd);
            made.run = dnnl::convolution_backward_weights(pd);
            made.a = pd.src_desc(), made.b = pd.diff_dst_desc(), made.out = made.weight = pd.diff_weights_desc();
            made.scratch = pd.scratchpad_desc();
            break;
        }
    }
    made.has_reorder = made.weight != made.given_weight;
    if (made.has_reorder) {
        const bool is_out = key.part == ConvPart::weight;
        const memory::desc &from = is_out ? made.weight : made.given_weight, &to = is_out ? made.given_weight : made.weight;
        made.reorder = dnnl::reorder(dnnl::reorder::primitive_desc(engine(), from, engine(), to));
    }
    return made;
}

struct Kept {
    Primitive primitive;
    Pool<Arguments> arguments;

    explicit Kept(const Key& key) : primitive(make(key)) {}
    Arguments make_arguments() const {
        const Primitive& p = primitive;
        const auto at = [](const memory::desc& desc) { return around(desc, nullptr); };
        return {at(p.a), at(p.b), p.bias ? at(p.bias) : memory(), at(p.out), at(p.scratch), at(p.given_weight), at(p.weight)};
    }
};

// Returns null if oneDNN has none for these sizes.
std::shared_ptr<Kept> primitive_for(const Key& key) {
    static std::mutex mutex;
    static auto* const made = new std::unordered_map<Key, std::shared_ptr<Kept>, detail::HashOfBytes<Key>, detail::EqualBytes<Key>>;
    constexpr std::size_t most = 1024;  // images of ever new sizes must not fill the memory
    const std::lock_guard lock(mutex);
    if (const auto found = made->find(key); found != made->end()) return found->second;
    if (made->size() >= most) made->clear();  // running calls hold theirs
    std::shared_ptr<Kept> primitive;
    try {
        primitive = std::make_shared<Kept>(key);
    } catch (const dnnl::error& error) {
        if (error.status == dnnl_out_of_memory) return nullptr;  // the next call may have the memory
    }
    return (*made)[key] = primitive;
}

// Allocates from the caching allocator; the memory lives as long as the tensor.
Tensor room_for(const memory::desc& desc) { return detail::make_empty({static_cast<int64_t>(desc.get_size())}, uint8, cpu, Loc{}); }

bool convolve(ConvPart part, const Convolution& conv, const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out, int threads,
              KeptWeight* kept_weight) {
    const bool is_bfloat16 = out.dtype() == bfloat16;
    const OpenMPThreadsScope scope(threads);
    const auto kept = primitive_for({conv, part, is_bfloat16, bias.defined(), 0, threads});
    if (!kept) return false;
    const Primitive& p = kept->primitive;
    const Pool<dnnl::stream>::Taken own_stream(streams(), [] { return dnnl::stream(engine()); });
    const Pool<Arguments>::Taken own_arguments(kept->arguments, [&] { return kept->make_arguments(); });
    dnnl::stream& stream = *own_stream;
    Arguments& at = *own_arguments;
    const Tensor scratch = room_for(p.scratch);
    Tensor moved = p.has_reorder && part == ConvPart::weight ? room_for(p.weight) : Tensor();
    const auto point = [](memory& place, const Tensor& t) -> memory& {
        place.set_data_handle(t.raw_data());
        return place;
    };
    const auto weight_in = [&](const Tensor& w) {
        if (!p.has_reorder) return point(at.weight, w);
        const std::uint32_t version = w.impl()->storage->version_now();
        if (kept_weight) moved = kept_weight->find(w, version, p.weight);
        if (moved.defined()) return point(at.weight, moved);
        moved = room_for(p.weight);
        p.reorder.execute(stream, point(at.given_weight, w), point(at.weight, moved));
        if (kept_weight) kept_weight->keep(w, version, p.weight, moved);
        return at.weight;
    };
    std::unordered_map<int, memory> args{{DNNL_ARG_SCRATCHPAD, point(at.scratch, scratch)}};
    switch (part) {
        case ConvPart::output:
            args.emplace(DNNL_ARG_SRC, point(at.a, a));
            args.emplace(DNNL_ARG_WEIGHTS, weight_in(b));
            if (bias.defined()) args.emplace(DNNL_ARG_BIAS, point(at.bias, bias));
            args.emplace(DNNL_ARG_DST, point(at.out, out));
            break;
        case ConvPart::input:
            args.emplace(DNNL_ARG_DIFF_DST, point(at.a, a));
            args.emplace(DNNL_ARG_WEIGHTS, weight_in(b));
            args.emplace(DNNL_ARG_DIFF_SRC, point(at.out, out));
            break;
        case ConvPart::weight:
            args.emplace(DNNL_ARG_SRC, point(at.a, a));
            args.emplace(DNNL_ARG_DIFF_DST, point(at.b, b));
            args.emplace(DNNL_ARG_DIFF_WEIGHTS, point(at.out, p.has_reorder ? moved : out));
            break;
    }
    p.run.execute(stream, args);
    if (part == ConvPart::weight && p.has_reorder) {
        p.reorder.execute(stream, point(at.weight, moved), point(at.given_weight, out));
    }
    stream.wait();
    return true;
}

// Not recorded.
Tensor part_of_batch(const Tensor& x, int64_t begin, int64_t count) {
    Shape sizes = x.shape();
    const int64_t offset = x.numel() / sizes.raw(0) * begin;
    sizes.raw(0) = count;
    return detail::make_view(x.impl(), sizes, x.strides(), offset);
}

// parts[0] becomes the sum of all, of one layout; summed in float32.
template <class T>
void add_up(const std::vector<Tensor>& parts) {
    std::vector<T*> elements;
    for (const Tensor& part : parts) elements.push_back(static_cast<T*>(part.raw_data()));
    parallel_for(parts[0].numel(), 16384, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
            float sum = 0;
            for (const T* x : elements) sum += static_cast<float>(x[i]);
            elements[0][i] = static_cast<T>(sum);
        }
    });
}

// Cuts the batch, of at least as many examples as threads, into parts for the threads of the pool. oneDNN's own threads would wait at barriers,
// and spin between them: that costs the pool its cores.
bool convolve_in_parts(ConvPart part, const Convolution& conv, const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out, int threads,
                       KeptWeight* kept) {
    const bool is_of_weight = part == ConvPart::weight;
    // A gradient of the weight has a part for each thread alone: each takes memory of its own.
    const int64_t parts = is_of_weight || conv.batch < 4 * threads ? threads : 2 * threads;
    std::vector<Tensor> firsts, seconds, results;
    for (int64_t k = 0; k < parts; ++k) {
        const int64_t begin = conv.batch * k / parts, count = conv.batch * (k + 1) / parts - begin;
        firsts.push_back(part_of_batch(a, begin, count));
        seconds.push_back(is_of_weight ? part_of_batch(b, begin, count) : b);
        results.push_back(!is_of_weight ? part_of_batch(out, begin, count) : k == 0 ? out : detail::make_empty_like(out.impl(), out.dtype(), Loc{}));
    }
    std::atomic<bool> are_done{true};
    detail::share_parts(parts, threads, [&](int64_t k) {
        const auto i = static_cast<std::size_t>(k);
        Convolution own = conv;
        own.batch = firsts[i].size(0);
        if (!convolve(part, own, firsts[i], seconds[i], bias, results[i], 1, kept)) are_done = false;
    });
    if (!are_done) return false;
    if (is_of_weight) out.dtype() == bfloat16 ? add_up<BFloat16>(results) : add_up<float>(results);
    return true;
}

}  // namespace

// bfloat16 gradients that oneDNN 2.6 gets wrong, found by random sizes beside float64: those of inputs for a kernel of one element and an odd
// number of output channels, where there are 30, 60 ... places; those of weights for strides in three dimensions, which read memory that nobody
// has written.
static bool is_wrong_in_bfloat16(ConvPart part, const Convolution& c) {
    const bool has_stride = c.stride[0] > 1 || c.stride[1] > 1 || c.stride[2] > 1;
    return part == ConvPart::input ? c.kernel_volume() == 1 && c.group_out() % 2 == 1 : part == ConvPart::weight && c.dims == 3 && has_stride;
}

bool convolve_by_onednn(ConvPart part, const Convolution& conv, const Tensor& a, const Tensor& b, const Tensor& bias, const Tensor& out,
                        KeptWeight* kept) {
    if (detail::shapes_only) return true;
    if (out.dtype() == bfloat16 && (!has_fast_bfloat16() || is_wrong_in_bfloat16(part, conv))) return false;
    try {
        const int threads = threads_for(conv);
        return threads > 1 && conv.batch >= threads ? convolve_in_parts(part, conv, a, b, bias, out, threads, kept)
                                                    : convolve(part, conv, a, b, bias, out, threads, kept);
    } catch (const dnnl::error&) {  // oneDNN had no memory of its own: products need less
        return false;
    }
}
#else
bool convolve_by_onednn(ConvPart, const Convolution&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, KeptWeight*) { return false; }
#endif

}  // namespace tapir

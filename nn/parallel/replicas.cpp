#include "tapir/nn/parallel/replicas.h"

#include <algorithm>
#include <numeric>

#include "tapir/autograd/reducer_impl.h"
#include "tapir/autograd/streams_impl.h"
#include "tapir/autograd/tape.h"
#include "tapir/autograd/watch/profiler.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"
#include "tapir/core/stream.h"
#include "tapir/nn/parallel/access_impl.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/index/coalesce_impl.h"
#include "tapir/ops/join/join.h"
#include "tapir/ops/make/make.h"

namespace tapir::parallel {

static Shape with_rows(Shape shape, std::int64_t rows) {
    shape.raw(0) = rows;
    return shape;
}

// Rows that occur once, times the factor. A device adds repeated rows in any order when somebody asks for the gradient: the ranks' would differ.
static SparseRows summed(const SparseRows& rows, std::int64_t row_count, double factor, const Loc& loc) {
    const DType dtype = rows.values.dtype();
    const Tensor values = rows.values.to(computed_in(dtype));
    const SparseRows once = detail::coalesce({rows.indices, values}, row_count, loc);
    return {once.indices, (once.values * factor).to(dtype)};
}

// Note [Buckets]
// Parameters lie in buckets in the opposite order of their use, which is about the order in which their gradients are completed. Each rank sends the
// buckets in the same order, whatever the order in which they are filled: so the ranks need not agree on it. A parameter that a rank did not use leaves
// its bucket open until the walk ends; then zeros stand for it. At the end one more sum tells who has used what, and how many samples there were.
//
// A bucket lies on its parameters' device. There it is filled and sent on one stream, whichever streams the rules run on, and nobody waits for the device:
// backward() is over when the ranks have called the sums, and what uses the gradients afterwards comes behind these.
//
// Gradients of embeddings that are rows stay out of the buckets. After that last sum all ranks know whether one of them has other parts than rows of
// it: if not, the rows are gathered, in the order of ranks.
class Replicas::Reducer final : public GradientReducer {
 public:
    Reducer(const std::vector<Tensor>& parameters, const Group& group, const ReplicasOptions& options, const Loc& loc);
    ~Reducer();

    const Group& group() const noexcept { return group_; }
    void backward(const Tensor& loss, std::int64_t samples, const Loc& loc);
    int paused = 0;  // NoSync scopes

    bool reduces() const noexcept override { return paused == 0 && (group_.size() > 1 || counted_); }
    void begin_alone(const Loc& loc) override {
        if (!counts_now_) check_counts(loc);
    }
    void check_accumulation(std::uint32_t place, const Loc& loc) const override;
    void accumulated(std::uint32_t place) noexcept override {
        places_[place].state = is_whole_ ? State::reduced : State::local;
        if (!counts_now_) uncounted_ = true;
    }
    void begin(const Loc& loc) override;
    void ready(std::uint32_t place, GradientSlot& slot, const Tensor& used_rows) override;
    std::vector<Reduced> finish() override;
    void written() noexcept override;
    void cancel(const std::string& reason) noexcept override;

 private:
    // What a leaf's gradient is made of.
    enum class State : std::uint8_t { none, local, reduced };
    struct Place {
        Tensor leaf;
        std::size_t bucket = 0;  // unless it has rows
        std::int64_t offset = 0;
        bool has_rows = false;
        State state = State::none;
        // Of this step:
        bool is_used = false, is_dense = false;
        Tensor grad;  // of a leaf with rows, where it is dense
        std::vector<SparseRows> rows;

        AutogradMeta& meta() const { return *leaf.impl()->meta; }
        State state_now() const {
            if (!meta().has_gradient()) return State::none;
            return state == State::none ? State::local : state;  // set_grad()
        }
    };
    struct Bucket {
        DType dtype;
        Device device;
        std::vector<std::uint32_t> places;
        std::int64_t numel = 0;
        Stream stream{cpu, nullptr};
        Tensor numbers;
        std::size_t filled = 0;
        std::shared_ptr<Work> work;
    };

    void backward_alone(const Tensor& loss, const Loc& loc);
    void check_counts(const Loc& loc);
    void fill(std::uint32_t place, const Tensor& grad);
    void post_full();
    std::shared_ptr<Work> begin_sum(const Tensor& x, const std::string& what, const std::string& bucket = "") const;
    void take_rows(Place& place, GradientSlot& slot, const Tensor& used_rows);

    const Group group_;
    const ReplicasOptions options_;
    std::vector<Place> places_;
    std::vector<Bucket> buckets_;
    std::size_t posted_ = 0;
    std::int64_t step_ = 0;
    bool is_walking_ = false;
    Loc loc_;
    double samples_ = 0;                        // since the last sum
    bool counted_ = false, uncounted_ = false;  // there were backward() calls with and without a count
    bool counts_now_ = false;
    bool is_whole_ = false;  // see backward_alone()
    std::vector<std::uint32_t> written_;
};

Replicas::Reducer::Reducer(const std::vector<Tensor>& parameters, const Group& group, const ReplicasOptions& options, const Loc& loc)
    : group_(group), options_(options) {
    if (options.combine != Reduce::mean && options.combine != Reduce::sum) fail<ValueError>(loc, "Replicas: gradients combine by mean or sum");
    if (options.bucket < 1) fail<ValueError>(loc, "Replicas: a bucket must hold at least a byte, got {}", options.bucket);
    if (parameters.empty()) fail<ValueError>(loc, "Replicas: there are no parameters");
    for (const Tensor& leaf : parameters) {
        if (!leaf.defined()) detail::fail_undefined("Replicas", loc);
        if (!leaf.is_leaf() || !leaf.requires_grad())
            fail<ValueError>(loc, "Replicas: a parameter of shape {} is no leaf that requires a gradient", leaf.shape());
        if (detail::meta_of(leaf).reducer)
            fail<ValueError>(loc, "Replicas: a parameter of shape {} belongs to another Replicas, or is given twice", leaf.shape());
    }
    for (const Tensor& leaf : parameters) {
        Place place;
        place.leaf = leaf;
        place.has_rows = detail::meta_of(leaf).sparse;
        places_.push_back(std::move(place));
    }
    for (std::size_t i = places_.size(); i-- > 0;) {
        Place& place = places_[i];
        if (place.has_rows) continue;
        const auto fits = [&](const Bucket& bucket) {
            const auto bytes = (bucket.numel + place.leaf.numel()) * static_cast<std::int64_t>(itemsize(bucket.dtype));
            const bool is_alike = bucket.dtype == place.leaf.dtype() && bucket.device == place.leaf.device();
            return is_alike && (bucket.numel == 0 || bytes <= options_.bucket);
        };
        if (buckets_.empty() || !fits(buckets_.back())) buckets_.emplace_back();
        Bucket& bucket = buckets_.back();
        bucket.dtype = place.leaf.dtype();
        bucket.device = place.leaf.device();
        place.bucket = buckets_.size() - 1;
        place.offset = bucket.numel;
        bucket.numel += place.leaf.numel();
        bucket.places.push_back(static_cast<std::uint32_t>(i));
    }
    for (std::size_t i = 0; i < places_.size(); ++i) {
        places_[i].meta().reducer = this;
        places_[i].meta().reducer_place = static_cast<std::uint32_t>(i);
    }
}

Replicas::Reducer::~Reducer() {
    for (const Place& place : places_) place.meta().reducer = nullptr;
}

void Replicas::Reducer::backward(const Tensor& loss, std::int64_t samples, const Loc& loc) {
    if (samples < 0) fail<ValueError>(loc, "Replicas::backward: the number of samples is negative: {}", samples);
    if (samples > 0 && !loss.defined()) fail<ValueError>(loc, "Replicas::backward: the loss of {} samples is undefined", samples);
    counts_now_ = true;
    struct End {
        bool& counts;
        ~End() { counts = false; }
    } end{counts_now_};
    check_counts(loc);
    if (group_.size() == 1 && paused == 0 && !counted_ && samples > 0) return backward_alone(loss, loc);
    const bool was_counted = std::exchange(counted_, true);
    try {
        samples_ += static_cast<double>(samples);
        if (loss.defined()) {
            Tape* const tape = Tape::current();
            if (!tape) fail<TapeError>(loc, "Replicas::backward: there is no tape on this thread");
            tape->backward(loss, {.gradient = full(loss.shape(), static_cast<double>(samples), {loss.dtype(), loss.device()})}, loc);
        } else if (reduces()) {
            reduce_without_walk(*this, loc);
        }
    } catch (...) {
        samples_ -= static_cast<double>(samples);
        counted_ = was_counted;
        throw;
    }
}

// The whole gradient of a process alone: the bits are those of a program without Replicas.
void Replicas::Reducer::backward_alone(const Tensor& loss, const Loc& loc) {
    Tape* const tape = Tape::current();
    if (!tape) fail<TapeError>(loc, "Replicas::backward: there is no tape on this thread");
    struct End {
        bool& is_whole;
        ~End() { is_whole = false; }
    } end{is_whole_};
    is_whole_ = true;
    tape->backward(loss, {}, loc);
}

// Before a backward(). Whether gradients are weighted by samples is alike in all that one sum is made of.
void Replicas::Reducer::check_counts(const Loc& loc) {
    if (is_walking_) fail<TapeError>(loc, "backward: another backward() of the same Replicas is under way");
    const auto is_local = [](const Place& place) { return place.state_now() == State::local; };
    if (std::none_of(places_.begin(), places_.end(), is_local)) {  // there are none, or zero_grad() has dropped them
        counted_ = uncounted_ = false;
        samples_ = 0;
    }
    if (counts_now_ ? uncounted_ : counted_)
        fail<ValueError>(loc, "backward: of the calls since the last sum over ranks, some have a number of samples and others none");
}

void Replicas::Reducer::check_accumulation(std::uint32_t place, const Loc& loc) const {
    if (!is_whole_ && places_[place].state_now() == State::reduced)
        fail<ValueError>(loc, "backward: the gradients are those of all ranks already: call zero_grad() before a no_sync() scope");
}

void Replicas::Reducer::begin(const Loc& loc) {
    if (!counts_now_ || is_walking_) check_counts(loc);
    is_walking_ = true;
    loc_ = loc;
    posted_ = 0;
    if (!counts_now_) uncounted_ = true;
    for (Place& place : places_) {
        place.state = place.state_now();
        place.is_used = place.is_dense = false;
    }
    for (Bucket& bucket : buckets_) {
        bucket.device = places_[bucket.places[0]].leaf.device();  // the model may have moved
        bucket.stream = Stream::current(bucket.device);
        bucket.numbers = detail::make_empty(Shape{bucket.numel}, bucket.dtype, bucket.device, loc);
        bucket.filled = 0;
        bucket.work = nullptr;
    }
}

// Writes to the leaf's part of its bucket; undefined: zeros.
void Replicas::Reducer::fill(std::uint32_t index, const Tensor& grad) {
    const Place& place = places_[index];
    Bucket& bucket = buckets_[place.bucket];
    const StreamScope scope(bucket.stream);
    Tensor part = bucket.numbers.narrow(0, place.offset, place.leaf.numel());
    if (grad.defined()) {
        wait_for_writer(grad);
        part.view(place.leaf.shape()).copy_(grad);
    } else {
        part.zero_();
    }
    ++bucket.filled;
}

// Sends the buckets that are full and whose turn it is.
void Replicas::Reducer::post_full() {
    for (; posted_ < buckets_.size() && buckets_[posted_].filled == buckets_[posted_].places.size(); ++posted_) {
        Bucket& bucket = buckets_[posted_];
        const StreamScope scope(bucket.stream);
        bucket.work = begin_sum(bucket.numbers, "gradients", fmt::format("bucket {} of {}, ", posted_, buckets_.size()));
    }
}

void Replicas::Reducer::take_rows(Place& place, GradientSlot& slot, const Tensor& used_rows) {
    const auto add_dense = [&](const Tensor& grad, const Tensor& used) {
        if (!used.defined()) {
            place.is_dense = true;
            place.grad = place.grad.defined() ? place.grad + grad : grad;
            return;
        }
        std::vector<std::int64_t> rows = used.to_vector<std::int64_t>();
        std::sort(rows.begin(), rows.end());
        rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
        const Tensor index = tensor(rows).to(grad.device());
        place.rows.push_back({index, grad.index_select(0, index)});
    };
    if (place.state == State::local) {
        const std::lock_guard lock(detail::gradient_mutex());
        AutogradMeta& meta = place.meta();
        if (meta.products.rows > 0) detail::settle_gradient(meta, place.leaf.shape());
        if (meta.grad.defined()) add_dense(meta.grad, meta.is_sure_of_rows() ? meta.used_rows : Tensor());
        for (const SparseRows& rows : meta.rows) place.rows.push_back(rows);
    }
    if (slot.grad.defined()) add_dense(slot.grad, used_rows);
    if (slot.pending) {
        for (SparseRows& rows : slot.pending->rows) place.rows.push_back(std::move(rows));
    }
    place.is_used = true;
}

void Replicas::Reducer::ready(std::uint32_t index, GradientSlot& slot, const Tensor& used_rows) {
    Place& place = places_[index];
    const detail::PauseRecording pause;
    const detail::PartsOfOp parts;
    if (place.has_rows) {
        take_rows(place, slot, used_rows);
    } else {
        place.is_used = true;
        if (place.state == State::local) {
            const std::lock_guard lock(detail::gradient_mutex());
            const StreamScope scope(buckets_[place.bucket].stream);
            if (slot.grad.defined()) wait_for_writer(slot.grad);
            detail::settle_gradient(place.meta(), place.leaf.shape());
            fill(index, sum_of_gradients(place.meta(), slot, place.leaf.shape()));
        } else {
            fill(index, slot.grad);
        }
        post_full();
    }
    slot.grad = Tensor();
    slot.pending.reset();
}

// x becomes the sum of all ranks'. Returns null where there are no others.
std::shared_ptr<Work> Replicas::Reducer::begin_sum(const Tensor& x, const std::string& what, const std::string& bucket) const {
    if (group_.size() == 1) return nullptr;
    Call call{"all_reduce", fmt::format("{}, {} {}{}", what, name(x.dtype()), x.shape(), x.device() == cpu ? "" : " on CUDA"), loc_,
              fmt::format("{}step {}", bucket, step_)};
    call.yields = !bucket.empty();
    return Access::begin_sum(group_, x, std::move(call));
}

std::vector<GradientReducer::Reduced> Replicas::Reducer::finish() {
    const detail::PauseRecording pause;
    const detail::PartsOfOp parts;
    GradientSlot none;
    for (std::uint32_t i = 0; i < places_.size(); ++i) {
        Place& place = places_[i];
        if (place.is_used) continue;
        if (place.state == State::local) {
            ready(i, none, Tensor());
        } else if (!place.has_rows) {
            fill(i, Tensor());
        }
    }
    post_full();
    const std::size_t n = places_.size();
    const Tensor told = detail::make_empty(Shape{static_cast<std::int64_t>(2 * n + 2)}, float64, cpu, loc_);
    auto* const words = reinterpret_cast<double*>(told.impl()->data);
    for (std::size_t i = 0; i < n; ++i) {
        words[i] = places_[i].is_used;
        words[n + i] = places_[i].is_dense;
    }
    words[2 * n] = counted_;
    words[2 * n + 1] = samples_;
    const std::shared_ptr<Work> last = begin_sum(told, "gradients, who has which");
    {
        const ProfileScope scope("Replicas: wait", loc_);
        for (const Bucket& bucket : buckets_) {
            if (bucket.work) bucket.work->wait();  // first: their errors came first
        }
        if (last) last->wait();
    }
    if (words[2 * n] != 0 && words[2 * n] != group_.size())
        fail<ValueError>(loc_, "backward: {} of {} ranks call Replicas::backward() with a number of samples, the others without", words[2 * n],
                         group_.size());
    double factor = options_.combine == Reduce::mean ? 1.0 / group_.size() : 1.0;
    if (words[2 * n] != 0) factor = words[2 * n + 1] > 0 ? 1.0 / words[2 * n + 1] : 0.0;

    std::vector<Reduced> results;
    for (Bucket& bucket : buckets_) {
        if (factor != 1) Tensor(bucket.numbers).mul_(factor);
    }
    written_.clear();
    for (std::uint32_t i = 0; i < n; ++i) {
        Place& place = places_[i];
        if (words[i] == 0) continue;
        written_.push_back(i);
        const bool adds = place.state == State::reduced;
        if (!place.has_rows) {
            const Tensor grad = buckets_[place.bucket].numbers.narrow(0, place.offset, place.leaf.numel()).view(place.leaf.shape());
            results.push_back({&place.meta(), grad.to(place.leaf.device()), {}, adds});
            continue;
        }
        const Shape shape = place.leaf.shape();
        const Device device = place.leaf.device();
        if (words[n + i] != 0) {  // not of rows alone, on some rank
            Tensor dense = place.grad.defined() ? place.grad.clone().contiguous() : zeros(shape, {place.leaf.dtype(), device});
            for (const SparseRows& rows : place.rows) dense.index_add_(0, rows.indices.to(device), rows.values);
            if (const std::shared_ptr<Work> sum = begin_sum(dense, "a gradient that is not of rows alone")) sum->wait();
            results.push_back({&place.meta(), dense * factor, {}, adds});
            continue;
        }
        std::vector<Tensor> indices = {zeros(Shape{0}, {int64, device})}, values = {zeros(with_rows(shape, 0), {place.leaf.dtype(), device})};
        for (const SparseRows& rows : place.rows) {
            indices.push_back(rows.indices.to(device).reshape({-1}));
            values.push_back(rows.values.reshape(with_rows(shape, rows.indices.numel())));
        }
        const Tensor all_indices = group_.all_gather({cat(indices), loc_}, 0, loc_), all_values = group_.all_gather({cat(values), loc_}, 0, loc_);
        results.push_back({&place.meta(), {}, {summed({all_indices, all_values}, shape[0], factor, loc_)}, adds});
    }
    for (Place& place : places_) {
        place.grad = Tensor();
        place.rows.clear();
    }
    return results;
}

void Replicas::Reducer::written() noexcept {
    for (const std::uint32_t place : written_) places_[place].state = State::reduced;
    for (Bucket& bucket : buckets_) bucket.numbers = Tensor();
    is_walking_ = counted_ = uncounted_ = false;
    samples_ = 0;
    ++step_;
}

void Replicas::Reducer::cancel(const std::string& reason) noexcept {
    is_walking_ = uncounted_ = false;
    for (Place& place : places_) {
        place.grad = Tensor();
        place.rows.clear();
    }
    if (group_.size() == 1) return;
    try {
        group_.abort(reason);
    } catch (...) {  // the others learn it when this process ends
    }
}

// --- Replicas ------------------------------------------------------------------------------------------------------------

Replicas::Replicas(const std::vector<Tensor>& parameters, const Group& group, const ReplicasOptions& options, Loc loc)
    : reducer_(std::make_unique<Reducer>(parameters, group, options, detail::caller(loc))) {
    const Loc line = detail::caller(loc);
    const NoGradScope pause;
    for (const Tensor& parameter : parameters) group.broadcast_(parameter, 0, line);
}

static std::vector<Tensor> trained(nn::Module& model) {
    std::vector<Tensor> parameters;
    for (const Tensor& parameter : model.parameters()) {
        if (parameter.requires_grad()) parameters.push_back(parameter);
    }
    return parameters;
}

Replicas::Replicas(nn::Module& model, const Group& group, const ReplicasOptions& options, Loc loc)
    : Replicas(trained(model), group, options, detail::caller(loc)) {
    const Loc line = detail::caller(loc);
    const NoGradScope pause;
    for (const Tensor& parameter : model.parameters()) {
        if (!parameter.requires_grad()) group.broadcast_(parameter, 0, line);
    }
    for (const Tensor& buffer : model.buffers()) group.broadcast_(buffer, 0, line);
}

Replicas::~Replicas() = default;

const Group& Replicas::group() const noexcept { return reducer_->group(); }

void Replicas::backward(const Tensor& loss, std::int64_t samples, Loc loc) { reducer_->backward(loss, samples, detail::caller(loc)); }

Replicas::NoSync::NoSync(Replicas& replicas) noexcept : replicas_(replicas) { ++replicas_.reducer_->paused; }
Replicas::NoSync::~NoSync() { --replicas_.reducer_->paused; }

}  // namespace tapir::parallel

// Adds to gradients: at once, or collected and computed together.
//
// Note [Collected gradients]
// A dynamic model uses one weight at many nodes. Each use gives a product g^T x of a few rows, as large as the weight
// itself, which costs much memory traffic. So the rows are copied into two buffers and multiplied once the buffers are full
// or the value's gradient is needed, when its own record is reached. A leaf without hooks keeps the rows, over several
// backwards, until grad() is called. The same products are summed, only in another order. While rules are being
// recorded, nothing is collected: the product is an op then.
//
// Large g that lie behind each other, as rules write them into the gradient of a sequence that was cut into steps, are not copied: RowsInPlace.
//
// On a device, launches are the cost, and copying the rows of each use would add two. So the tensors are held as
// they are until the value's gradient is needed, at the latest at the end of the walk: two launches join all rows,
// and a third multiplies. Small gradients of leaves, those of biases, are held and summed in the same way. So are the
// gradients of rows of a tensor.
#include <algorithm>
#include <cstring>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/watch/profiler.h"
#include "tapir/autograd/watch/watch_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/make_impl.h"

namespace tapir {
namespace {

// The rows that one value collects: the more there are in a product, the less often its result is read and written again. They take no more
// memory than two gradients of a large value.
constexpr std::int64_t kLeastCollected = 16, kMostCollected = 1024, kCollectBytes = 4 << 20;
constexpr std::int64_t kLeastInPlace = 4 << 10;  // elements of g: fewer are copied as fast
constexpr std::int64_t kHeldTerm = 16 << 10;     // elements of a gradient that is held on a device to be summed with others
constexpr std::size_t kMostHeld = 64;

bool same_sizes(const TensorImpl* t, const Record& record) noexcept {
    if (t->rank != record.rank) return false;
    for (int d = 0; d < t->rank; ++d) {
        if (t->sizes[d] != record.sizes()[d]) return false;
    }
    return true;
}

constexpr char kCollected[] = "weight gradients";  // the name of products that are computed together in profiles

// True if nobody else sees it, and it was written on this stream.
bool may_write(const Tensor& grad) noexcept { return only_owner(grad) && is_written_here(grad); }

}  // namespace

void ProductRows::append(const Tensor& more_g, const Tensor& more_x) {
    gradient_ops::copy_rows(g, rows, more_g);
    gradient_ops::copy_rows(x, rows, more_x);
    rows += more_g.impl()->sizes[0];
}

void ProductRows::append(const ProductRows& more) noexcept {
    for (const auto& [to, from] : {std::pair(&g, &more.g), std::pair(&x, &more.x)}) {
        const std::size_t row = static_cast<std::size_t>(to->impl()->sizes[1]) * itemsize(to->dtype());
        std::memcpy(to->impl()->data + static_cast<std::size_t>(rows) * row, from->impl()->data, static_cast<std::size_t>(more.rows) * row);
    }
    rows += more.rows;
}

std::pair<Tensor, Tensor> ProductRows::filled() const {
    const auto first = [this](const Tensor& t) { return detail::make_view(t.impl(), {rows, t.impl()->sizes[1]}, t.strides(), 0); };
    return {first(g), first(x)};
}

void own_gradient(Tensor& grad, const Shape& shape, DType dtype, Device device) {
    if (!grad.defined()) {
        grad = gradient_ops::zeros(shape, dtype, device);
    } else if (!may_write(grad)) {
        wait_for_writer(grad);
        grad = gradient_ops::dense_copy(grad);
    }
}

std::int64_t row_count(const std::vector<SparseRows>& rows) {
    std::int64_t count = 0;
    for (const SparseRows& part : rows) count += part.indices.numel();
    return count;
}

namespace {

// grad += the rows, with grad made a tensor that nobody else sees.
void add_all_rows(Tensor& grad, std::vector<SparseRows>& rows, const Shape& shape) {
    if (rows.empty()) return;
    own_gradient(grad, shape, rows[0].values.dtype(), rows[0].values.device());
    gradient_ops::rows_into(grad, rows);
    rows.clear();
}

SparseRows concatenated(const std::vector<SparseRows>& rows) {
    std::vector<Tensor> indices, values;
    for (const SparseRows& part : rows) {
        indices.push_back(part.indices);
        values.push_back(part.values);
    }
    return {gradient_ops::concatenate(indices), gradient_ops::concatenate(values)};
}

// See Note [Streams in backward].
void wait_for_writers(const std::vector<SparseRows>& rows) {
    for (const SparseRows& part : rows) {
        wait_for_writer(part.indices);
        wait_for_writer(part.values);
    }
}

// Sorts ascending, without repeats.
std::vector<std::int64_t> sorted(std::vector<std::int64_t> index) {
    std::sort(index.begin(), index.end());
    index.erase(std::unique(index.begin(), index.end()), index.end());
    return index;
}

// Copies to the device.
Tensor as_tensor(const std::vector<std::int64_t>& numbers, Device device) {
    const Tensor made = detail::make_empty({static_cast<std::int64_t>(numbers.size())}, int64, cpu, Loc{});
    std::copy(numbers.begin(), numbers.end(), static_cast<std::int64_t*>(made.raw_data()));
    return made.to(device);
}

// Sums rows with the same index. The indices are int64 and not negative.
SparseRows distinct(const SparseRows& rows, const Shape& shape) {
    const std::vector<std::int64_t> index = rows.indices.to_vector<std::int64_t>(), used = sorted(index);
    const auto used_count = static_cast<std::int64_t>(used.size());
    const Device device = rows.indices.device();
    const Tensor positions = detail::make_empty({rows.indices.numel()}, int64, cpu, Loc{});
    auto* position = static_cast<std::int64_t*>(positions.raw_data());
    for (const std::int64_t i : index) *position++ = std::lower_bound(used.begin(), used.end(), i) - used.begin();
    Shape sizes = shape;
    sizes.raw(0) = used_count;
    const Tensor values = gradient_ops::zeros(sizes, rows.values.dtype(), rows.values.device());
    gradient_ops::rows_into(values, positions.to(device), rows.values);
    return {as_tensor(used, device), values};
}

// Notes the rows of the gradient before new rows are added to it.
void note_used_rows(AutogradMeta& meta, const Shape& shape) {
    const bool rows_only = meta.sparse && meta.products.rows == 0 && (!meta.grad.defined() || meta.used_rows.defined());
    if (!rows_only) {
        meta.used_rows = Tensor();
        return;
    }
    std::vector<Tensor> parts;
    if (meta.used_rows.defined()) parts.push_back(meta.used_rows);
    for (const SparseRows& part : meta.rows) parts.push_back(part.indices);
    meta.used_rows = gradient_ops::concatenate(parts);
    if (meta.used_rows.numel() <= 2 * shape[0]) return;
    meta.used_rows = as_tensor(sorted(meta.used_rows.to_vector<std::int64_t>()), meta.used_rows.device());
}

}  // namespace

std::mutex& detail::gradient_mutex() noexcept {
    static std::mutex mutex;
    return mutex;
}

void detail::own_rows(std::vector<SparseRows>& rows) {
    if (rows.empty()) return;
    const detail::PauseRecording pause;
    const detail::PauseAutocast exact;
    if (rows.size() > 1) {
        rows = {concatenated(rows)};
        return;
    }
    // The indices are the user's tensor, and the values may be the gradient that the user gave.
    rows[0].indices = gradient_ops::dense_copy(rows[0].indices);
    if (!only_owner(rows[0].values)) rows[0].values = gradient_ops::dense_copy(rows[0].values);
}

Tensor detail::indices_of(const std::vector<SparseRows>& rows) {
    const detail::PauseRecording pause;
    wait_for_writers(rows);
    std::vector<Tensor> parts;
    for (const SparseRows& part : rows) parts.push_back(part.indices);
    return parts.size() == 1 ? gradient_ops::dense_copy(parts[0]) : gradient_ops::concatenate(parts);
}

void detail::bound_rows(AutogradMeta& meta, const Shape& shape) {
    if (row_count(meta.rows) <= 2 * shape.raw(0)) return;
    if (!meta.sparse) return settle_gradient(meta, shape);
    const detail::PauseRecording pause;
    const detail::PauseAutocast exact;
    wait_for_writers(meta.rows);
    meta.rows = {distinct(concatenated(meta.rows), shape)};
}

void detail::settle_gradient(AutogradMeta& meta, const Shape& shape) {
    if (meta.rows.empty() && meta.products.rows == 0) return;
    const detail::PauseRecording pause;
    const detail::PauseAutocast exact;
    const detail::PartsOfOp parts;  // hides the ops here: they are parts of an outer op, like the optimizer's step
    wait_for_writers(meta.rows);
    const bool is_sure = !meta.grad.defined() || meta.is_sure_of_rows();
    note_used_rows(meta, shape);
    add_all_rows(meta.grad, meta.rows, shape);
    meta.note_rows_version(is_sure);
    if (meta.products.rows == 0) return;
    const ProfileScope scope(kCollected, thread.op_loc);
    const auto [g, x] = meta.products.filled();
    if (meta.grad.defined() && only_owner(meta.grad)) {
        gradient_ops::product_into(meta.grad, g, x);
    } else {
        const Tensor product = gradient_ops::product(g, x);
        meta.grad = meta.grad.defined() ? gradient_ops::add(meta.grad, product) : product;
    }
    meta.products.rows = 0;
}

SparseRows detail::rows_or_settle(AutogradMeta& meta, const Shape& shape) {
    const bool only_rows = !meta.rows.empty() && !meta.grad.defined() && meta.products.rows == 0;
    if (!only_rows || (!meta.sparse && row_count(meta.rows) > shape.raw(0))) {
        settle_gradient(meta, shape);
        return {};
    }
    if (meta.rows.size() > 1) {
        const detail::PauseRecording pause;
        const detail::PauseAutocast exact;
        wait_for_writers(meta.rows);
        meta.rows = {concatenated(meta.rows)};
    }
    return meta.rows[0];
}

Tensor sum_of_gradients(const AutogradMeta& meta, const GradientSlot& slot, const Shape& shape) {
    std::vector<Tensor> parts;
    for (const Tensor* grad : {&meta.grad, &slot.grad}) {
        if (grad->defined()) parts.push_back(*grad);
    }
    std::vector<SparseRows> rows = meta.rows;
    const auto add_product = [&](const ProductRows& products) {
        if (products.rows == 0) return;
        const auto [g, x] = products.filled();
        parts.push_back(gradient_ops::product(g, x));
    };
    add_product(meta.products);
    if (slot.pending) {
        rows.insert(rows.end(), slot.pending->rows.begin(), slot.pending->rows.end());
        add_product(slot.pending->products);
    }
    wait_for_writers(rows);
    for (const Tensor& part : parts) wait_for_writer(part);
    if (parts.empty()) return rows.empty() ? Tensor() : distinct(concatenated(rows), shape).values;
    if (parts.size() == 1 && rows.empty()) return parts[0];
    const Tensor sum = gradient_ops::dense_copy(parts[0]);
    for (std::size_t i = 1; i < parts.size(); ++i) gradient_ops::add_into(sum, parts[i]);
    if (!rows.empty()) gradient_ops::rows_into(sum, rows);
    return sum;
}

// --- Adding gradients ----------------------------------------------------------------------------------------------------

void Walk::add(std::uint32_t value, Tensor g) {
    const Record& record = *log.records[value];
    GradientSlot& slot = slots[value];
    if (recording && slot.pending) slot.pending->rows.clear();
    bool is_sum = slot.grad.defined();
    if (!same_sizes(g.impl(), record)) [[unlikely]] {
        g = gradient_ops::sum_to(g, record.shape());
        is_sum = true;
    }
    if (g.dtype() != record.dtype) [[unlikely]] {
        g = gradient_ops::cast(g, record.dtype);
        is_sum = true;
    }
    if (g.device() != record.device) [[unlikely]]  // for a number: a 0-d tensor of the CPU, among tensors elsewhere
        g = g.to(record.device, record.loc);
    if (!slot.grad.defined()) {
        slot.grad = std::move(g);
    } else if (record.device != cpu && (record.flags & Record::kLeaf) && !recording && !streams && g.impl()->numel <= kHeldTerm) {
        slot.collected().terms.push_back(std::move(g));
        if (slot.pending->terms.size() == kMostHeld) sum_held(value);
    } else if (!recording && may_write(slot.grad)) {
        gradient_ops::add_into(slot.grad, g);
    } else {
        if (streams) streams->bring(slot.grad);
        slot.grad = gradient_ops::add(slot.grad, g);
    }
    if (watched && is_sum) [[unlikely]]
        tell_summed(value);
}

void Walk::tell_summed(std::uint32_t value) {
    if (!slots[value].grad.defined()) return;
    WatcherList::each([&](OpWatcher& watcher) { watcher.summed(*this, value); });
}

void Walk::add_product_now(std::uint32_t value, const Tensor& g, const Tensor& x) {
    const Tensor& grad = slots[value].grad;
    if (grad.defined() && may_write(grad)) {
        gradient_ops::product_into(grad, g, x);
    } else {
        const Tensor product = gradient_ops::product(g, x);
        const bool is_told = grad.defined() || !same_sizes(product.impl(), *log.records[value]);
        add(value, product);
        if (is_told) return;  // add() has reported it
    }
    if (watched) [[unlikely]]  // the sum may be of rows from several ops
        tell_summed(value);
}

// The number of rows of g (., out) and x (., in) that are collected.
static std::int64_t collected_rows(std::int64_t out, std::int64_t in, DType dtype) noexcept {
    const auto item_bytes = static_cast<std::int64_t>(itemsize(dtype));
    const std::int64_t bytes = std::max(kCollectBytes, 2 * out * in * item_bytes);
    return std::clamp(bytes / std::max<std::int64_t>((out + in) * item_bytes, 1), kLeastCollected, kMostCollected);
}

void Walk::add_product(std::uint32_t value, const Tensor& g, const Tensor& x) {
    const std::int64_t n = g.impl()->sizes[0], out = g.impl()->sizes[1], in = x.impl()->sizes[1];
    const std::int64_t capacity = collected_rows(out, in, g.dtype());
    const DType dtype = log.records[value]->dtype;
    if (recording || g.dtype() != dtype || x.dtype() != dtype) return add(value, gradient_ops::product(g, x));
    GradientSlot& slot = slots[value];
    if (n == 0) {  // zeros: nothing to add, but the gradient must exist
        if (slot.empty()) add(value, gradient_ops::zeros(log.records[value]->shape(), dtype, g.device()));
        if (watched) [[unlikely]]
            tell_summed(value);
        return;
    }
    const bool on_device = g.device() != cpu;
    // Computes the product alone if the rows are many or as large as the result, or on several streams.
    if (n * 2 > capacity || n * (out + in) >= out * in || (on_device && streams)) return add_product_now(value, g, x);
    Pending& pending = slot.collected();
    if (on_device) {
        if (pending.pair_rows + n > capacity || pending.pairs.size() == kMostHeld) sum_held(value);
        pending.pairs.emplace_back(g, x);
        pending.pair_rows += n;
        return;
    }
    if (n * out >= kLeastInPlace && add_in_place(value, g, x)) return;
    collect(value, g, x);
}

void Walk::collect(std::uint32_t value, const Tensor& g, const Tensor& x) {
    const std::int64_t n = g.impl()->sizes[0], out = g.impl()->sizes[1], in = x.impl()->sizes[1];
    ProductRows& products = slots[value].pending->products;
    if (!products.g.defined()) {
        const std::int64_t capacity = collected_rows(out, in, g.dtype());
        products.g = detail::make_empty({capacity, out}, g.dtype(), g.device(), Loc{});
        products.x = detail::make_empty({capacity, in}, x.dtype(), x.device(), Loc{});
    }
    if (products.rows + n > products.capacity()) complete_products(value);
    products.append(g, x);
}

bool Walk::add_in_place(std::uint32_t value, const Tensor& g, const Tensor& x) {
    const TensorImpl* const from = g.impl();
    if (!(from->flags & TensorImpl::kView) || !from->is_contiguous()) return false;
    const std::int64_t n = from->sizes[0], width = x.impl()->sizes[1];
    const auto bytes_of = [&](std::int64_t rows) { return rows * from->sizes[1] * static_cast<std::int64_t>(itemsize(g.dtype())); };
    if (bytes_of(n) == static_cast<std::int64_t>(from->storage->nbytes)) return false;  // nothing lies beside it
    RowsInPlace& held = slots[value].collected().in_place;
    const auto meet = [&](const std::byte* above, const std::byte* below) { return held.g.impl()->storage == from->storage && above == below; };
    const bool is_before = held.rows > 0 && meet(from->data + bytes_of(n), held.g.impl()->data);
    const bool is_after = held.rows > 0 && meet(held.g.impl()->data + bytes_of(held.rows), from->data);
    if (!(is_before || is_after) || held.rows + n > kMostCollected) complete_in_place(value);
    if (!held.x.defined()) held.x = detail::make_empty({kMostCollected, width}, x.dtype(), cpu, Loc{});
    const auto move_to = [&](std::int64_t first) {
        const auto row = static_cast<std::size_t>(width) * itemsize(x.dtype());
        std::byte* const rows = held.x.impl()->data;
        std::memmove(rows + static_cast<std::size_t>(first) * row, rows + static_cast<std::size_t>(held.first) * row,
                     static_cast<std::size_t>(held.rows) * row);
        held.first = first;
    };
    std::int64_t place = 0;
    if (held.rows > 0 && is_after) {
        if (held.first + held.rows + n > kMostCollected) move_to(0);
        place = held.first + held.rows;
    } else {
        if (held.rows == 0) held.first = kMostCollected;  // the next ones come before it if the loop went forwards
        if (held.first < n) move_to(kMostCollected - held.rows);
        place = held.first -= n;
        held.g = g;
    }
    gradient_ops::copy_rows(held.x, place, x);
    held.rows += n;
    return true;
}

void Walk::complete_in_place(std::uint32_t value) {
    RowsInPlace& held = slots[value].pending->in_place;
    if (held.rows == 0) return;
    const std::int64_t out = held.g.impl()->sizes[1], in = held.x.impl()->sizes[1];
    const Tensor g = detail::make_view(held.g.impl(), {held.rows, out}, {out, 1}, 0);
    const Tensor x = detail::make_view(held.x.impl(), {held.rows, in}, {in, 1}, held.first * in);
    const bool are_few = 2 * held.rows <= collected_rows(out, in, g.dtype());
    held.rows = 0;
    held.g = Tensor();
    if (are_few) return collect(value, g, x);
    const ProfileScope scope(kCollected, detail::thread.op_loc);
    add_product_now(value, g, x);
}

void Walk::add_rows(std::uint32_t value, const Tensor& indices, const Tensor& g) {
    const Record& record = *log.records[value];
    GradientSlot& slot = slots[value];
    if (recording) {  // dense; in a trace it is noted which rows a leaf's gradient is made of, as long as it is of rows alone
        const bool is_dense = slot.grad.defined() && (!slot.pending || slot.pending->rows.empty());
        std::vector<SparseRows> used = slot.pending ? std::move(slot.pending->rows) : std::vector<SparseRows>();
        add(value, gradient_ops::rows_to_dense(indices, g, record.shape()));
        if (is_dense || !detail::is_tracing() || !(record.flags & Record::kLeaf)) return;
        used.push_back({indices, g});
        slot.collected().rows = std::move(used);
        return;
    }
    if ((record.flags & Record::kLeaf) && !streams) {
        slot.collected().rows.push_back({indices, g});
        return;
    }
    if (streams) streams->bring(slot.grad);
    own_gradient(slot.grad, record.shape(), record.dtype, g.device());
    gradient_ops::rows_into(slot.grad, indices, g);
    if (watched) [[unlikely]]
        tell_summed(value);
}

void Walk::sum_held(std::uint32_t value) {
    GradientSlot& slot = slots[value];
    Pending& pending = *slot.pending;
    complete_in_place(value);
    pending.in_place = {};
    if (!pending.pairs.empty()) {
        std::vector<Tensor> g, x;
        for (auto& [pair_g, pair_x] : pending.pairs) {
            g.push_back(std::move(pair_g));
            x.push_back(std::move(pair_x));
        }
        pending.pairs.clear();
        pending.pair_rows = 0;
        const ProfileScope scope(kCollected, detail::thread.op_loc);
        add_product_now(value, gradient_ops::concatenate(g), gradient_ops::concatenate(x));
    }
    if (!pending.parts.empty()) {
        const std::vector<PartOfRows> parts = std::exchange(pending.parts, {});
        if (slot.grad.defined()) own_gradient(slot.grad, log.records[value]->shape(), log.records[value]->dtype, log.records[value]->device);
        slot.grad = gradient_ops::sum_of_parts(slot.grad, parts, log.records[value]->shape());
    }
    if (!pending.terms.empty()) {  // perhaps that product is the last of them
        std::vector<Tensor> terms = std::exchange(pending.terms, {});
        terms.push_back(std::move(slot.grad));
        slot.grad = gradient_ops::sum_of(terms);
        if (watched) [[unlikely]]
            tell_summed(value);
    }
}

void Walk::complete_products(std::uint32_t value) {
    Pending& pending = *slots[value].pending;
    if (pending.products.rows == 0) return;
    const auto [g, x] = pending.products.filled();
    pending.products.rows = 0;
    const ProfileScope scope(kCollected, detail::thread.op_loc);
    add_product_now(value, g, x);
}

void Walk::flush(std::uint32_t value) {
    sum_held(value);
    complete_products(value);
    GradientSlot& slot = slots[value];
    Pending& pending = *slot.pending;
    if (pending.rows.empty() || recording) return;
    add_all_rows(slot.grad, pending.rows, log.records[value]->shape());
    if (watched) [[unlikely]]
        tell_summed(value);
}

}  // namespace tapir

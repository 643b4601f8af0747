// How an op takes part in batch(): at its beginning it waits for peers, and its rule computes all of them at once.
//
//     if (detail::in_batch()) [[unlikely]] {
//         const auto of_group = [&](const detail::Batched& b) { return softmax(b[0], dim + 1); };
//         if (Tensor y = detail::in_group({softmax_op, x.loc, {&x.tensor}, detail::batch_key(dim)}, of_group); y.defined()) return y;
//     }
//
// Calls form a group if the op, the key and the types of the operands are the same. An operand of a group is a block, (count, ...), of the
// instances' operands, in order; or, if the call says that it may be shared and all are one tensor, this tensor. Results are blocks.
// Where batched() returns false the op goes on alone: it has no peer, or its rule has thrown, and its own check is to tell why.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <utility>

#include "tapir/autograd/op.h"
#include "tapir/core/thread_impl.h"

namespace tapir::detail {

class BatchInstance;

#ifdef TAPIR_RUNTIME
inline constexpr bool in_batch() noexcept { return false; }
#else
/// The instance of batch() that runs on this thread, or null.
extern constinit thread_local BatchInstance* batch_instance __attribute__((tls_model("initial-exec")));
/// True if an op that begins now may wait for peers: not one that is part of an unrecorded op. batch() raises watching_ops.
inline bool in_batch() noexcept { return watching_ops && batch_instance && !thread.muted; }
#endif

/// A group's operands.
class Batched {
 public:
    Batched(std::int64_t count, const Tensor* operands, std::uint64_t blocks, const double* numbers = nullptr) noexcept
        : count_(count), operands_(operands), blocks_(blocks), numbers_(numbers) {}

    /// The number of instances: the size of dimension 0 of the blocks.
    std::int64_t count() const noexcept { return count_; }
    const Tensor& operator[](int k) const noexcept { return operands_[k]; }
    bool is_block(int k) const noexcept { return k >= 64 || (blocks_ >> k & 1); }
    /// The own number of each instance: see BatchCall::set_number().
    std::span<const double> numbers() const noexcept { return {numbers_, static_cast<std::size_t>(count_)}; }

 private:
    std::int64_t count_;
    const Tensor* operands_;
    std::uint64_t blocks_;  // a bit for each of the first operands; later ones are blocks
    const double* numbers_;
};

/// Number arguments that calls of one group have in common, as words.
struct BatchKey {
    static constexpr int kMost = 24;
    int count = 0;
    bool fits = true;
    std::uint64_t words[kMost];

    BatchKey() noexcept {}  // the words are not set
    BatchKey(const BatchKey& other) noexcept : count(other.count), fits(other.fits) {
        std::memcpy(words, other.words, static_cast<std::size_t>(count) * sizeof(words[0]));
    }
    BatchKey& operator=(const BatchKey&) = delete;

    template <class T>
    void add(const T& value) noexcept {
        static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
        if (count == kMost) {
            fits = false;
            return;
        }
        words[count] = 0;
        std::memcpy(&words[count++], &value, sizeof(T));
    }
};
template <class... T>
BatchKey batch_key(const T&... values) noexcept {
    BatchKey key;
    (key.add(values), ...);
    return key;
}

/// Which calls of an op form a group, beyond those that are alike.
struct Grouping {
    /// A bit for each operand: shared ones are passed as they are where they are one tensor in all instances; `same` ones must be.
    std::uint64_t shared = 0, same = 0;
    /// The group adds up in another order than one call does: deterministic calls run alone, so that they give the same to the bit.
    bool rounds_otherwise = false;
    /// The op waits for its peers in any case: see Note [At once] in scheduler.cpp. Set it where a group reads a weight once for all.
    bool always_waits = false;
};
/// True for a matrix with which the product of a group takes less time than products of one row, by more than it takes to wait.
inline bool is_worth_waiting(const Tensor& weight) noexcept {
    constexpr std::int64_t least = 16 * 1024;  // measured; elements
    return weight.defined() && weight.dim() >= 2 && weight.numel() >= least;
}

struct BatchCall {
    BatchCall(const OpInfo& called, const Loc& line, const Tensor* const* tensors, int count, const BatchKey& of, Grouping grouping = {}) noexcept
        : op(called), loc(line), operands(tensors), operand_count(count), rounds_otherwise(grouping.rounds_otherwise),
          always_waits(grouping.always_waits), shared(grouping.shared | grouping.same), same(grouping.same), key(of) {}
    template <int count>
    BatchCall(const OpInfo& called, const Loc& line, const Tensor* const (&tensors)[count], const BatchKey& of = {}, Grouping grouping = {}) noexcept
        : BatchCall(called, line, few, count, of, grouping) {
        static_assert(count <= kFew);
        for (int k = 0; k < count; ++k) few[k] = tensors[k];
    }
    BatchCall(const BatchCall&) = delete;
    BatchCall& operator=(const BatchCall&) = delete;

    /// Its operands, all of one type, are the rows of one block: those of the first instance, then those of the second.
    void put_in_one_block() noexcept { is_one_block = true; }

    /// A number argument that may be another in each call of a group.
    void set_number(double of_call) noexcept {
        has_number = true;
        number = of_call;
    }

    static constexpr int kMostOperands = 255;  // calls with more run alone
    static constexpr int kFew = 5;
    const OpInfo& op;
    const Loc& loc;
    const Tensor* few[kFew];
    const Tensor* const* operands;  // undefined ones are allowed
    int operand_count;
    bool rounds_otherwise, always_waits;
    bool is_one_block = false, has_number = false;
    std::uint64_t shared, same;  // of the first 64
    double number = 0;
    BatchKey key;  // the last, as few of its words are used

    bool may_share(int k) const noexcept { return k < 64 && (shared >> k & 1); }
    bool must_share(int k) const noexcept { return k < 64 && (same >> k & 1); }
};

/// A rule of a group: fills the results, blocks.
class BatchRule {
 public:
    template <class Fn>
    BatchRule(const Fn& fn) noexcept  // NOLINT: implicit by design
        : fn_(&fn), call_([](const void* of, const Batched& operands, Tensor* results) { (*static_cast<const Fn*>(of))(operands, results); }) {}
    void operator()(const Batched& operands, Tensor* results) const { call_(fn_, operands, results); }

 private:
    const void* fn_;
    void (*call_)(const void*, const Batched&, Tensor*);
};

/// Waits, in an instance, until the group of this call has been computed.
bool batched(const BatchCall& call, BatchRule rule, std::initializer_list<Tensor*> results);
/// The same for an op with one result, which of_group(operands) returns for a group. Undefined where the op goes on alone.
template <class OfGroup>
Tensor in_group(const BatchCall& call, const OfGroup& of_group) {
    Tensor y;
    batched(call, [&](const Batched& in, Tensor* made) { made[0] = of_group(in); }, {&y});
    return y;
}
/// The same for an op with several results, the named parts of a struct: in_group(call, of_group, out, &QRResult::q, &QRResult::r). Returns false
/// where the op goes on alone.
template <class Result, class OfGroup, std::same_as<Tensor Result::*>... Part>
    requires(sizeof...(Part) > 0)
bool in_group(const BatchCall& call, const OfGroup& of_group, Result& out, Part... parts) {
    const auto rule = [&](const Batched& in, Tensor* made) {
        Result all = of_group(in);
        ((*made++ = std::move(all.*parts)), ...);
    };
    return batched(call, rule, {&(out.*parts)...});
}
/// The same for an op with values and indices.
template <class Pair, class OfGroup>
bool in_group(const BatchCall& call, const OfGroup& of_group, Pair& out) {
    return in_group(call, of_group, out, &Pair::values, &Pair::indices);
}

/// For the rules of products x w^T with a weight, (out, in), that many groups share: returns w, or, once groups of this batch() have had many rows, its
/// elements with `out` as the inner dimension in memory. Few rows times such a matrix take half the time.
Tensor laid_for_groups(const Tensor& w, std::int64_t rows);
/// For ops whose operand has a batch, (n, ...): a block of such, (count, n, ...), as one batch, and its result as a block again.
Tensor folded(const Tensor& block);
Tensor unfolded(const Tensor& result, std::int64_t count);
/// The same for the rule of a group: op(all) gets operand 0 of all instances as one batch. Its result, or its values and indices, come back as blocks.
template <class Op>
auto as_one_batch(const Batched& in, const Op& op) {
    auto y = op(folded(in[0]));
    if constexpr (std::is_same_v<decltype(y), Tensor>) {
        return unfolded(y, in.count());
    } else {
        y.values = unfolded(y.values, in.count());
        y.indices = unfolded(y.indices, in.count());
        return y;
    }
}

}  // namespace tapir::detail

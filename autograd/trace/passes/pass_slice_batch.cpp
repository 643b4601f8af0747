// Lets a graph run for a part of its batch at a time.
//
// The results of a batch of images do not fit into the cache, so that each op reads from memory what the one before has written. Those of one
// image may fit. Then it is faster to run several ops for one image, and the same ops for the next one. But each slice reads the weights
// again, which costs more than it gains where these are larger than the images: at the end of most networks.
//
// So the pass follows the dimension of the examples from the inputs on, through the ops that it knows to treat each example by itself,
// estimates the bytes that come from memory for each op and each number of examples in a slice, and chooses the stretches of
// ops, and the sizes of their slices, with the least of them. An op that it does not know, and all that depends on it, stays as it is.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "tapir/autograd/trace/passes/rewrite_impl.h"
#include "tapir/autograd/trace/passes/slice_batch_impl.h"
#include "tapir/core/error.h"

namespace tapir {
namespace {

using rewrite::Node;
using rewrite::Sizes;
using rewrite::Value;

constexpr int kNone = -1;   // the value is the same for all examples
constexpr int kMixed = -2;  // or it depends on them in a way that the pass does not know

// --- Where the examples lie -------------------------------------------------------------------------------------------------------

// The dimension of the examples in each value.
class Examples {
 public:
    Examples(const Graph& graph, const SymInt& batch, const std::function<bool(const Node&)>& takes) : graph_(graph), batch_(batch) {
        for (const Value* input : graph.inputs()) {
            if (!input->shape.empty() && input->shape[0] == batch) dims_[input] = 0;
        }
        for (const auto& node : graph.nodes()) {
            const int dim = takes && !takes(*node) ? kMixed : follow(*node);
            for (const Value* result : node->results) {
                if (dim == kMixed || (dim >= 0 && has_examples(result, dim))) dims_[result] = dim;
            }
        }
    }
    int of(const Value* value) const {
        const auto known = dims_.find(value);
        return known == dims_.end() ? kNone : known->second;
    }
    const SymInt& batch() const noexcept { return batch_; }
    bool is_output(const Value* value) const { return rewrite::is_output(graph_, value); }

 private:
    int follow(const Node& node) const;
    bool is_repeated_for_each(const Node& expand) const;
    bool has_examples(const Value* result, int dim) const {
        return dim < static_cast<int>(result->shape.size()) && result->shape[static_cast<std::size_t>(dim)] == batch_;
    }
    const Graph& graph_;
    const SymInt batch_;
    std::unordered_map<const Value*, int> dims_;
};

// A node, as the rules see it.
struct Call {
    const Node& node;
    const Examples& examples;

    int count() const { return static_cast<int>(node.inputs.size()); }
    int dim(int i) const { return examples.of(node.inputs[static_cast<std::size_t>(i)]); }
    int rank(int i) const { return static_cast<int>(node.inputs[static_cast<std::size_t>(i)]->shape.size()); }
    const Sizes& shape(int i) const { return node.inputs[static_cast<std::size_t>(i)]->shape; }
    const Sizes& result() const { return node.results[0]->shape; }
    int result_rank() const { return static_cast<int>(result().size()); }
    /// An attribute that is a dimension of operand 0.
    int along(const char* name) const { return counted(std::get<SymInt>(node.attributes().get(name)), rank(0)); }
    static int counted(const SymInt& dim, int of) { return static_cast<int>(dim.number() < 0 ? dim.number() + of : dim.number()); }
    /// The dimension of operand 0, if the others are the same for all examples.
    int only_first() const {
        for (int i = 1; i < count(); ++i) {
            if (dim(i) != kNone) return kMixed;
        }
        return dim(0);
    }
    /// The dimension of all operands, if it is the same.
    int of_all() const {
        for (int i = 1; i < count(); ++i) {
            if (dim(i) != dim(0)) return kMixed;
        }
        return dim(0);
    }
    int unless(bool mixes, int dim) const { return mixes ? kMixed : dim; }
};

// Rules: the dimension of the examples in all results, for operands of which at least one has examples and none is mixed.

// Each example by itself in dimension 0: images and their channels.
int of_images(const Call& c) { return c.unless(c.only_first() != 0 || c.rank(0) < 2, 0); }
int of_convolution(const Call& c) { return c.unless(c.rank(0) != c.rank(1), of_images(c)); }  // not an image without a batch
int of_batch_norm(const Call& c) {
    const bool reads_statistics = rewrite::flag_of(c.node, "has_running_mean") && rewrite::flag_of(c.node, "has_running_var");
    return c.unless(rewrite::flag_of(c.node, "training") || !reads_statistics, of_images(c));
}
int of_elements(const Call& c) {
    int at = kNone;
    for (int i = 0; i < c.count(); ++i) {
        if (c.dim(i) == kNone) continue;
        const int dim = c.dim(i) + c.result_rank() - c.rank(i);
        if (at != kNone && at != dim) return kMixed;
        at = dim;
    }
    for (int i = 0; i < c.count(); ++i) {  // what is the same for all examples must not have a row for each
        const int dim = at - (c.result_rank() - c.rank(i));
        if (c.dim(i) == kNone && dim >= 0 && c.shape(i)[static_cast<std::size_t>(dim)] != 1) return kMixed;
    }
    return at;
}
int of_linear(const Call& c) { return c.unless(c.only_first() < 0 || c.dim(0) == c.rank(0) - 1, c.dim(0)); }
int of_matmul(const Call& c) {
    const int a = c.dim(0), b = c.dim(1), behind_a = c.rank(0) - 1 - a, behind_b = c.rank(1) - 1 - b;
    if (c.rank(0) < 2 || c.rank(1) < 2) return kMixed;
    const int rank = c.result_rank();
    const auto is_one = [&](int i, int behind) {  // the operand that all examples share has no row for each of them
        const int dim = c.rank(i) - 1 - behind;
        return behind < 2 || dim < 0 || c.shape(i)[static_cast<std::size_t>(dim)] == 1;
    };
    if (a >= 0 && b >= 0) return c.unless(behind_a != behind_b || behind_a < 2, rank - 1 - behind_a);
    if (a >= 0) return c.unless(behind_a == 0 || !is_one(1, behind_a), rank - 1 - behind_a);
    return c.unless(behind_b == 1 || !is_one(0, behind_b), rank - 1 - behind_b);
}
int of_others_along(const Call& c) { return c.unless(c.along("dim") == c.dim(0), c.dim(0)); }
int of_layer_norm(const Call& c) {
    const int normalized = static_cast<int>(rewrite::sizes_of(c.node, "normalized_shape").size());
    return c.unless(c.only_first() < 0 || c.dim(0) >= c.rank(0) - normalized, c.dim(0));
}
int of_reduction(const Call& c) {
    int before = 0;
    for (const int dim : rewrite::reduced_dims(c.node)) {
        if (dim == c.dim(0)) return kMixed;
        before += dim < c.dim(0);
    }
    return c.dim(0) - (rewrite::flag_of(c.node, "keepdim") ? 0 : before);
}
int of_reshape(const Call& c) {
    const SymInt before = types::product(c.shape(0), 0, static_cast<std::size_t>(c.dim(0)));
    for (int dim = 0; dim < c.result_rank(); ++dim) {
        const auto at = static_cast<std::size_t>(dim);
        if (c.result()[at] == c.examples.batch() && types::product(c.result(), 0, at) == before) return dim;
    }
    return kMixed;
}
int of_expand(const Call& c) { return c.dim(0) + c.result_rank() - c.rank(0); }
int of_transpose(const Call& c) {
    const std::vector<int> dims = rewrite::dims_of(c.node, "dims");
    return c.dim(0) == dims[0] ? dims[1] : c.dim(0) == dims[1] ? dims[0] : c.dim(0);
}
int of_permute(const Call& c) {
    const std::vector<int> dims = rewrite::dims_of(c.node, "dims");
    return static_cast<int>(std::find(dims.begin(), dims.end(), c.dim(0)) - dims.begin());
}
int of_select(const Call& c) { return c.unless(c.along("dim") == c.dim(0), c.dim(0) - (c.along("dim") < c.dim(0) ? 1 : 0)); }
int of_embedding(const Call& c) { return c.only_first(); }
int of_flip(const Call& c) {
    const std::vector<int> dims = rewrite::dims_of(c.node, "dims");
    return c.unless(std::find(dims.begin(), dims.end(), c.dim(0)) != dims.end(), c.dim(0));
}
int of_pad(const Call& c) {  // two widths for each of the last dimensions
    return c.unless(c.dim(0) >= c.rank(0) - static_cast<int>(rewrite::sizes_of(c.node, "pad").size()) / 2, c.dim(0));
}
int of_shuffle(const Call& c) { return c.unless(c.dim(0) >= c.rank(0) - 3, c.dim(0)); }
int of_stack(const Call& c) {
    const int dim = Call::counted(std::get<SymInt>(c.node.attributes().get("dim")), c.result_rank());
    return c.unless(c.of_all() < 0, c.dim(0) + (dim <= c.dim(0) ? 1 : 0));
}
int of_cat(const Call& c) { return c.unless(c.along("dim") == c.dim(0), c.of_all()); }

struct Rule {
    const OpForm* form;
    int (*dim)(const Call&);
};
constexpr Rule rules[] = {
    {&convolution_form, of_convolution},
    {&conv_transpose_form, of_convolution},
    {&batch_norm_form, of_batch_norm},
    {&group_norm_form, of_images},
    {&max_pool_form, of_images},
    {&avg_pool_form, of_images},
    {&interpolate_form, of_images},
    {&linear_form, of_linear},
    {&matmul_form, of_matmul},
    {&softmax_form, of_others_along},
    {&log_softmax_form, of_others_along},
    {&layer_norm_form, of_layer_norm},
    {&sum_form, of_reduction},
    {&mean_form, of_reduction},
    {&amax_form, of_reduction},
    {&amin_form, of_reduction},
    {&reshape_form, of_reshape},
    {&expand_form, of_expand},
    {&transpose_form, of_transpose},
    {&permute_form, of_permute},
    {&slice_form, of_others_along},
    {&select_form, of_select},
    {&cat_form, of_cat},
    {&stack_form, of_stack},
    {&embedding_form, of_embedding},
    {&rms_norm_form, of_layer_norm},
    {&logsumexp_form, of_reduction},
    {&cumsum_form, of_others_along},
    {&flip_form, of_flip},
    {&pad_form, of_pad},
    {&pixel_shuffle_form, of_shuffle},
    {&pixel_unshuffle_form, of_shuffle},
};

bool is_number(const Sizes& shape, int but) {
    for (int d = 0; d < static_cast<int>(shape.size()); ++d) {
        if (d != but && (!shape[static_cast<std::size_t>(d)].is_number() || shape[static_cast<std::size_t>(d)].number() == 0)) return false;
    }
    return true;
}

// The ops whose attributes have the number of examples.
bool names_shape(const Node& node) { return node.is(reshape_form) || node.is(expand_form); }

// True if it makes one row into one for each example.
bool Examples::is_repeated_for_each(const Node& expand) const {
    const Value &x = *expand.inputs[0], &y = *expand.results[0];
    if (!has_examples(&y, 0) || !is_number(y.shape, 0) || !is_number(x.shape, kNone) || x.device != cpu) return false;
    return x.shape.size() < y.shape.size() || x.shape[0] == 1;
}

int Examples::follow(const Node& node) const {
    bool depends_on_them = false;
    for (const Value* input : node.inputs) {
        if (of(input) == kMixed) return kMixed;
        depends_on_them = depends_on_them || of(input) >= 0;
    }
    const auto depends = [&](const Value* value) { return !is_number(value->shape, kNone); };
    if (!depends_on_them && node.is(expand_form) && is_repeated_for_each(node)) return 0;
    if (!depends_on_them) {
        if (node.attributes().is_symbolic() || node.attributes().is_random()) return kMixed;
        return std::any_of(node.results.begin(), node.results.end(), depends) ? kMixed : kNone;
    }
    const Call call{node, *this};
    int dim = kMixed;
    if (rewrite::is_pointwise(node)) {
        dim = of_elements(call);
    } else {
        for (const Rule& rule : rules) {
            if (node.is(*rule.form)) dim = rule.dim(call);
        }
    }
    if (dim < 0) return kMixed;
    // Of all sizes only that of the batch may be a name, also in attributes.
    if (names_shape(node)) {
        if (!is_number(rewrite::sizes_of(node, "shape"), dim)) return kMixed;
    } else if (node.attributes().is_symbolic()) {
        return kMixed;
    }
    for (const Value* input : node.inputs) {
        if (!is_number(input->shape, of(input)) || input->device != cpu) return kMixed;
    }
    for (const Value* result : node.results) {
        const bool is_unused = result != node.results[0] && result->uses.empty() && !is_output(result);  // batch_norm's statistics
        if (is_unused && is_number(result->shape, kNone)) continue;
        if (!has_examples(result, dim) || !is_number(result->shape, dim) || result->device != cpu) return kMixed;
    }
    return dim;
}

// --- What is gained ---------------------------------------------------------------------------------------------------------------

constexpr double kCache = 16e6;      // bytes of results that are likely to be in the cache when they are read
constexpr double kLeast = 256e3;     // bytes of the largest results of a slice: smaller ones have too little work
constexpr double kRunCosts = 100e3;  // bytes that could be read in the time that running a slice takes beside its ops
constexpr double kUsualBatch = 16;   // where the batch is a name
constexpr double kLeastGain = 0.05;  // of all bytes
constexpr int kSizes = 6;

double bytes_of(const Value* value, int but) {
    double bytes = static_cast<double>(itemsize(value->dtype));
    for (int d = 0; d < static_cast<int>(value->shape.size()); ++d) {
        if (d != but) bytes *= static_cast<double>(value->shape[static_cast<std::size_t>(d)].number());
    }
    return bytes;
}

// A node that could run in slices.
struct Step {
    Node* node;
    double moved = 0, weights = 0;  // bytes that it reads and writes for each example, and for each slice
    double crossing = 0;            // bytes of the values for each example that are made before it and used from it on
    bool can_begin = true;          // a stretch may begin with it
    int choice[kSizes + 1] = {};    // the size of the slices of the step before it, if it has this one
    double best[kSizes + 1] = {};   // the least bytes of all steps up to it, if it has this size; the last is the whole batch
};

// The bytes from memory, for each example, if `examples` of them run at once.
double cost(double moved, double weights, double examples) { return moved * std::min(1.0, examples * moved / kCache) + weights / examples; }

// The part of the graph that could run in slices: its nodes, in order.
class Slicing {
 public:
    Slicing(const Graph& graph, const Examples& examples, double batch) : examples_(examples), batch_(batch) {
        for (const auto& node : graph.nodes()) {
            if (node->results.empty() || examples.of(node->results[0]) < 0) continue;
            place_[node.get()] = static_cast<int>(steps_.size());
            steps_.push_back(step_of(node.get()));
        }
        for (const Step& step : steps_) largest_ = std::max(largest_, step.moved);
        for (int i = 0; i < static_cast<int>(steps_.size()); ++i) {
            for (const Value* result : steps_[static_cast<std::size_t>(i)].node->results) cross(i, result);
        }
        double size = 1;
        while (size * largest_ < kLeast) size *= 2;
        for (double& of : sizes_) {
            of = size;
            size *= 2;
        }
    }

    struct Stretch {
        std::vector<Node*> nodes;
        std::int64_t examples;
    };
    std::vector<Stretch> stretches();
    /// As much as can be, in slices of so many.
    std::vector<Stretch> one_stretch(std::int64_t examples_in_slice) const;

 private:
    Step step_of(Node* node) const;
    void cross(int i, const Value* result);

    const Examples& examples_;
    const double batch_;
    std::vector<Step> steps_;
    std::unordered_map<const Node*, int> place_;
    double largest_ = 1;
    bool can_end_ = true;  // the last of them may leave its slices
    std::array<double, kSizes> sizes_{};
};

Step Slicing::step_of(Node* node) const {
    Step step{node};
    if (node->form().is_view) return step;
    bool is_joined = false;  // with the op that makes an operand, which nobody else reads
    for (const Value* input : node->inputs) {
        const int dim = examples_.of(input);
        if (dim < 0) {
            step.weights += node->is(embedding_form) ? 0 : bytes_of(input, kNone);  // few rows of it are read
        } else if (!is_joined && (rewrite::is_pointwise(*node) || node->is(batch_norm_form)) && input->maker && input->uses.size() == 1) {
            is_joined = true;
        } else {
            step.moved += bytes_of(input, dim);
        }
    }
    for (const Value* result : node->results) step.moved += is_joined || result->uses.empty() ? 0 : bytes_of(result, examples_.of(result));
    return step;
}

// Notes that a result of step i is used by later ones. Between them a stretch can begin only if it can leave the slices there.
void Slicing::cross(int i, const Value* result) {
    int last = examples_.is_output(result) ? static_cast<int>(steps_.size()) : i;
    for (const Graph::Use& use : result->uses) {
        const auto user = place_.find(use.node);
        last = std::max(last, user == place_.end() ? static_cast<int>(steps_.size()) : user->second);
    }
    const bool can_leave = examples_.of(result) == 0 && !result->maker->form().is_view;
    for (int k = i + 1; k <= last && k < static_cast<int>(steps_.size()); ++k) {
        Step& step = steps_[static_cast<std::size_t>(k)];
        step.crossing += bytes_of(result, examples_.of(result));
        step.can_begin = step.can_begin && can_leave;
    }
    if (last == static_cast<int>(steps_.size()) && !can_leave) can_end_ = false;
}

// The path of the least bytes: for each step and each size, from the best size of the step before it.
std::vector<Slicing::Stretch> Slicing::stretches() {
    const auto cost_at = [&](const Step& step, int size) {
        return cost(step.moved, step.weights, size == kSizes ? batch_ : sizes_[static_cast<std::size_t>(size)]);
    };
    const auto can_have = [&](int size) { return size == kSizes || sizes_[static_cast<std::size_t>(size)] < batch_; };
    const auto run_costs = [&](int size) { return size == kSizes ? 0 : kRunCosts / sizes_[static_cast<std::size_t>(size)]; };
    double whole = 0;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
        Step& step = steps_[i];
        whole += cost_at(step, kSizes);
        for (int size = 0; size <= kSizes; ++size) {
            step.best[size] = std::numeric_limits<double>::infinity();
            if (!can_have(size)) continue;
            if (i == 0) {
                step.best[size] = run_costs(size) + cost_at(step, size);
                continue;
            }
            for (int before = 0; before <= kSizes; ++before) {
                if (before != size && !step.can_begin) continue;
                const double change = before == size ? 0 : run_costs(size) + 2 * cost(step.crossing, 0, batch_);
                const double all = steps_[i - 1].best[before] + change + cost_at(step, size);
                if (all < step.best[size]) {
                    step.best[size] = all;
                    step.choice[size] = before;
                }
            }
        }
    }
    std::vector<Stretch> found;
    if (steps_.empty()) return found;
    const auto& ways = steps_.back().best;
    int size = kSizes;
    for (int other = 0; other < kSizes && can_end_; ++other) size = ways[other] < ways[size] ? other : size;
    if (ways[size] > (1 - kLeastGain) * whole) return found;
    int later = kSizes;
    for (std::size_t i = steps_.size(); i-- > 0;) {
        if (size != kSizes) {
            if (size != later) found.push_back({{}, static_cast<std::int64_t>(sizes_[static_cast<std::size_t>(size)])});
            found.back().nodes.push_back(steps_[i].node);
        }
        later = size;
        size = steps_[i].choice[size];
    }
    for (Stretch& stretch : found) std::reverse(stretch.nodes.begin(), stretch.nodes.end());
    return found;
}

std::vector<Slicing::Stretch> Slicing::one_stretch(std::int64_t examples_in_slice) const {
    std::size_t end = can_end_ ? steps_.size() : 0;
    for (std::size_t i = 1; i < steps_.size() && !can_end_; ++i) end = steps_[i].can_begin ? i : end;
    Stretch stretch{{}, examples_in_slice};
    for (std::size_t i = 0; i < end; ++i) stretch.nodes.push_back(steps_[i].node);
    if (stretch.nodes.empty()) return {};
    return {std::move(stretch)};
}

// --- The graph of a slice ---------------------------------------------------------------------------------------------------------

// The graph of a stretch, for any number of examples, in place of its nodes. rows: this number.
std::optional<Graph::Joined> sliced(const Slicing::Stretch& stretch, const Examples& examples, const SymInt& rows) {
    const std::unordered_set<const Node*> inside(stretch.nodes.begin(), stretch.nodes.end());
    const auto shape_of = [&](const Value* value) {
        Sizes shape = value->shape;
        if (const int dim = examples.of(value); dim >= 0) shape[static_cast<std::size_t>(dim)] = rows;
        return shape;
    };
    auto body = std::make_shared<Graph>();
    std::unordered_map<const Value*, Value*> of;
    std::vector<Value*> operands, results;
    std::int64_t cut = 0;
    for (const bool has_examples : {true, false}) {  // operands: first those that are cut
        for (const Node* node : stretch.nodes) {
            for (Value* input : node->inputs) {
                if ((input->maker && inside.count(input->maker)) || (examples.of(input) >= 0) != has_examples || of.count(input)) continue;
                if (input->kind == Graph::Kind::constant) {
                    of[input] = body->add_constant(input->data, input->name);
                } else if (input->kind == Graph::Kind::parameter) {
                    of[input] = body->add_parameter(input->name, input->data);
                } else {
                    of[input] = body->add_input("x" + std::to_string(operands.size()), input->dtype, shape_of(input), input->device);
                    operands.push_back(input);
                    cut += has_examples;
                }
            }
        }
    }
    if (cut == 0) return std::nullopt;
    for (const Node* node : stretch.nodes) {
        std::vector<Value*> inputs;
        for (const Value* input : node->inputs) inputs.push_back(of.at(input));
        Attributes attributes = node->attributes();
        if (names_shape(*node)) {
            Sizes shape = rewrite::sizes_of(*node, "shape");
            shape[static_cast<std::size_t>(examples.of(node->results[0]))] = rows;
            attributes.set("shape", shape);
        }
        Node* mine = body->append(std::move(attributes), inputs);
        mine->set_origin(*node);
        for (Value* result : node->results) {
            of[result] = body->add_result(mine, result->dtype, result->device, shape_of(result));
            const auto is_outside = [&](const Graph::Use& use) { return inside.count(use.node) == 0; };
            if (!examples.is_output(result) && std::none_of(result->uses.begin(), result->uses.end(), is_outside)) continue;
            body->add_output("y" + std::to_string(results.size()), of[result]);
            results.push_back(result);
        }
    }
    try {
        body->check();
    } catch (const Error&) {  // a number that only fits this batch
        return std::nullopt;
    }
    Attributes attributes(in_slices_form);
    attributes.set("body", std::shared_ptr<const Graph>(std::move(body)));
    attributes.set("sliced", SymInt(cut));
    attributes.set("examples", SymInt(stretch.examples));
    return Graph::Joined{stretch.nodes, std::move(attributes), std::move(operands), std::move(results)};
}

}  // namespace

int slice_batch(Graph& graph, const std::function<bool(const Graph::Node&)>& takes, std::int64_t every) {
    if (graph.inputs().empty() || graph.inputs()[0]->shape.empty() || !graph.updates().empty() || !graph.guards().empty()) return 0;
    const SymInt batch = graph.inputs()[0]->shape[0];
    const bool is_name = !batch.is_number() && batch == SymInt::dim(batch.str());
    if (batch.is_number() ? batch.number() < 2 : !is_name) return 0;
    const Examples examples(graph, batch, takes);
    Slicing slicing(graph, examples, is_name ? kUsualBatch : static_cast<double>(batch.number()));
    std::string name = "examples";  // one that the graph does not have: its sizes must not become those of a slice
    const std::vector<std::string> taken = graph.dims();
    while (std::find(taken.begin(), taken.end(), name) != taken.end()) name += "_";
    const SymInt rows = SymInt::dim(name);
    std::vector<Graph::Joined> joined;
    for (const Slicing::Stretch& stretch : every > 0 ? slicing.one_stretch(every) : slicing.stretches()) {
        if (auto one = sliced(stretch, examples, rows)) joined.push_back(std::move(*one));
    }
    return rewrite::join(graph, std::move(joined));
}

}  // namespace tapir

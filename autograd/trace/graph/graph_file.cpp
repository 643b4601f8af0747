// Saving and loading graphs.
#include "tapir/autograd/trace/graph/graph_file.h"

#include <algorithm>
#include <charconv>

#include "tapir/autograd/trace/graph/names_impl.h"
#include "tapir/autograd/trace/graph/parse_impl.h"
#include "tapir/autograd/trace/run/runner_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/io/safetensors_impl.h"
#include "tapir/core/io/shown_impl.h"
#include "tapir/core/out_of_memory_impl.h"
#include "tapir/core/thread_impl.h"

namespace tapir {
namespace {

constexpr const char* kVersionKey = "tapir_graph_version";
constexpr const char* kGraphKey = "tapir_graph";
constexpr const char* kTrainedKey = "tapir_graph_requires_grad";  // numbers of parameters: "0 2"
constexpr int kVersion = 1;

// Parses "0 2" to a bitmap of `count` entries. Empty, if count is not 0, for other text.
std::vector<bool> numbers_in(const std::string& text, std::size_t count) {
    std::vector<bool> has(count, false);
    for (const char *at = text.data(), *end = at + text.size(); at != end;) {
        if (*at == ' ') {
            ++at;
            continue;
        }
        std::size_t number = 0;
        const auto [next, error] = std::from_chars(at, end, number);
        if (error != std::errc() || number >= count) return {};
        has[number] = true;
        at = next;
    }
    return has;
}

// Collects the tensors of a graph by their names in its text. Tensors of graphs in its attributes, branches and bodies, have
// a prefix, "{0} %3": the index of their graph in the text, nested likewise.
void add_tensors(const Graph& graph, const std::string& prefix, NamedTensors& tensors) {
    const detail::ValueNames name_of(graph);
    for (const auto* list : {&graph.parameters(), &graph.constants()}) {
        for (const Graph::Value* value : *list) tensors.push_back({prefix + name_of(*value), value->data});
    }
    int part = 0;
    for (const auto& node : graph.nodes()) {
        if (!node->attributes().has_graph()) continue;
        for (const auto& [name, attribute] : node->attributes().all()) {
            const auto* nested = std::get_if<std::shared_ptr<const Graph>>(&attribute);
            if (nested && *nested) add_tensors(**nested, fmt::format("{}{{{}}} ", prefix, part++), tensors);
        }
    }
}

}  // namespace

void save_graph(const TextArg& path, const Graph& graph, Loc loc) {
    const detail::CallLine call(loc);
    detail::check_held(graph, loc);
    NamedTensors tensors;
    add_tensors(graph, "", tensors);
    for (std::size_t i = 0; i < graph.guards().size(); ++i) tensors.push_back({fmt::format("guard {}", i), graph.guards()[i].expected});
    FileMetadata metadata = {{kVersionKey, fmt::format("{}", kVersion)}, {kGraphKey, graph.str()}};
    if (!detail::is_runtime) {  // the runtime has no gradients, and leaves others to decide
        std::string trained;
        for (std::size_t i = 0; i < graph.parameters().size(); ++i) {
            if (graph.parameters()[i]->data.requires_grad()) trained += fmt::format("{}{}", trained.empty() ? "" : " ", i);
        }
        metadata.emplace_back(kTrainedKey, std::move(trained));
    }
    io::save_safetensors("save_graph", path, tensors, metadata, nullptr, loc);
}

Graph load_graph(const TextArg& path, Loc loc) {
    const detail::CallLine call(loc);
    FileMetadata metadata;
    const NamedTensors tensors = io::load_safetensors("load_graph", path, &metadata, loc);
    const auto entry = [&](const char* key) -> const std::string* {
        const auto found = std::find_if(metadata.begin(), metadata.end(), [&](const auto& word) { return word.first == key; });
        return found == metadata.end() ? nullptr : &found->second;
    };
    const std::string *version = entry(kVersionKey), *text = entry(kGraphKey), *trained = entry(kTrainedKey);
    if (!version || !text) fail<FileError>(loc, "load_graph: {}: holds tensors, but no graph", path);
    int number = 0;
    std::from_chars(version->data(), version->data() + version->size(), number);
    if (number < 1 || number > kVersion) {
        fail<FileError>(loc, "load_graph: {}: is of version {}, this library reads up to {}", path, *version, kVersion);
    }
    Graph::Inputs data;
    for (const NamedTensor& t : tensors) data.emplace_back(t.name, t.tensor);
    try {
        Graph graph = detail::read_graph(*text, data, {}, loc);
        const auto count = graph.parameters().size();
        const std::vector<bool> is_trained = trained ? numbers_in(*trained, count) : std::vector<bool>(count, true);
        if (is_trained.size() != count) fail<FileError>(loc, "load_graph: {}: \"{}\" says not which parameters require gradients", path, *trained);
        for (std::size_t i = 0; i < count && !detail::is_runtime; ++i) {
            if (is_trained[i] && is_floating(graph.parameters()[i]->dtype)) Tensor(graph.parameters()[i]->data).requires_grad_(true, loc);
        }
        return graph;
    } catch (const FileError&) {
        throw;
    } catch (const OutOfMemory&) {
        throw;
    } catch (const Error& error) {
        fail<FileError>(loc, "load_graph: {}: {}", path, io::text_of(error));
    }
}

}  // namespace tapir

// Texts of graphs: each is an error or a graph that is whole, comes back from its own text, and gives errors or results when it is run on
// small inputs, op by op and as a plan, and when it is optimized (it is whole then too) and written as ONNX.
#include <algorithm>
#include <cctype>
#include <random>
#include <string_view>
#include <vector>

#include "input.h"
#include "run_graph.h"
#include "tapir/autograd/op_form.h"
#include "tapir/autograd/trace/graph/graph.h"
#include "tapir/autograd/trace/graph/parse_impl.h"
#include "tapir/autograd/trace/passes/passes.h"
#if TAPIR_WITH_ONNX
#include "tapir/autograd/trace/onnx/onnx.h"
#endif

using namespace tapir;

namespace {

void check_whole(const Graph& graph, const char* after) {
    try {
        graph.check_links();
    } catch (const Error& error) {
        std::fprintf(stderr, "not whole after %s: %s\n%s", after, error.what(), graph.str().c_str());
        std::abort();
    }
}

void transform(const Graph& graph) {
    Graph other = graph;
    try {
        optimize(other);
    } catch (const Error&) {
    } catch (const std::bad_alloc&) {}
    check_whole(other, "optimize");
    fuzz::run_graph(other);
#if TAPIR_WITH_ONNX
    try {
        save_onnx("/dev/null/none", graph);  // the file is opened last, and cannot be
    } catch (const Error&) {
    } catch (const std::bad_alloc&) {}
#endif
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const std::string text(reinterpret_cast<const char*>(data), size);
    // Whoever asks for tensors of gigabytes gets them where there is room: not here.
    try {
        // Half of the texts as Tapir::runtime takes them, which has no rules of shapes, and optimizes and writes nothing.
        const bool has_rules = size % 2 != 0;
        const detail::ReadOptions options{.makes_zeros = true,
                                          .checks = has_rules ? detail::ReadOptions::Checks::rules : detail::ReadOptions::Checks::calls};
        const Graph graph = detail::read_graph(text, {}, options, Loc::current());
        graph.check_links();
        const std::string listed = graph.str();
        if (detail::read_graph(listed, {}, options, Loc::current()).str() != listed) {
            std::fprintf(stderr, "does not come back:\n%s", listed.c_str());
            std::abort();
        }
        fuzz::run_graph(graph);
        if (has_rules) transform(graph);
    } catch (const Error& error) {
        if (error.where().line() == 0 && std::string_view(error.what()).find("OutOfMemory") == std::string_view::npos) {
            // Errors of what an op is given may have no line: the graph's is not known.
        }
    }
    return 0;
}

// --- Mutations ------------------------------------------------------------------------------------------------------------------

namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '%' || c == '.' || c == '-'; }

struct Word {
    std::size_t begin, size;
};
std::vector<Word> words_of(const std::string& text) {
    std::vector<Word> words;
    for (std::size_t i = 0; i < text.size();) {
        std::size_t end = i;
        while (end < text.size() && is_word(text[end])) ++end;
        if (end > i) words.push_back({i, end - i});
        i = std::max(end, i + 1);
    }
    return words;
}

bool is_number(std::string_view word) {
    return !word.empty() && (std::isdigit(static_cast<unsigned char>(word[0])) || (word[0] == '-' && word.size() > 1));
}

constexpr const char* kNumbers[] = {"0",
                                    "1",
                                    "-1",
                                    "2",
                                    "-2",
                                    "3",
                                    "5",
                                    "8",
                                    "64",
                                    "255",
                                    "-100",
                                    "2147483647",
                                    "-2147483649",
                                    "4294967298",
                                    "9223372036854775807",
                                    "-9223372036854775808",
                                    "0.5",
                                    "-0.0",
                                    "1e300",
                                    "nan",
                                    "inf",
                                    "-inf"};
constexpr const char* kDTypes_[] = {"bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"};
constexpr const char* kOps[] = {
#define TAPIR_FORM_NAME(name) #name,
#include "tapir/ops/op_list.inc"
#undef TAPIR_FORM_NAME
};

std::string mutated(std::string text, std::mt19937& random) {
    const auto pick = [&](std::size_t count) { return static_cast<std::size_t>(random() % std::max<std::size_t>(count, 1)); };
    const std::vector<Word> words = words_of(text);
    if (words.empty()) return text + "input x: float32 (2, 3)\n";
    const auto word = [&](const Word& w) { return std::string_view(text).substr(w.begin, w.size); };
    const Word at = words[pick(words.size())];
    const auto put = [&](std::string_view other) { return text.replace(at.begin, at.size, std::string(other)); };
    const auto another = [&](const auto& fits) {  // a word of the text that is of the same kind
        std::vector<Word> found;
        for (const Word& w : words) {
            if (fits(word(w))) found.push_back(w);
        }
        return found.empty() ? std::string(word(at)) : std::string(word(found[pick(found.size())]));
    };
    const std::string_view now = word(at);
    const bool is_dtype = std::find(std::begin(kDTypes_), std::end(kDTypes_), now) != std::end(kDTypes_);
    const bool is_op = at.begin + at.size < text.size() && text[at.begin + at.size] == '(';
    switch (pick(10)) {
        case 0: return put(words_of(text).empty() ? "" : another([](std::string_view) { return true; }));
        case 1: {  // a line twice, or not at all
            const std::size_t end = std::min(text.find('\n', at.begin), text.size() - 1) + 1, begin = text.rfind('\n', at.begin) + 1;
            if (pick(2)) return text.erase(begin, end - begin);
            const std::string line = text.substr(begin, end - begin);
            return text.insert(end, line);
        }
        case 2: {  // an operand more, or less
            const std::size_t open = text.find('(', at.begin);
            if (open == std::string::npos) return text;
            return text.insert(open + 1, another([](std::string_view w) { return w[0] == '%' || w == "x"; }) + ", ");
        }
        case 3: {
            const std::size_t comma = text.find(", ", at.begin);
            if (comma == std::string::npos) return text;
            const std::size_t end = std::min(text.find_first_of(",)", comma + 1), text.size());
            return text.erase(comma, end - comma);
        }
        default:
            if (is_dtype) return put(kDTypes_[pick(std::size(kDTypes_))]);
            if (is_op && pick(2)) return put(kOps[pick(std::size(kOps))]);
            if (now == "true" || now == "false") return put(now == "true" ? "false" : "true");
            if (now[0] == '%') return put(another([](std::string_view w) { return w[0] == '%'; }));
            if (is_number(now)) return put(pick(3) ? kNumbers[pick(std::size(kNumbers))] : another(is_number));
            return put(another([&](std::string_view w) { return !is_number(w); }));
    }
}

}  // namespace

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t most);

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t most, unsigned seed) {
    std::mt19937 random(seed);
    if (random() % 8 == 0) return LLVMFuzzerMutate(data, size, most);
    std::string text(reinterpret_cast<char*>(data), size);
    for (auto count = 1 + random() % 3; count > 0; --count) text = mutated(std::move(text), random);
    const std::size_t length = std::min(text.size(), most);
    std::copy_n(text.data(), length, data);
    return length;
}

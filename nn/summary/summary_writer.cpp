// The messages are TensorBoard's event.proto, summary.proto and tensor.proto; those of its plugins are described where they are made.
#include "tapir/nn/summary/summary_writer.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <system_error>

#include "tapir/autograd/apart_impl.h"
#include "tapir/core/fail_impl.h"
#include "tapir/core/io/file_impl.h"
#include "tapir/core/io/shown_impl.h"
#include "tapir/core/own_lines_impl.h"
#include "tapir/core/text_impl.h"
#include "tapir/nn/summary/event_file_impl.h"
#include "tapir/nn/summary/graph_impl.h"
#include "tapir/nn/summary/histogram_impl.h"
#include "tapir/nn/summary/image_impl.h"

namespace tapir::nn {
namespace {

using summary::Message;

constexpr std::int64_t kColumns = 8;  // of add_images

std::string default_folder(const std::string& comment) {
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    ::localtime_r(&now, &local);
    char date[64] = {}, host[256] = {};
    std::strftime(date, sizeof date, "%b%d_%H-%M-%S", &local);
    if (::gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
    return fmt::format("runs/{}_{}{}", date, host, comment);
}

void check_text(const char* op, const char* what, std::string_view text, const Loc& loc) {
    if (text.empty()) fail<ValueError>(loc, "{}: the {} is empty", op, what);
    if (tapir::detail::utf8_text(text) != text) fail<ValueError>(loc, "{}: the {} {} is not UTF-8", op, what, io::shown(text));
}

void check_defined(const char* op, const char* what, const Tensor& x, const Loc& loc) {
    if (!x.defined()) fail<ValueError>(loc, "{}: the {} is an undefined tensor", op, what);
}

Message event_of(const Message& value, std::int64_t step, double walltime) {
    Message all, event;
    all.message(1, value);
    return event.real(1, walltime == SummaryWriter::kNow ? summary::now() : walltime).number(2, step).message(5, all);
}

Message scalar(std::string_view tag, double value) {
    Message message;
    return message.text(1, tag).real32(2, static_cast<float>(value));
}

Message plugin(std::string_view name, const Message& content) {
    Message data, metadata;
    data.text(1, name);
    if (!content.bytes().empty()) data.message(2, content);
    return metadata.message(1, data);
}

// Returns the Impl of a writer that was not moved from.
template <class Impl>
Impl& of_writer(const std::unique_ptr<Impl>& impl, const char* op, const Loc& loc) {
    if (!impl) fail<ValueError>(loc, "{}: the writer was moved from", op);
    return *impl;
}

// add_scalars uses one writer for each of these folders.
std::string scalars_folder(std::string_view main_tag, std::string_view tag) {
    std::string name(main_tag);
    for (char& c : name) c = c == '/' ? '_' : c;
    return name + '_' + std::string(tag);
}

}  // namespace

struct SummaryWriter::Impl {
    std::string folder;
    SummaryWriterOptions options;
    std::mutex mutex;
    std::map<std::string, std::unique_ptr<summary::EventFile>> files;  // by folder below the writer's; "": its own
    pid_t process = ::getpid();                                        // the process that these files belong to

    // Must be called with the mutex held.
    summary::EventFile& file(const char* op, const std::string& below, const Loc& loc) {
        if (const pid_t now = ::getpid(); now != process) {  // after a fork(): two processes that write to one file would spoil it
            files.clear();
            process = now;
        }
        if (const auto found = files.find(below); found != files.end()) return *found->second;
        const std::string where = below.empty() ? folder : folder + '/' + below;
        auto made = std::make_unique<summary::EventFile>(op, where, options.filename_suffix, loc);  // may throw
        return *files.emplace(below, std::move(made)).first->second;
    }
    void add(const char* op, const Message& event, const Loc& loc) {
        const std::lock_guard lock(mutex);
        file(op, {}, loc).add(op, event, loc);
    }
};

SummaryWriter::SummaryWriter(const TextArg& log_dir, SummaryWriterOptions options, Loc loc) : impl_(new Impl) {
    const CallerScope caller(loc);
    impl_->folder = log_dir.empty() ? default_folder(options.comment) : std::string(log_dir);
    impl_->options = std::move(options);
    const char* op = "SummaryWriter";
    summary::EventFile& file = impl_->file(op, {}, loc);
    if (impl_->options.purge_step) {
        Message start, event;
        start.number(1, 1);  // SessionLog.START
        event.real(1, summary::now()).number(2, *impl_->options.purge_step).message(7, start);
        for (int i = 0; i < 2; ++i) file.add(op, event, loc);  // TensorBoard takes the first in a folder for the begin of all
    }
}

SummaryWriter::~SummaryWriter() = default;
SummaryWriter::SummaryWriter(SummaryWriter&&) noexcept = default;
SummaryWriter& SummaryWriter::operator=(SummaryWriter&&) noexcept = default;

const std::string& SummaryWriter::get_logdir() const noexcept {
    static const std::string none;
    return impl_ ? impl_->folder : none;
}

void SummaryWriter::add_scalar(TextViewArg tag, double scalar_value, std::int64_t global_step, double walltime, Loc loc) {
    const CallerScope caller(loc);
    const char* op = "add_scalar";
    check_text(op, "tag", tag, loc);
    of_writer(impl_, op, loc).add(op, event_of(scalar(tag, scalar_value), global_step, walltime), loc);
}

void SummaryWriter::add_scalar(TextViewArg tag, const Tensor& scalar_value, std::int64_t global_step, double walltime, Loc loc) {
    const CallerScope caller(loc);
    check_defined("add_scalar", "value", scalar_value, loc);
    if (scalar_value.numel() != 1) {
        fail<ShapeError>(loc, "add_scalar: the value must have one element, got shape {}", scalar_value.shape());
    }
    add_scalar(tag, scalar_value.item(loc), global_step, walltime, loc);
}

void SummaryWriter::add_scalars(TextViewArg main_tag, const std::vector<std::pair<std::string, double>>& tag_scalar_dict, std::int64_t global_step,
                                double walltime, Loc loc) {
    const CallerScope caller(loc);
    const char* op = "add_scalars";
    Impl& impl = of_writer(impl_, op, loc);
    check_text(op, "main tag", main_tag, loc);
    for (const auto& [tag, value] : tag_scalar_dict) check_text(op, "tag", tag, loc);
    if (walltime == kNow) walltime = summary::now();
    const std::lock_guard lock(impl.mutex);
    for (const auto& [tag, value] : tag_scalar_dict) {
        impl.file(op, scalars_folder(main_tag, tag), loc).add(op, event_of(scalar(main_tag, value), global_step, walltime), loc);
    }
}

void SummaryWriter::add_histogram(TextViewArg tag, const Tensor& values, std::int64_t global_step, const std::vector<double>& bins, double walltime,
                                  Loc loc) {
    const CallerScope caller(loc);
    const char* op = "add_histogram";
    check_text(op, "tag", tag, loc);
    check_defined(op, "tensor of values", values, loc);
    if (bins.size() == 1) fail<ValueError>(loc, "{}: bins must have at least two edges, got one", op);
    for (std::size_t i = 0; i < bins.size(); ++i) {
        if (!std::isfinite(bins[i]) || (i > 0 && bins[i] <= bins[i - 1])) {
            fail<ValueError>(loc, "{}: bins must be finite and rise, got {} at place {}", op, bins[i], i);
        }
    }
    const NoGradScope pause;
    const summary::Histogram h = summary::histogram_of(values.to(cpu, loc), bins, loc);
    Message histogram, value;
    histogram.real(1, h.min).real(2, h.max).real(3, h.num).real(4, h.sum).real(5, h.sum_squares).reals(6, h.limits).reals(7, h.counts);
    of_writer(impl_, op, loc).add(op, event_of(value.text(1, tag).message(5, histogram), global_step, walltime), loc);
}

namespace {

Message image_event(const char* op, std::string_view tag, const Tensor& x, std::int64_t step, double walltime, std::string_view dataformats,
                    const Loc& loc) {
    check_text(op, "tag", tag, loc);
    check_defined(op, "image", x, loc);
    const NoGradScope pause;
    const summary::Pixels pixels = summary::pixels_of(op, x.to(cpu, loc), dataformats, kColumns, loc);
    Message image, value;
    image.number(1, pixels.height).number(2, pixels.width).number(3, pixels.channels).text(4, summary::png(op, pixels, loc));
    return event_of(value.text(1, tag).message(4, image), step, walltime);
}

}  // namespace

void SummaryWriter::add_image(TextViewArg tag, const Tensor& img_tensor, std::int64_t global_step, double walltime, TextViewArg dataformats,
                              Loc loc) {
    const CallerScope caller(loc);
    of_writer(impl_, "add_image", loc).add("add_image", image_event("add_image", tag, img_tensor, global_step, walltime, dataformats, loc), loc);
}

void SummaryWriter::add_images(TextViewArg tag, const Tensor& img_tensor, std::int64_t global_step, double walltime, TextViewArg dataformats,
                               Loc loc) {
    const CallerScope caller(loc);
    of_writer(impl_, "add_images", loc).add("add_images", image_event("add_images", tag, img_tensor, global_step, walltime, dataformats, loc), loc);
}

void SummaryWriter::add_text(TextViewArg tag, TextViewArg text_string, std::int64_t global_step, double walltime, Loc loc) {
    const CallerScope caller(loc);
    const char* op = "add_text";
    check_text(op, "tag", tag, loc);
    Message dimension, shape, tensor, value;
    shape.message(2, dimension.number(1, 1));
    tensor.number(1, 7).message(2, shape).text(8, tapir::detail::utf8_text(text_string));  // DT_STRING
    value.text(1, std::string(tag) + "/text_summary").message(8, tensor).message(9, plugin("text", {}));
    of_writer(impl_, op, loc).add(op, event_of(value, global_step, walltime), loc);
}

void SummaryWriter::add_graph(const Tape& tape, Loc loc) {
    const CallerScope caller(loc);
    Message event;
    event.real(1, summary::now()).message(4, summary::graph_of(tape));
    of_writer(impl_, "add_graph", loc).add("add_graph", event, loc);
}

void SummaryWriter::add_graph(const Graph& graph, Loc loc) {
    const CallerScope caller(loc);
    Message event;
    event.real(1, summary::now()).message(4, summary::graph_of(graph));
    of_writer(impl_, "add_graph", loc).add("add_graph", event, loc);
}

void SummaryWriter::add_graph_of(Module& model, In x, void (*run)(Module& model, In x)) {
    of_writer(impl_, "add_graph", x.loc);
    check_defined("add_graph", "input", x.tensor, x.loc);
    struct Eval {
        explicit Eval(Module& model) {
            for (Module* module : model.modules()) was_training.emplace_back(module, module->is_training());
            model.eval();
        }
        ~Eval() {  // parents come first, and their modules may have another mode
            for (const auto& [module, on] : was_training) module->train(on);
        }
        std::vector<std::pair<Module*, bool>> was_training;
    };
    const Eval eval(model);  // also sets the modules' paths
    Tensor leaf = x.tensor.detach();
    if (is_floating(leaf.dtype())) leaf.requires_grad_();
    const ApartScope apart;  // the caller's tapes stay as they are
    const Tape tape({}, x.loc);
    // run() is in the header. A call that takes its own line, and is not given x.loc, would name the header's line.
    const tapir::detail::StandInLine line("/nn/summary/summary_writer.h", x.loc);
    run(model, In(leaf, x.loc));
    add_graph(tape, x.loc);
}

void SummaryWriter::flush(Loc loc) {
    const CallerScope caller(loc);
    if (!impl_) return;
    const std::lock_guard lock(impl_->mutex);
    for (const auto& [below, file] : impl_->files) file->flush("flush", loc);
}

void SummaryWriter::close(Loc loc) {
    const CallerScope caller(loc);
    if (!impl_) return;
    flush(loc);
    const std::lock_guard lock(impl_->mutex);
    impl_->files.clear();
}

// --- Hyper-parameters (plugins/hparams: plugin_data.proto, api.proto) --------------------------------------------------------------

namespace {

// google.protobuf.Value
Message value_of(const HParam& p) {
    Message value;
    switch (p.kind) {
        case HParam::Kind::number: return value.real(2, p.number);
        case HParam::Kind::text: return value.text(3, tapir::detail::utf8_text(p.text));
        case HParam::Kind::boolean: return value.number(4, p.number != 0);
    }
    return value;
}

int type_of(const HParam& p) { return p.kind == HParam::Kind::text ? 1 : p.kind == HParam::Kind::boolean ? 2 : 3; }

// Puts HParamsPluginData, with one of its fields, in a summary.
Message hparams_event(std::string_view tag, int field, const Message& content) {
    Message data, value;
    data.number(1, 0).message(field, content);
    return event_of(value.text(1, tag).message(9, plugin("hparams", data)), 0, SummaryWriter::kNow);
}

template <class Pairs>
std::set<std::string> names_of(const char* op, const char* what, const Pairs& pairs, const Loc& loc) {
    std::set<std::string> names;
    for (const auto& [name, value] : pairs) {
        check_text(op, what, name, loc);
        if (!names.insert(name).second) fail<ValueError>(loc, "{}: the {} {} comes twice", op, what, io::shown(name));
    }
    return names;
}

}  // namespace

void SummaryWriter::add_hparams(const std::vector<std::pair<std::string, HParam>>& hparam_dict,
                                const std::vector<std::pair<std::string, double>>& metric_dict,
                                const std::vector<std::pair<std::string, std::vector<HParam>>>& hparam_domain_discrete, TextViewArg run_name,
                                Loc loc) {
    const CallerScope caller(loc);
    const char* op = "add_hparams";
    Impl& impl = of_writer(impl_, op, loc);
    const std::set<std::string> names = names_of(op, "hyper-parameter", hparam_dict, loc);
    names_of(op, "metric", metric_dict, loc);
    for (const std::string& name : names_of(op, "domain", hparam_domain_discrete, loc)) {
        if (!names.contains(name)) fail<ValueError>(loc, "{}: a domain of {}, which is no hyper-parameter here", op, io::shown(name));
    }
    const std::string run = run_name.empty() ? fmt::format("{:.6f}", summary::now()) : std::string(run_name);
    check_text(op, "run's name", run, loc);

    Message experiment, start, end;
    for (const auto& [name, value] : hparam_dict) {
        Message info, entry;
        info.text(1, name).number(4, type_of(value));
        for (const auto& [of, values] : hparam_domain_discrete) {
            if (of != name) continue;
            Message list;
            for (const HParam& v : values) list.message(1, value_of(v));
            info.message(5, list);
        }
        experiment.message(4, info);
        start.message(1, entry.text(1, name).message(2, value_of(value)));
    }
    for (const auto& [name, value] : metric_dict) {
        Message metric, info;
        experiment.message(5, info.message(1, metric.text(2, name)));
    }
    const std::lock_guard lock(impl.mutex);
    summary::EventFile& file = impl.file(op, run, loc);
    file.add(op, hparams_event("_hparams_/experiment", 2, experiment), loc);
    file.add(op, hparams_event("_hparams_/session_start_info", 3, start), loc);
    file.add(op, hparams_event("_hparams_/session_end_info", 4, end.number(1, 1)), loc);  // STATUS_SUCCESS
    for (const auto& [name, value] : metric_dict) file.add(op, event_of(scalar(name, value), 0, kNow), loc);
}

// --- Embeddings: files that projector_config.pbtxt lists (plugins/projector: projector_config.proto, as text) ----------------------

namespace {

// While it lives no other FolderLock of this folder does, in any process. Does nothing if the file system has no locks.
class FolderLock {
 public:
    explicit FolderLock(const std::string& folder) : descriptor_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
        while (descriptor_ >= 0 && ::flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {}
    }
    ~FolderLock() {
        if (descriptor_ < 0) return;
        ::flock(descriptor_, LOCK_UN);  // a child that was forked meanwhile has the open file too, and would keep the lock
        ::close(descriptor_);
    }
    FolderLock(const FolderLock&) = delete;
    FolderLock& operator=(const FolderLock&) = delete;

 private:
    int descriptor_;
};

// Returns "" if there is no such file.
std::string contents_of(const std::string& path) {
    std::error_code error;
    if (!std::filesystem::is_regular_file(path, error)) return {};
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

// Escapes characters that a table cell cannot hold.
std::string cell(std::string_view text, bool tabs_are_columns) {
    std::string result;
    for (const char c : tapir::detail::utf8_text(text)) {
        switch (c) {
            case '\n': result += "\\n"; break;
            case '\r': result += "\\r"; break;
            case '\t': result += tabs_are_columns ? "\t" : "\\t"; break;
            default: result += c;
        }
    }
    return result;
}

std::string in_quotes(std::string_view text) {
    std::string result = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') result += '\\';
        result += c;
    }
    return result + '"';
}

std::string tsv(const Tensor& mat, const Loc& loc) {
    const std::vector<float> values = mat.to_vector<float>(loc);
    const auto columns = static_cast<std::size_t>(mat.size(1, loc));
    fmt::memory_buffer text;
    for (std::size_t i = 0; i < values.size(); ++i) {
        fmt::format_to(fmt::appender(text), "{}{}", values[i], (i + 1) % columns == 0 ? '\n' : '\t');
    }
    return fmt::to_string(text);
}

// Names the folder of a tag as torch.utils.tensorboard does.
std::string folder_name(std::string_view tag) {
    std::string name;
    for (const char c : tag) {
        name += c == '%' || c == '/' || c == '\\' ? fmt::format("%{:02x}", c) : std::string(1, c);
    }
    return name;
}

// Arranges images in a square: (N, C, H, W).
std::string sprite(const char* op, const Tensor& images, const Loc& loc) {
    const auto side = static_cast<std::int64_t>(std::ceil(std::sqrt(static_cast<double>(images.size(0, loc)))));
    summary::Pixels pixels = summary::pixels_of(op, images, "NCHW", side, loc);
    pixels.height = side * images.size(2, loc);
    pixels.bytes.resize(static_cast<std::size_t>(pixels.height * pixels.width) * static_cast<std::size_t>(pixels.channels));
    return summary::png(op, pixels, loc);
}

}  // namespace

void SummaryWriter::add_embedding(const Tensor& mat, const std::vector<std::string>& metadata, const Tensor& label_img, std::int64_t global_step,
                                  TextViewArg tag, const std::vector<std::string>& metadata_header, Loc loc) {
    const CallerScope caller(loc);
    const char* op = "add_embedding";
    Impl& impl = of_writer(impl_, op, loc);
    check_text(op, "tag", tag, loc);
    check_defined(op, "matrix", mat, loc);
    if (mat.dim() != 2 || mat.numel() == 0) fail<ShapeError>(loc, "{}: the points must be a matrix, one in each row, got shape {}", op, mat.shape());
    const std::int64_t points = mat.size(0);
    if (!metadata.empty() && static_cast<std::int64_t>(metadata.size()) != points) {
        fail<ShapeError>(loc, "{}: {} labels for {} points", op, metadata.size(), points);
    }
    if (!metadata_header.empty() && metadata.empty()) fail<ValueError>(loc, "{}: a header for labels, but no labels", op);
    const auto columns_of = [](const std::string& label) { return 1 + std::count(label.begin(), label.end(), '\t'); };
    for (const std::string& label : metadata) {
        if (!metadata_header.empty() && columns_of(label) != static_cast<std::ptrdiff_t>(metadata_header.size())) {
            fail<ValueError>(loc, "{}: the label {} has {} columns, the header {}", op, io::shown(label), columns_of(label), metadata_header.size());
        }
    }
    if (label_img.defined() && (label_img.dim() != 4 || label_img.size(0) != points)) {
        fail<ShapeError>(loc, "{}: the images of {} points must be (N, C, H, W), got shape {}", op, points, label_img.shape());
    }
    const NoGradScope pause;
    const std::string name = fmt::format("{:05}", global_step), below = name + '/' + folder_name(tag);
    std::string entry = fmt::format("embeddings {{\n  tensor_name: {}\n  tensor_path: {}\n", in_quotes(fmt::format("{}:{}", tag, name)),
                                    in_quotes(below + "/tensors.tsv"));
    std::string labels, pictures;
    if (!metadata.empty()) {
        const bool has_header = metadata_header.size() > 1;  // TensorBoard takes the first line of a single column for a label
        for (std::size_t i = 0; i < metadata_header.size() && has_header; ++i) {
            labels += cell(metadata_header[i], false) + (i + 1 < metadata_header.size() ? '\t' : '\n');
        }
        for (const std::string& label : metadata) labels += cell(label, !metadata_header.empty()) + '\n';
        entry += fmt::format("  metadata_path: {}\n", in_quotes(below + "/metadata.tsv"));
    }
    if (label_img.defined()) {
        pictures = sprite(op, label_img.to(cpu, loc), loc);
        entry += fmt::format("  sprite {{\n    image_path: {}\n    single_image_dim: {}\n    single_image_dim: {}\n  }}\n",
                             in_quotes(below + "/sprite.png"), label_img.size(3), label_img.size(2));
    }
    entry += "}\n";

    const std::lock_guard lock(impl.mutex);
    const std::string folder = impl.folder + '/' + below;
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    if (error) fail<FileError>(loc, "{}: {}: {}", op, folder, error.message());
    io::write_file(op, folder + "/tensors.tsv", tsv(mat, loc), loc);
    if (!labels.empty()) io::write_file(op, folder + "/metadata.tsv", labels, loc);
    if (!pictures.empty()) io::write_file(op, folder + "/sprite.png", pictures, loc);
    // Written last, so that the files it lists exist. Others may add to it: a forked process, a writer of the same folder.
    const std::string path = impl.folder + "/projector_config.pbtxt";
    const FolderLock alone(impl.folder);
    std::string config = contents_of(path);
    if (config.find(entry) != std::string::npos) return;
    if (!config.empty() && config.back() != '\n') config += '\n';
    io::write_file(op, path, config + entry, loc);
}

}  // namespace tapir::nn

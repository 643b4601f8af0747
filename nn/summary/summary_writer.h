// SummaryWriter: what a training says of itself, in files that TensorBoard shows. Names, argument order and files are those of
// torch.utils.tensorboard.
//
//     nn::SummaryWriter writer("runs/first");                       // then: tensorboard --logdir runs
//     for (std::int64_t step = 0; step < 1000; ++step) {
//         ...
//         writer.add_scalar("loss/train", loss, step);
//         writer.add_histogram("weight", layer.weight, step);
//     }
//     writer.add_images("test images", images);                     // (N, C, H, W)
//     writer.add_graph(model, images);
//
// Nothing is queued: each add_... hands its record to the system as a whole, so that whoever follows the file sees it at once, and a
// program that is killed has lost nothing. That costs a microsecond for a scalar, 3 ms for the histogram of a million float32. flush()
// and close() also wait for the disk.
//
// What is logged is not recorded on a tape. Threads may share a writer; a process that was forked begins files of its own. Names of tags with slashes are groups, "loss/train"; a tag that
// is empty or not UTF-8 is a ValueError. A failure to write is a FileError; the file ends with the last whole record then, and
// later ones may succeed. All errors begin with the caller's line.
//
// This header is included by its name: <tapir/nn/summary/summary_writer.h>.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapir/autograd/tape.h"
#include "tapir/core/arguments.h"
#include "tapir/core/tensor.h"
#include "tapir/nn/module.h"

namespace tapir {
class Graph;
}

namespace tapir::nn {

struct SummaryWriterOptions {
    std::string comment = {};  ///< what the default folder's name ends with
    /// Of a run that was resumed: TensorBoard forgets what was logged for this step and later ones.
    std::optional<std::int64_t> purge_step = {};
    std::string filename_suffix = {};  ///< of every event file
};

/// A hyper-parameter's value: a number, a bool or a text.
struct HParam {
    enum class Kind : std::uint8_t { number, boolean, text };

    template <class T>
        requires std::is_arithmetic_v<T>
    HParam(T value) : kind(std::is_same_v<T, bool> ? Kind::boolean : Kind::number), number(static_cast<double>(value)) {}  // NOLINT
    HParam(std::string value) : kind(Kind::text), text(std::move(value)) {}                                                // NOLINT
    HParam(const char* value, Loc loc = Loc::current()) : kind(Kind::text), text(TextArg(value, loc)) {}                   // NOLINT

    Kind kind;
    double number = 0;
    std::string text;
};

class SummaryWriter {
 public:
    static constexpr double kNow = -1;  ///< a walltime; others are seconds since 1970

    /// Makes the folder where there is none, and a new event file in it. Without a name the folder is runs/DATE_TIME_HOST and the
    /// comment. Throws FileError.
    explicit SummaryWriter(const TextArg& log_dir = {}, SummaryWriterOptions options = {}, Loc loc = Loc::current());
    ~SummaryWriter();
    SummaryWriter(SummaryWriter&&) noexcept;
    SummaryWriter& operator=(SummaryWriter&&) noexcept;

    /// A number, nan and infinity too; TensorBoard keeps float32. A tensor has one element (ShapeError).
    void add_scalar(TextViewArg tag, double scalar_value, std::int64_t global_step = 0, double walltime = kNow, Loc loc = Loc::current());
    void add_scalar(TextViewArg tag, const Tensor& scalar_value, std::int64_t global_step = 0, double walltime = kNow, Loc loc = Loc::current());
    /// Several curves in one chart: add_scalars("loss", {{"train", a}, {"test", b}}, step). Each is a run of its own, in the folder
    /// LOG_DIR/MAIN_TAG_TAG.
    void add_scalars(TextViewArg main_tag, const std::vector<std::pair<std::string, double>>& tag_scalar_dict, std::int64_t global_step = 0,
                     double walltime = kNow, Loc loc = Loc::current());
    /// Of the finite elements of a tensor of any shape and dtype, in PyTorch's bins="tensorflow"; with `bins` between these edges, which
    /// ascend (ValueError). TensorBoard makes histograms and distributions of it. Throws ValueError for an undefined tensor: a gradient
    /// before backward(), say.
    void add_histogram(TextViewArg tag, const Tensor& values, std::int64_t global_step = 0, const std::vector<double>& bins = {},
                       double walltime = kNow, Loc loc = Loc::current());
    /// uint8, or floating, 0 to 1; what is beyond becomes black or white, as nan does black. 1, 3 (RGB) or 4 channels (RGBA), in the
    /// order that dataformats names: "CHW", "HWC", "HW". Throws ShapeError, DTypeError (integers), ValueError, and FileError in a
    /// build without zlib.
    void add_image(TextViewArg tag, const Tensor& img_tensor, std::int64_t global_step = 0, double walltime = kNow, TextViewArg dataformats = "CHW",
                   Loc loc = Loc::current());
    /// The same of several images, which are shown in rows of eight.
    void add_images(TextViewArg tag, const Tensor& img_tensor, std::int64_t global_step = 0, double walltime = kNow, TextViewArg dataformats = "NCHW",
                    Loc loc = Loc::current());
    /// Markdown. What is not UTF-8 becomes U+FFFD.
    void add_text(TextViewArg tag, TextViewArg text_string, std::int64_t global_step = 0, double walltime = kNow, Loc loc = Loc::current());

    /// The tape's records as a graph: boxes of modules, shapes at the edges, lines of the program among the attributes. It may be the tape
    /// of a training step, before or after its backward pass; of one tree rather than of a batch of them.
    void add_graph(const Tape& tape, Loc loc = Loc::current());
    /// A graph that was traced: writer.add_graph(trace(...)). Sizes of named dimensions are shown as "?", their names are among the attributes.
    void add_graph(const Graph& graph, Loc loc = Loc::current());
    /// What model(x) or model.forward(x) records. It runs here, in eval mode, and on no tape of yours.
    template <class M>
        requires std::is_base_of_v<Module, M>
    void add_graph(M& model, In input_to_model) {
        add_graph_of(model, input_to_model, [](Module& module, In x) {
            auto& m = static_cast<M&>(module);
            // As an In, it has the caller's line with it. Where there are several of the name, or a template, it is a Tensor.
            if constexpr (requires {
                              &M::operator();
                              m(x);
                          }) {
                (void)m(x);
            } else if constexpr (requires { m(x.tensor); }) {
                (void)m(x.tensor);
            } else if constexpr (requires {
                                     &M::forward;
                                     m.forward(x);
                                 }) {
                (void)m.forward(x);
            } else {
                (void)m.forward(x.tensor);
            }
        });
    }

    /// Hyper-parameters and what came of them: add_hparams({{"lr", 0.1}, {"optimizer", "adam"}}, {{"accuracy", 0.9}}), at the end of a
    /// run. hparam_domain_discrete has the values that some of them may take. They are a run of their own, in the folder LOG_DIR/RUN_NAME,
    /// or one named by the time. Throws ValueError for a name that comes twice.
    void add_hparams(const std::vector<std::pair<std::string, HParam>>& hparam_dict, const std::vector<std::pair<std::string, double>>& metric_dict,
                     const std::vector<std::pair<std::string, std::vector<HParam>>>& hparam_domain_discrete = {}, TextViewArg run_name = {},
                     Loc loc = Loc::current());
    /// Points for TensorBoard's projector: a matrix, a row a point. metadata: a label a point; with metadata_header, labels of as many
    /// columns, with tabs between. label_img: (N, C, H, W), as add_images(). Throws ShapeError, ValueError, FileError.
    void add_embedding(const Tensor& mat, const std::vector<std::string>& metadata = {}, const Tensor& label_img = {}, std::int64_t global_step = 0,
                       TextViewArg tag = "default", const std::vector<std::string>& metadata_header = {}, Loc loc = Loc::current());

    /// Waits until the disk has all.
    void flush(Loc loc = Loc::current());
    /// The same, and closes the files. What is added later begins new ones.
    void close(Loc loc = Loc::current());
    const std::string& get_logdir() const noexcept;

 private:
    struct Impl;
    void add_graph_of(Module& model, In x, void (*run)(Module& model, In x));
    std::unique_ptr<Impl> impl_;
};

}  // namespace tapir::nn

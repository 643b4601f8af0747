// SummaryWriter: logs a training run to files that TensorBoard shows. Names, argument order and files are those of
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
// Nothing is queued: each add_... hands its whole record to the system, so that readers of the file see it at once, and a
// killed program loses nothing. That costs a microsecond for a scalar, 3 ms for the histogram of a million float32. flush()
// and close() also wait for the disk.
//
// Logging is not recorded on a tape. Threads may share a writer; a forked process begins its own files. Slashes in tags make groups: "loss/train".
// A tag that is empty or not UTF-8 throws ValueError. A failed write throws FileError; then the file ends with the last whole record, and
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
    std::string comment = {};  ///< the end of the default folder's name
    /// For a run that was resumed: TensorBoard forgets what was logged for this step and later ones.
    std::optional<std::int64_t> purge_step = {};
    std::string filename_suffix = {};  ///< the end of every event file's name
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
    static constexpr double kNow = -1;  ///< default walltime, the current time; others are seconds since 1970

    /// Makes the folder if there is none, and a new event file in it. Without a name the folder is runs/DATE_TIME_HOST and the
    /// comment. Throws FileError.
    explicit SummaryWriter(const TextArg& log_dir = {}, SummaryWriterOptions options = {}, Loc loc = Loc::current());
    ~SummaryWriter();
    SummaryWriter(SummaryWriter&&) noexcept;
    SummaryWriter& operator=(SummaryWriter&&) noexcept;

    /// Logs a number; it may be nan or infinite. TensorBoard keeps float32. A tensor must have one element (ShapeError).
    void add_scalar(TextViewArg tag, double scalar_value, std::int64_t global_step = 0, double walltime = kNow, Loc loc = Loc::current());
    void add_scalar(TextViewArg tag, const Tensor& scalar_value, std::int64_t global_step = 0, double walltime = kNow, Loc loc = Loc::current());
    /// Logs several curves in one chart: add_scalars("loss", {{"train", a}, {"test", b}}, step). Each is a run of its own, in the folder
    /// LOG_DIR/MAIN_TAG_TAG.
    void add_scalars(TextViewArg main_tag, const std::vector<std::pair<std::string, double>>& tag_scalar_dict, std::int64_t global_step = 0,
                     double walltime = kNow, Loc loc = Loc::current());
    /// Logs the finite elements of a tensor of any shape and dtype, in PyTorch's bins="tensorflow", or between the edges `bins`, which must
    /// ascend (ValueError). TensorBoard makes histograms and distributions of it. Throws ValueError for an undefined tensor, such as a gradient
    /// before backward().
    void add_histogram(TextViewArg tag, const Tensor& values, std::int64_t global_step = 0, const std::vector<double>& bins = {},
                       double walltime = kNow, Loc loc = Loc::current());
    /// Logs an image: uint8, or floating from 0 to 1; values beyond become black or white, nan becomes black. It has 1, 3 (RGB) or 4 channels
    /// (RGBA), in the order that dataformats names: "CHW", "HWC", "HW". Throws ShapeError, DTypeError (integers), ValueError, and FileError in a
    /// build without zlib.
    void add_image(TextViewArg tag, const Tensor& img_tensor, std::int64_t global_step = 0, double walltime = kNow, TextViewArg dataformats = "CHW",
                   Loc loc = Loc::current());
    /// Logs several images, which are shown in rows of eight.
    void add_images(TextViewArg tag, const Tensor& img_tensor, std::int64_t global_step = 0, double walltime = kNow, TextViewArg dataformats = "NCHW",
                    Loc loc = Loc::current());
    /// Logs Markdown. Bytes that are not UTF-8 become U+FFFD.
    void add_text(TextViewArg tag, TextViewArg text_string, std::int64_t global_step = 0, double walltime = kNow, Loc loc = Loc::current());

    /// Logs the tape's records as a graph: boxes of modules, shapes at the edges, lines of the program among the attributes. It may be the tape
    /// of a training step, before or after its backward pass; preferably of one tree rather than of a batch of them.
    void add_graph(const Tape& tape, Loc loc = Loc::current());
    /// Logs a traced graph: writer.add_graph(trace(...)). Sizes of named dimensions are shown as "?"; their names are among the attributes.
    void add_graph(const Graph& graph, Loc loc = Loc::current());
    /// Logs the ops that model(x) or model.forward(x) records. The model runs here, in eval mode, and on no tape of yours.
    template <class M>
        requires std::is_base_of_v<Module, M>
    void add_graph(M& model, In input_to_model) {
        add_graph_of(model, input_to_model, [](Module& module, In x) {
            auto& m = static_cast<M&>(module);
            // An In carries the caller's line. If the name is overloaded, or a template, a Tensor is passed.
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

    /// Logs hyper-parameters and their results: add_hparams({{"lr", 0.1}, {"optimizer", "adam"}}, {{"accuracy", 0.9}}), at the end of a
    /// run. hparam_domain_discrete lists the values that some of them may take. They form a run of their own, in the folder LOG_DIR/RUN_NAME,
    /// or one named by the time. Throws ValueError for a name that occurs twice.
    void add_hparams(const std::vector<std::pair<std::string, HParam>>& hparam_dict, const std::vector<std::pair<std::string, double>>& metric_dict,
                     const std::vector<std::pair<std::string, std::vector<HParam>>>& hparam_domain_discrete = {}, TextViewArg run_name = {},
                     Loc loc = Loc::current());
    /// Logs points for TensorBoard's projector: a matrix with a row for each point. metadata: a label for each point; with metadata_header,
    /// one label for each column, separated by tabs. label_img: (N, C, H, W), as add_images(). Throws ShapeError, ValueError, FileError.
    void add_embedding(const Tensor& mat, const std::vector<std::string>& metadata = {}, const Tensor& label_img = {}, std::int64_t global_step = 0,
                       TextViewArg tag = "default", const std::vector<std::string>& metadata_header = {}, Loc loc = Loc::current());

    /// Waits until all data is on the disk.
    void flush(Loc loc = Loc::current());
    /// Flushes and closes the files. What is added later begins new files.
    void close(Loc loc = Loc::current());
    const std::string& get_logdir() const noexcept;

 private:
    struct Impl;
    void add_graph_of(Module& model, In x, void (*run)(Module& model, In x));
    std::unique_ptr<Impl> impl_;
};

}  // namespace tapir::nn

// Backward on devices with streams. See Note [Streams in backward].
#include <algorithm>

#include "tapir/autograd/backward_impl.h"
#include "tapir/autograd/streams_impl.h"
#include "tapir/core/device_impl.h"

namespace tapir {

BackwardStreams::BackwardStreams(const Log& log) : log_(log) {
    if (log.stream_runs.empty()) return;
    const auto is_current = [](const Log::StreamRun& run) {
        return device_api::current_stream(device_api::device_of(run.stream).index) == run.stream;
    };
    several_ = !std::all_of(log.stream_runs.begin(), log.stream_runs.end(), is_current);
    if (!several_) return;
    for (int device = 0; device < device_api::count(); ++device) callers_.push_back(device_api::current_stream(device));
}

BackwardStreams::~BackwardStreams() {
    if (!several_) return;
    for (void* caller : callers_) device_api::set_current_stream(caller);
    for (void* used : used_) {
        try {
            device_api::order_after(callers_[device_api::device_of(used).index], used);
        } catch (const Error&) {  // after a fatal error of the device, which the next wait reports
        }
    }
}

void BackwardStreams::follow(std::uint32_t record) {
    const auto& runs = log_.stream_runs;
    const auto next =
        std::upper_bound(runs.begin(), runs.end(), record, [](std::uint32_t index, const Log::StreamRun& run) { return index < run.first; });
    if (next == runs.begin()) return;
    void* stream = (next - 1)->stream;
    if (device_api::current_stream(device_api::device_of(stream).index) == stream) return;
    device_api::set_current_stream(stream);
    if (std::find(used_.begin(), used_.end(), stream) == used_.end()) used_.push_back(stream);
}

void BackwardStreams::bring(Tensor& gradient) {
    if (!gradient.defined() || is_written_here(gradient)) return;
    wait_for_writer(gradient);
    gradient = gradient_ops::dense_copy(gradient);
}

bool is_written_here(const Tensor& gradient) noexcept {
    const TensorImpl* impl = gradient.impl();
    if (impl->device.type == DeviceType::cpu || !impl->storage->stream) return true;
    return impl->storage->stream == device_api::current_stream(impl->device.index);
}

void wait_for_writer(const Tensor& gradient) {
    if (is_written_here(gradient)) return;
    const TensorImpl* impl = gradient.impl();
    device_api::order_after(device_api::current_stream(impl->device.index), impl->storage->stream);
    device_api::select(impl->device);
    device_api::used_here(*impl->storage);
}

}  // namespace tapir

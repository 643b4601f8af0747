// Device: where a tensor's bytes are. For streams and the rest that belongs to a device see tapir/core/stream.h.
#pragma once

#include <cstdint>

namespace tapir {

enum class DeviceType : std::uint8_t { cpu, cuda };
inline constexpr int kDeviceTypes = 2;

/// A device: `cpu`, or `cuda(index)`.
struct Device {
    static constexpr std::uint8_t kNone = 255;  // invalid numbers become this; no machine has as many

    DeviceType type = DeviceType::cpu;
    std::uint8_t index = 0;
    bool operator==(const Device&) const = default;
};

inline constexpr Device cpu{};

/// `cuda` is the first CUDA device, `cuda(i)` is number i: x.to(cuda), zeros({2}, cuda(1)).
struct CudaDevice : Device {
    constexpr Device operator()(int number = 0) const noexcept {
        const bool can_be = number >= 0 && number < Device::kNone;
        return {DeviceType::cuda, can_be ? static_cast<std::uint8_t>(number) : Device::kNone};
    }
};
inline constexpr CudaDevice cuda{{DeviceType::cuda, 0}};

}  // namespace tapir

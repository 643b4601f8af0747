// Where a tensor's bytes are.
#pragma once

#include <cstdint>

namespace tapir {

enum class DeviceType : std::uint8_t { cpu, cuda };
inline constexpr int kDeviceTypes = 2;

/// A device: `cpu`, or `cuda(index)`.
struct Device {
    DeviceType type = DeviceType::cpu;
    std::uint8_t index = 0;
    bool operator==(const Device&) const = default;
};

inline constexpr Device cpu{};
constexpr Device cuda(int index = 0) noexcept { return {DeviceType::cuda, static_cast<std::uint8_t>(index)}; }

}  // namespace tapir

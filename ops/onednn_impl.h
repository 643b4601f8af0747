// Shared code of the files that call oneDNN. Only for builds that have it.
#pragma once

#include <oneapi/dnnl/dnnl.hpp>

namespace tapir::onednn {

inline dnnl::engine& engine() {
    static dnnl::engine made(dnnl::engine::kind::cpu, 0);
    return made;
}

inline dnnl::memory around(const dnnl::memory::desc& desc, const void* data) { return {desc, engine(), const_cast<void*>(data)}; }

}  // namespace tapir::onednn

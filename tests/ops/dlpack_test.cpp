// DLPack: arrays made by hand come in, tensors go out, and the deleter runs once.
#include <memory>

#include "../fails.h"
#include "../nn/check.h"
#include "tapir/ops/make/dlpack.h"

// dlpack.h's own structs, as that header (1.0) declares them: what programs that include it pass.
typedef struct {
    uint32_t major;
    uint32_t minor;
} DLPackVersion;
typedef enum : int32_t { kDLCPU = 1, kDLCUDA = 2 } DLDeviceType;
typedef struct {
    DLDeviceType device_type;
    int32_t device_id;
} DLDevice;
typedef struct {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
} DLDataType;
typedef struct {
    void* data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t* shape;
    int64_t* strides;
    uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void* manager_ctx;
    void (*deleter)(struct DLManagedTensor* self);
} DLManagedTensor;
struct DLManagedTensorVersioned {
    DLPackVersion version;
    void* manager_ctx;
    void (*deleter)(struct DLManagedTensorVersioned* self);
    uint64_t flags;
    DLTensor dl_tensor;
};
static_assert(sizeof(DLTensor) == sizeof(tapir::dlpack::Array));
static_assert(offsetof(DLTensor, shape) == offsetof(tapir::dlpack::Array, shape));
static_assert(offsetof(DLTensor, dtype) == offsetof(tapir::dlpack::Array, dtype));
static_assert(offsetof(DLManagedTensorVersioned, dl_tensor) == offsetof(tapir::dlpack::ManagedTensorVersioned, dl_tensor));
static_assert(offsetof(DLManagedTensorVersioned, flags) == offsetof(tapir::dlpack::ManagedTensorVersioned, flags));

using namespace tapir;

namespace {

template <class Managed>
struct Made {
    alignas(16) float data[24] = {};
    std::int64_t shape[9] = {2, 3, 1, 1, 1, 1, 1, 1, 1}, strides[9] = {3, 1};
    int deleted = 0;
    Managed managed{};

    Made() {
        for (int i = 0; i < 24; ++i) data[i] = static_cast<float>(i);
        auto& t = managed.dl_tensor;
        t.data = data;
        t.device.device_type = static_cast<decltype(t.device.device_type)>(1);
        t.ndim = 2;
        t.dtype = {2, 32, 1};
        t.shape = shape;
        t.strides = strides;
        managed.manager_ctx = this;
        managed.deleter = [](Managed* self) { ++static_cast<Made*>(self->manager_ctx)->deleted; };
        if constexpr (requires { managed.version; }) managed.version = {1, 0};
    }
};

using Ints = std::vector<int>;

}  // namespace

TEMPLATE_TEST_CASE("an array comes in without a copy and is given back once", "", dlpack::ManagedTensor, dlpack::ManagedTensorVersioned,
                   DLManagedTensor, DLManagedTensorVersioned) {
    Made<TestType> made;
    made.strides[0] = 6;
    made.strides[1] = 2;
    made.managed.dl_tensor.byte_offset = 4;
    {
        Tensor view;
        {
            Tensor x = from_dlpack(&made.managed);
            CHECK(x.raw_data() == made.data + 1);
            CHECK(x.shape() == Shape{2, 3});
            CHECK(x.strides() == Shape{6, 2});
            CHECK(x.dtype() == float32);
            CHECK(x.to_vector<int>() == Ints{1, 3, 5, 7, 9, 11});
            x.fill_(-1);
            CHECK(made.data[11] == -1);
            CHECK(made.data[10] == 10);
            view = x[1];
        }
        CHECK(made.deleted == 0);
        CHECK(view.to_vector<int>() == Ints{-1, -1, -1});
    }
    CHECK(made.deleted == 1);

    made.managed.dl_tensor.strides = nullptr;
    made.managed.dl_tensor.byte_offset = 0;
    CHECK(from_dlpack(&made.managed).strides() == Shape{3, 1});
    CHECK(made.deleted == 2);
    made.managed.deleter = nullptr;
    from_dlpack(&made.managed);
    CHECK(made.deleted == 2);
}

TEST_CASE("strides that do not matter may be anything") {
    Made<dlpack::ManagedTensor> made;
    made.shape[0] = 1;
    made.strides[0] = -77;
    CHECK(from_dlpack(&made.managed).is_contiguous());
    made.shape[1] = 0;
    made.strides[1] = -3;
    made.managed.dl_tensor.data = nullptr;
    CHECK(from_dlpack(&made.managed).shape() == Shape{1, 0});
    made.managed.dl_tensor.ndim = 0;
    made.managed.dl_tensor.data = made.data + 7;
    made.managed.dl_tensor.shape = nullptr;
    CHECK(from_dlpack(&made.managed).item() == 7);
    CHECK(made.deleted == 3);
}

TEST_CASE("a read-only array is copied and given back at once") {
    Made<dlpack::ManagedTensorVersioned> made;
    made.managed.flags = dlpack::kReadOnly;
    const Tensor x = from_dlpack(&made.managed);
    CHECK(made.deleted == 1);
    CHECK(x.raw_data() != made.data);
    CHECK(x.to_vector<int>() == Ints{0, 1, 2, 3, 4, 5});
}

TEST_CASE("what cannot come in stays the caller's") {
    const auto fresh = [](auto change) {
        auto made = std::make_unique<Made<dlpack::ManagedTensorVersioned>>();
        change(*made);
        return made;
    };
    const auto kept = [](const auto& made) { CHECK(made->deleted == 0); };
    const auto a = fresh([](auto& m) { m.managed.dl_tensor.dtype = {5, 64, 1}; });
    FAILS_IN(DTypeError, "from_dlpack: ", "code 5, 64 bits and 1 lanes", from_dlpack(&a->managed));
    const auto b = fresh([](auto& m) { m.managed.dl_tensor.dtype.lanes = 4; });
    FAILS(DTypeError, "4 lanes", from_dlpack(&b->managed));
    const auto c = fresh([](auto& m) { m.managed.dl_tensor.device.device_type = 7; });
    FAILS(DeviceError, "type 7", from_dlpack(&c->managed));
    const auto d = fresh([](auto& m) { m.managed.dl_tensor.device = {2, 100}; });
    FAILS(DeviceError, "cuda:100", from_dlpack(&d->managed));
    const auto e = fresh([](auto& m) { m.managed.dl_tensor.ndim = 9; });
    FAILS(ShapeError, "9 dimensions", from_dlpack(&e->managed));
    const auto f = fresh([](auto& m) { m.managed.dl_tensor.ndim = -1; });
    FAILS(ValueError, "the number of dimensions is negative: -1", from_dlpack(&f->managed));
    const auto g = fresh([](auto& m) { m.shape[1] = -3; });
    FAILS(ValueError, "a size is negative", from_dlpack(&g->managed));
    const auto h = fresh([](auto& m) { m.strides[1] = -1; });
    FAILS(ValueError, "stride -1 of dimension 1", from_dlpack(&h->managed));
    const auto i = fresh([](auto& m) { m.managed.dl_tensor.data = nullptr; });
    FAILS(ValueError, "data is null", from_dlpack(&i->managed));
    const auto j = fresh([](auto& m) { m.managed.dl_tensor.shape = nullptr; });
    FAILS(ValueError, "shape is null", from_dlpack(&j->managed));
    const auto k = fresh([](auto& m) { m.managed.dl_tensor.byte_offset = 2; });
    FAILS(ValueError, "not aligned", from_dlpack(&k->managed));
    const auto l = fresh([](auto& m) { m.managed.version.major = 2; });
    FAILS(ValueError, "DLPack 2.0", from_dlpack(&l->managed));
    const auto n = fresh([](auto& m) { m.shape[0] = m.shape[1] = std::int64_t{1} << 40; });
    FAILS(ValueError, "larger than any memory", from_dlpack(&n->managed));
    const auto o = fresh([](auto& m) { m.strides[0] = INT64_MAX; });
    FAILS(ValueError, "larger than any memory", from_dlpack(&o->managed));
    for (const auto* made : {&a, &b, &c, &d, &e, &f, &g, &h, &i, &j, &k, &l, &n, &o}) kept(*made);
    FAILS(ValueError, "null", from_dlpack(static_cast<dlpack::ManagedTensor*>(nullptr)));
}

TEST_CASE("a tensor goes out with its strides, and lives until it is given back") {
    const MemoryStats before = memory_stats();
    {
        Tensor x = arange(12, float32).reshape({3, 4});
        const Tensor columns = x.t().narrow(0, 1, 2);
        dlpack::ManagedTensor* out = to_dlpack(columns);
        DLManagedTensorVersioned* newer = to_dlpack<DLManagedTensorVersioned>(columns);
        x = Tensor();
        CHECK(out->dl_tensor.data == columns.raw_data());
        CHECK(out->dl_tensor.ndim == 2);
        CHECK(Shape(out->dl_tensor.shape, 2) == Shape{2, 3});
        CHECK(Shape(out->dl_tensor.strides, 2) == Shape{1, 4});
        CHECK(out->dl_tensor.device.device_type == 1);
        CHECK(newer->version.major == 1);
        CHECK(newer->flags == 0);
        CHECK(newer->dl_tensor.dtype.bits == 32);
        newer->deleter(newer);
        Tensor back = from_dlpack(out);  // takes it over
        CHECK(back.to_vector<int>() == Ints{1, 5, 9, 2, 6, 10});
        back[0].fill_(0);
        CHECK(columns.to_vector<int>() == Ints{0, 0, 0, 2, 6, 10});
    }
    CHECK(memory_stats().live_bytes == before.live_bytes);
    const Tensor w = ones({2}).requires_grad_();
    FAILS(ValueError, "requires a gradient", to_dlpack(w));
    FAILS(ValueError, "undefined", to_dlpack(Tensor()));
    dlpack::ManagedTensor* detached = to_dlpack(w.detach());
    detached->deleter(detached);
}

TEST_CASE("every dtype goes out and comes back") {
    for (const DType dtype : {float32, float64, float16, bfloat16, int32, int64, uint8, bool_}) {
        const Tensor x = tensor({1, 0, 1}).to(dtype);
        dlpack::ManagedTensorVersioned* out = to_dlpack<dlpack::ManagedTensorVersioned>(x);
        CHECK(out->dl_tensor.dtype.bits == 8 * itemsize(dtype));
        const Tensor back = from_dlpack(out);
        CHECK(back.dtype() == dtype);
        CHECK(back.to_vector<int>() == Ints{1, 0, 1});
        CHECK(back.raw_data() == x.raw_data());
    }
}

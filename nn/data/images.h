// Reads image files: IDX (MNIST and similar) and CIFAR-10's binary form. Files that end in .gz are unpacked.
//
//     const auto train = data::mnist("/usr/share/datasets/fashion-mnist");
//     data::DataLoader loader(train, {.batch_size = 64, .shuffle = true});
//     for (auto& [images, labels] : loader) model(images.to(float32) / 255);
#pragma once

#include <string>
#include <vector>

#include "tapir/core/arguments.h"
#include "tapir/core/tensor.h"
#include "tapir/nn/data/dataset.h"

namespace tapir::data {

/// Reads an array in the IDX format (http://yann.lecun.com/exdb/mnist): uint8, int32, float32 or float64 as the file has it; its signed
/// bytes and 16-bit integers become int32. Throws FileError.
Tensor read_idx(const TextArg& path, Loc loc = Loc::current());

/// Returns the images, uint8 (60000, 1, 28, 28) or the number and size that the files have, and labels, int64 (60000,), of a folder with
/// train-images-idx3-ubyte and train-labels-idx1-ubyte, or t10k-... if train is false, with or without .gz. Throws FileError.
TensorDataset<Tensor, Tensor> mnist(const TextArg& folder, bool train = true, Loc loc = Loc::current());

/// Reads one file of CIFAR-10: records of a label and 3 x 32 x 32 bytes. Images uint8 (N, 3, 32, 32), labels int64 (N,). Throws FileError.
TensorDataset<Tensor, Tensor> read_cifar10(const TextArg& path, Loc loc = Loc::current());

/// Reads data_batch_1.bin to data_batch_5.bin of a folder, or test_batch.bin. Throws FileError.
TensorDataset<Tensor, Tensor> cifar10(const TextArg& folder, bool train = true, Loc loc = Loc::current());

}  // namespace tapir::data

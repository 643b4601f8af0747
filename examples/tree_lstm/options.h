// The program's command line.
#pragma once

#include <tapir/core/device.h>

#include <cstdint>
#include <optional>
#include <string>

namespace tree_lstm {

struct Options {
    std::string data;  ///< folder of train.txt, dev.txt, test.txt; empty: ListOps
    int trees = 20'000;
    int test_trees = 1'000;  ///< and as many to choose the epoch by
    int max_depth = 5;
    int max_length = 40;
    int epochs = 0;     ///< 0: the data set's default
    int hidden = 0;     ///< likewise
    int embedding = 0;  ///< 0: as hidden
    int batch = 25;
    std::optional<bool> together;  ///< the trees of a step are computed at the same time, by batch()
    bool report = false;           ///< say at the end what batch() computed together
    std::string optimizer;         ///< empty: the data set's default
    double lr = 0;
    std::string lr_decay;  ///< "linear" to 0 over all epochs, or "none"; empty: the data set's default
    double embedding_lr = -1;
    double dropout = -1;
    double weight_decay = -1;
    std::uint64_t seed = 1;
    int threads = 1;
    tapir::Device device;  ///< where model, data and training are
    std::string glove;
    std::string save;
    std::string resume;
    std::string log_dir;
    std::string drawing = "trees.svg";
    int drawn = 6;
};

/// Reads the command line; prints help or what is wrong with it and ends the program where that is asked for.
Options parse_options(int argc, char** argv);

}  // namespace tree_lstm

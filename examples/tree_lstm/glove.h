// Reads pretrained word vectors in GloVe's text format (Pennington et al. 2014), `word v1 v2 ... vD` a line, for the
// words of a vocabulary. The header line of word2vec's text format (`count dim`) is recognised. The file is streamed:
// memory is taken for the vocabulary's words only.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "dataset.h"
#include "text_file.h"

namespace tree_lstm {

struct WordVectors {
    int dim = 0;
    std::vector<float> rows;  ///< (vocabulary size, dim), row by row; zero where a word was not found
    std::vector<bool> found;  ///< for each row of the vocabulary
    int found_count = 0;

    std::span<const float> row(int id) const {
        return std::span(rows).subspan(static_cast<std::size_t>(id) * static_cast<std::size_t>(dim), static_cast<std::size_t>(dim));
    }
};

/// Called now and then with the bytes read so far and the size of the file (0 when not known), and once at the end.
using ReadProgress = std::function<void(std::uint64_t bytes, std::uint64_t total)>;

/// A word takes the vector of the same spelling, else that of its lower-case form (some GloVe files are lower-case
/// only); of several lines for one word the first counts. Throws DataError on a line with the wrong number of values,
/// on a value that is not a finite float (checked for the words taken), and when dim > 0 differs from the file's.
WordVectors read_glove(const std::filesystem::path& file, const Vocabulary& vocabulary, int dim = 0, const ReadProgress& progress = {});

}  // namespace tree_lstm

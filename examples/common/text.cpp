#include "text.h"

#include <tapir/ops/make/make.h>
#include <tapir/ops/random/random.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <vector>

namespace show {

Text::Text(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    alphabet.assign(std::istreambuf_iterator<char>(file), {});
    if (alphabet.empty()) throw std::runtime_error(path + ": cannot be read, or is empty");
    const std::string all = alphabet;
    std::sort(alphabet.begin(), alphabet.end());
    alphabet.erase(std::unique(alphabet.begin(), alphabet.end()), alphabet.end());
    std::vector<std::int64_t> numbers;
    for (const char c : all) numbers.push_back(std::lower_bound(alphabet.begin(), alphabet.end(), c) - alphabet.begin());
    codes = tapir::tensor(numbers);
}

}  // namespace show

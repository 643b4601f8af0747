// ListOps (Nangia & Bowman 2018): nested list operations over digits, whose value (0-9) is the class of the tree. Data
// that needs no download, is made in a moment from a seed, and cannot be solved without following the tree.
//
//     [MAX 2 9 [MIN 4 7 ] 0 ]      as a tree:   ( ( ( ( ( [MAX 2 ) 9 ) ( ( ( [MIN 4 ) 7 ) ] ) ) 0 ) ] )
//
// An operator takes its arguments one at a time from the left, and `]` completes it. Labels: a digit has its own value,
// a completed expression `( ... ] )` has its value, and the root is one. Operators, `]` and partial applications such
// as
// `( [MAX 2 )` have none (kNoLabel).
//
// MIN, MAX and SM (sum modulo 10) are plain; MED is the median, for an even count the mean of the two middle values
// rounded down, as the authors' script does (`int(np.median(...))`, make_data.py in github.com/nyu-mll/spinn).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "dataset.h"
#include "text_file.h"
#include "tree.h"

namespace tree_lstm {

struct ListOpsOptions {
    int train = 20'000;
    int dev = 0;
    int test = 2'000;
    int max_depth = 20;    ///< operators nested in one another, the root counted
    int max_args = 5;      ///< an operator takes 2 to max_args arguments, each count as likely
    int max_length = 100;  ///< tokens (operators, digits, `]`); longer expressions are thrown away, as the authors do
    std::uint64_t seed = 0;
};

/// The same options make the same trees on every machine. No expression occurs twice, in one split or in two. The root
/// is an operator; below it each argument is an operator with p = 0.25 (a digit at the maximum depth). Tree::line()
/// counts from 1 within a split. Throws std::invalid_argument when the options leave too few distinct expressions.
Dataset make_listops(const ListOpsOptions& options = {});

/// The 15 tokens after the unknown word: digits (rows 1-10), operators MIN MAX MED SM (11-14) and `]` (15).
Vocabulary listops_vocabulary();

/// `( ( ( [MAX 2 ) 9 ) ] )`. Works for any tree: words and brackets, no labels.
std::string to_brackets(const Tree& tree);

/// Reads what to_brackets() writes, and computes the labels. Throws DataError.
Tree parse_listops(std::string_view text, const Source& source = {});

/// The authors' file format, a line for each tree: value, tab, brackets. Reading checks the value where there is one,
/// skips blank lines, and throws DataError at the first thing that is not ListOps.
void write_listops(const std::filesystem::path& file, const std::vector<Tree>& trees);
std::vector<Tree> read_listops(const std::filesystem::path& file);

}  // namespace tree_lstm

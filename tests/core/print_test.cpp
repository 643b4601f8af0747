// Printing. The expected texts are NumPy 2.4's, of numpy.array2string() with precision=4 and linewidth=80 unless given.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <sstream>

#include "tapir/autograd/tape.h"
#include "tapir/core/format.h"
#include "tapir/ops/elementwise/elementwise.h"
#include "tapir/ops/make/make.h"
#include "tapir/ops/view/view.h"

using namespace tapir;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

struct Case {
    Tensor tensor;
    PrintOptions options;
    const char* text;
};

struct OptionsScope {
    PrintOptions before = print_options();
    ~OptionsScope() { set_print_options(before); }
};

}  // namespace

TEST_CASE("a tensor is printed as NumPy prints it") {
    const Case cases[] = {
        {tensor({1.0, 2.0, 3.5}), {}, "[1.  2.  3.5]"},
        {tensor({{1.0, 2.25}, {-3.0, 4.0}}),
         {},
         R"([[ 1.    2.25]
 [-3.    4.  ]])"},
        {tensor({0.1, 0.2, 0.3}), {}, "[0.1 0.2 0.3]"},
        {tensor({0.1, 0.2, 0.3}, float64), {}, "[0.1 0.2 0.3]"},
        {tensor({1.0 / 3, 2.0 / 3, 100.0}), {}, "[  0.3333   0.6667 100.    ]"},
        {tensor({1.0 / 3, 2.0 / 3}, float16), {}, "[0.3333 0.6665]"},
        {tensor({0.1, 1.0, 2.5}, float16), {}, "[0.1 1.  2.5]"},
        {tensor({999.0, 1.0}, float16), {}, "[999.   1.]"},
        {tensor({1000.0, 1.0}, float16), {}, "[1.e+03 1.e+00]"},
        {tensor({65504.0, 6e-8}, float16), {}, "[6.55e+04 5.96e-08]"},
        {tensor({0.00012, 0.00025}), {}, "[0.0001 0.0003]"},
        {tensor({0.00009, 0.00025}), {}, "[9.0e-05 2.5e-04]"},
        {tensor({0.0001, 0.01}), {}, "[0.0001 0.01  ]"},
        {tensor({1000.0, 1.0}), {}, "[1000.    1.]"},
        {tensor({1001.0, 1.0}), {}, "[1.001e+03 1.000e+00]"},
        {tensor({999999.0, 99999.5}), {}, "[999999.   99999.5]"},
        {tensor({1000000.0, 99999.5}), {}, "[1.e+06 1.e+05]"},
        {tensor({1e7, 5e7}, float64), {}, "[10000000. 50000000.]"},
        {tensor({1e8, 5e7}, float64), {}, "[1.e+08 5.e+07]"},
        {tensor({1e10, 1.0}), {}, "[1.e+10 1.e+00]"},
        {tensor({1e-10, 1.0}), {}, "[1.e-10 1.e+00]"},
        {tensor({1e100, 1.0}, float64), {}, "[1.e+100 1.e+000]"},
        {tensor({1e-300, -1.5}, float64), {}, "[ 1.0e-300 -1.5e+000]"},
        {tensor({1.2345678e20, -9.99999e-5}), {}, "[ 1.2346e+20 -1.0000e-04]"},
        {tensor({3.4028235e38, 1e-45}), {}, "[3.4028e+38 1.4013e-45]"},
        {tensor({0.0, -0.0}), {}, "[ 0. -0.]"},
        {tensor({-0.0, 1e-9}), {}, "[-0.e+00  1.e-09]"},
        {tensor({1.0, std::nan("")}), {}, "[ 1. nan]"},
        {tensor({1.0, inf, -inf, std::nan("")}), {}, "[  1.  inf -inf  nan]"},
        {tensor({inf, inf}), {}, "[inf inf]"},
        {tensor({-inf, inf}), {}, "[-inf  inf]"},
        {tensor({std::nan("")}), {}, "[nan]"},
        {tensor({1e10, inf, 0.5}), {}, "[1.e+10    inf 5.e-01]"},
        {tensor({1e-10, std::nan(""), -2.0}), {}, "[ 1.e-10     nan -2.e+00]"},
        {tensor({123.456, -inf}), {}, "[123.456    -inf]"},
        {tensor({0.99999, 0.5}), {}, "[1.  0.5]"},
        {tensor({1.00004, 2.0}), {}, "[1. 2.]"},
        {tensor({1.99999e9, 1.0}), {}, "[2.e+09 1.e+00]"},
        {tensor({0.00005, 0.5}), {}, "[5.e-05 5.e-01]"},
        {tensor({0.12345, 0.12355}), {}, "[0.1235 0.1235]"},
        {tensor({0.03125, 0.09375, 0.28125}), {}, "[0.0312 0.0938 0.2812]"},
        {tensor({1, 2, 3}), {}, "[1 2 3]"},
        {tensor({{1, -20}, {300, 4}}),
         {},
         R"([[  1 -20]
 [300   4]])"},
        {tensor({-1, 10}, int32), {}, "[-1 10]"},
        {tensor({0, 255}, uint8), {}, "[  0 255]"},
        {tensor({INT64_MIN, INT64_MAX}), {}, "[-9223372036854775808  9223372036854775807]"},
        {tensor({true, false}), {}, "[ True False]"},
        {tensor({true, true}), {}, "[ True  True]"},
        {tensor({{true, false}, {false, true}}),
         {},
         R"([[ True False]
 [False  True]])"},
        {tensor(true), {}, "True"},
        {tensor(false), {}, "False"},
        {tensor(1.5), {}, "1.5"},
        {tensor(0.1), {}, "0.1"},
        {tensor(1.0 / 3), {}, "0.3333"},
        {tensor(1e20), {}, "1.e+20"},
        {tensor(-7), {}, "-7"},
        {tensor(std::nan("")), {}, "nan"},
        {tensor(-inf), {}, "-inf"},
        {zeros({0}), {}, "[]"},
        {zeros({0, 3}), {}, "[]"},
        {zeros({2, 0}), {}, "[]"},
        {zeros({2, 3}),
         {},
         R"([[0. 0. 0.]
 [0. 0. 0.]])"},
        {arange(24).view({2, 3, 4}),
         {},
         R"([[[ 0  1  2  3]
  [ 4  5  6  7]
  [ 8  9 10 11]]

 [[12 13 14 15]
  [16 17 18 19]
  [20 21 22 23]]])"},
        {arange(24.0).view({2, 3, 4}) / 8,
         {},
         R"([[[0.    0.125 0.25  0.375]
  [0.5   0.625 0.75  0.875]
  [1.    1.125 1.25  1.375]]

 [[1.5   1.625 1.75  1.875]
  [2.    2.125 2.25  2.375]
  [2.5   2.625 2.75  2.875]]])"},
        {arange(16).view({2, 2, 2, 2}),
         {},
         R"([[[[ 0  1]
   [ 2  3]]

  [[ 4  5]
   [ 6  7]]]


 [[[ 8  9]
   [10 11]]

  [[12 13]
   [14 15]]]])"},
        {arange(6).view({1, 1, 6}), {}, "[[[0 1 2 3 4 5]]]"},
        {arange(3).view({3, 1}),
         {},
         R"([[0]
 [1]
 [2]])"},
        {arange(100),
         {},
         R"([ 0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25
 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51
 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77
 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95 96 97 98 99])"},
        {arange(50.0) / 4,
         {},
         R"([ 0.    0.25  0.5   0.75  1.    1.25  1.5   1.75  2.    2.25  2.5   2.75  3.
  3.25  3.5   3.75  4.    4.25  4.5   4.75  5.    5.25  5.5   5.75  6.    6.25
  6.5   6.75  7.    7.25  7.5   7.75  8.    8.25  8.5   8.75  9.    9.25  9.5
  9.75 10.   10.25 10.5  10.75 11.   11.25 11.5  11.75 12.   12.25])"},
        {arange(60).view({2, 30}),
         {},
         R"([[ 0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24
  25 26 27 28 29]
 [30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54
  55 56 57 58 59]])"},
        {full({30}, 0.5),
         {},
         R"([0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5
 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5 0.5])"},
        {full({20}, true),
         {},
         R"([ True  True  True  True  True  True  True  True  True  True  True  True  True
  True  True  True  True  True  True  True])"},
        {arange(1001), {}, "[   0    1    2 ...  998  999 1000]"},
        {arange(2000.0), {}, R"([0.000e+00 1.000e+00 2.000e+00 ... 1.997e+03 1.998e+03 1.999e+03])"},
        {arange(2000.0).view({40, 50}),
         {},
         R"([[0.000e+00 1.000e+00 2.000e+00 ... 4.700e+01 4.800e+01 4.900e+01]
 [5.000e+01 5.100e+01 5.200e+01 ... 9.700e+01 9.800e+01 9.900e+01]
 [1.000e+02 1.010e+02 1.020e+02 ... 1.470e+02 1.480e+02 1.490e+02]
 ...
 [1.850e+03 1.851e+03 1.852e+03 ... 1.897e+03 1.898e+03 1.899e+03]
 [1.900e+03 1.901e+03 1.902e+03 ... 1.947e+03 1.948e+03 1.949e+03]
 [1.950e+03 1.951e+03 1.952e+03 ... 1.997e+03 1.998e+03 1.999e+03]])"},
        {arange(12000).view({20, 20, 30}),
         {},
         R"([[[    0     1     2 ...    27    28    29]
  [   30    31    32 ...    57    58    59]
  [   60    61    62 ...    87    88    89]
  ...
  [  510   511   512 ...   537   538   539]
  [  540   541   542 ...   567   568   569]
  [  570   571   572 ...   597   598   599]]

 [[  600   601   602 ...   627   628   629]
  [  630   631   632 ...   657   658   659]
  [  660   661   662 ...   687   688   689]
  ...
  [ 1110  1111  1112 ...  1137  1138  1139]
  [ 1140  1141  1142 ...  1167  1168  1169]
  [ 1170  1171  1172 ...  1197  1198  1199]]

 [[ 1200  1201  1202 ...  1227  1228  1229]
  [ 1230  1231  1232 ...  1257  1258  1259]
  [ 1260  1261  1262 ...  1287  1288  1289]
  ...
  [ 1710  1711  1712 ...  1737  1738  1739]
  [ 1740  1741  1742 ...  1767  1768  1769]
  [ 1770  1771  1772 ...  1797  1798  1799]]

 ...

 [[10200 10201 10202 ... 10227 10228 10229]
  [10230 10231 10232 ... 10257 10258 10259]
  [10260 10261 10262 ... 10287 10288 10289]
  ...
  [10710 10711 10712 ... 10737 10738 10739]
  [10740 10741 10742 ... 10767 10768 10769]
  [10770 10771 10772 ... 10797 10798 10799]]

 [[10800 10801 10802 ... 10827 10828 10829]
  [10830 10831 10832 ... 10857 10858 10859]
  [10860 10861 10862 ... 10887 10888 10889]
  ...
  [11310 11311 11312 ... 11337 11338 11339]
  [11340 11341 11342 ... 11367 11368 11369]
  [11370 11371 11372 ... 11397 11398 11399]]

 [[11400 11401 11402 ... 11427 11428 11429]
  [11430 11431 11432 ... 11457 11458 11459]
  [11460 11461 11462 ... 11487 11488 11489]
  ...
  [11910 11911 11912 ... 11937 11938 11939]
  [11940 11941 11942 ... 11967 11968 11969]
  [11970 11971 11972 ... 11997 11998 11999]]])"},
        {arange(1200).view({600, 2}),
         {},
         R"([[   0    1]
 [   2    3]
 [   4    5]
 ...
 [1194 1195]
 [1196 1197]
 [1198 1199]])"},
        {arange(1200).view({2, 600}),
         {},
         R"([[   0    1    2 ...  597  598  599]
 [ 600  601  602 ... 1197 1198 1199]])"},
        {arange(1200).view({6, 200}),
         {},
         R"([[   0    1    2 ...  197  198  199]
 [ 200  201  202 ...  397  398  399]
 [ 400  401  402 ...  597  598  599]
 [ 600  601  602 ...  797  798  799]
 [ 800  801  802 ...  997  998  999]
 [1000 1001 1002 ... 1197 1198 1199]])"},
        {arange(1200).view({200, 1, 6}),
         {},
         R"([[[   0    1    2    3    4    5]]

 [[   6    7    8    9   10   11]]

 [[  12   13   14   15   16   17]]

 ...

 [[1182 1183 1184 1185 1186 1187]]

 [[1188 1189 1190 1191 1192 1193]]

 [[1194 1195 1196 1197 1198 1199]]])"},
        {arange(10), {.threshold = 5}, "[0 1 2 ... 7 8 9]"},
        {arange(10), {.threshold = 0, .edge_items = 1}, "[0 ... 9]"},
        {arange(64.0).view({8, 8}) / 3,
         {.threshold = 10, .edge_items = 2},
         R"([[ 0.      0.3333 ...  2.      2.3333]
 [ 2.6667  3.     ...  4.6667  5.    ]
 ...
 [16.     16.3333 ... 18.     18.3333]
 [18.6667 19.     ... 20.6667 21.    ]])"},
        {arange(64.0).view({8, 8}) / 3,
         {.line_width = 40},
         R"([[ 0.      0.3333  0.6667  1.
   1.3333  1.6667  2.      2.3333]
 [ 2.6667  3.      3.3333  3.6667
   4.      4.3333  4.6667  5.    ]
 [ 5.3333  5.6667  6.      6.3333
   6.6667  7.      7.3333  7.6667]
 [ 8.      8.3333  8.6667  9.
   9.3333  9.6667 10.     10.3333]
 [10.6667 11.     11.3333 11.6667
  12.     12.3333 12.6667 13.    ]
 [13.3333 13.6667 14.     14.3333
  14.6667 15.     15.3333 15.6667]
 [16.     16.3333 16.6667 17.
  17.3333 17.6667 18.     18.3333]
 [18.6667 19.     19.3333 19.6667
  20.     20.3333 20.6667 21.    ]])"},
        {arange(64.0).view({4, 16}) / 3,
         {.line_width = 30},
         R"([[ 0.      0.3333  0.6667
   1.      1.3333  1.6667
   2.      2.3333  2.6667
   3.      3.3333  3.6667
   4.      4.3333  4.6667
   5.    ]
 [ 5.3333  5.6667  6.
   6.3333  6.6667  7.
   7.3333  7.6667  8.
   8.3333  8.6667  9.
   9.3333  9.6667 10.
  10.3333]
 [10.6667 11.     11.3333
  11.6667 12.     12.3333
  12.6667 13.     13.3333
  13.6667 14.     14.3333
  14.6667 15.     15.3333
  15.6667]
 [16.     16.3333 16.6667
  17.     17.3333 17.6667
  18.     18.3333 18.6667
  19.     19.3333 19.6667
  20.     20.3333 20.6667
  21.    ]])"},
        {arange(8.0) / 3,
         {.line_width = 1},
         R"([0.
 0.3333
 0.6667
 1.
 1.3333
 1.6667
 2.
 2.3333])"},
        {arange(8.0) / 3,
         {.line_width = 0},
         R"([0.
 0.3333
 0.6667
 1.
 1.3333
 1.6667
 2.
 2.3333])"},
        {arange(8.0) / 3,
         {.precision = 8},
         R"([0.         0.33333334 0.6666667  1.         1.3333334  1.6666666  2.
 2.3333333 ])"},
        {arange(8.0).to(float64) / 3,
         {.precision = 16},
         R"([0.                 0.3333333333333333 0.6666666666666666 1.
 1.3333333333333333 1.6666666666666667 2.                 2.3333333333333335])"},
        {arange(8.0) / 3, {.precision = 0}, "[0. 0. 1. 1. 1. 2. 2. 2.]"},
        {tensor({1e10, 2.5}), {.precision = 0}, "[1.e+10 2.e+00]"},
        {tensor({1e10, 2.5}), {.precision = 2}, "[1.0e+10 2.5e+00]"},
        {tensor({157382352.0, 1.0}), {.precision = 8}, "[1.5738235e+08 1.0000000e+00]"},
        {tensor({0.5, 1.5, 2.5}), {.precision = 0}, "[0. 2. 2.]"},
        {arange(6).view({2, 3}).t(),
         {},
         R"([[0 3]
 [1 4]
 [2 5]])"},
        {arange(24.0).view({4, 6}).slice(1, Slice(1, 6, 2)),
         {},
         R"([[ 1.  3.  5.]
 [ 7.  9. 11.]
 [13. 15. 17.]
 [19. 21. 23.]])"},
        {tensor({1.5, 2.0}).expand({3, 2}),
         {},
         R"([[1.5 2. ]
 [1.5 2. ]
 [1.5 2. ]])"},
        {arange(5.0).select(0, 3), {}, "3."},
    };
    const OptionsScope scope;
    for (const Case& c : cases) {
        CHECK(to_string(c.tensor, c.options) == c.text);
        set_print_options(c.options);
        CHECK(c.tensor.str() == c.text);
    }
}

TEST_CASE("bfloat16 is printed with the fewest digits that tell its values apart") {
    CHECK(tensor({0.1, 3.14159, -256.0}, bfloat16).str() == "[ 1.00e-01  3.14e+00 -2.56e+02]");
    CHECK(tensor({0.1, 3.14159, -25.0}, bfloat16).str() == "[  0.1    3.14 -25.  ]");
    CHECK(tensor({inf, 1.0}, bfloat16).str() == "[inf  1.]");
}

TEST_CASE("scientific notation can be asked for") {
    CHECK(to_string(tensor({1.0, 2.5}), {.sci_mode = true}) == "[1.0e+00 2.5e+00]");
    CHECK(to_string(tensor({1.0, 1.0 / 3}), {.precision = 2, .sci_mode = true}) == "[1.00e+00 3.33e-01]");
    CHECK(to_string(tensor(0.0), {.sci_mode = true}) == "0.e+00");
    CHECK(to_string(tensor({inf, inf}), {.sci_mode = true}) == "[inf inf]");
    CHECK(to_string(tensor({1, 2}), {.sci_mode = true}) == "[1 2]");
}

TEST_CASE("an undefined tensor is printed as such") {
    CHECK(Tensor().str() == "<undefined>");
    std::ostringstream out;
    out << Tensor();
    CHECK(out.str() == "<undefined>");
    CHECK(fmt::format("{}", Tensor()) == "<undefined>");
}

TEST_CASE("a stream takes a tensor and keeps its own settings out of it") {
    std::ostringstream out;
    out.precision(1);
    out << std::hex << tensor({16, 17}) << ' ' << tensor({1.25});
    CHECK(out.str() == "[16 17] [1.25]");
}

TEST_CASE("printing inside a tape records nothing") {
    const Tensor w = tensor({1.0, 2.0}).requires_grad_();
    Tape tape;
    const Tensor y = w * 2;
    const std::size_t records = tape.size();
    CHECK(y.str() == "[2. 4.]");
    CHECK(tape.size() == records);
}

TEST_CASE("fmt takes tensors, shapes, dtypes and devices") {
    const Tensor x = tensor({1.0 / 3, 2.0});
    CHECK(fmt::format("{}", x) == "[0.3333 2.    ]");
    CHECK(fmt::format("{:.2}", x) == "[0.33 2.  ]");
    CHECK(fmt::format("{:.0}", x) == "[0. 2.]");
    CHECK(fmt::format("{:e}", x) == "[3.3333e-01 2.0000e+00]");
    CHECK(fmt::format("{:.1e}", x) == "[3.3e-01 2.0e+00]");
    CHECK(fmt::format("{} {} {} {}", Shape{2, 3}, Shape{4}, Shape{}, x.shape()) == "(2, 3) (4,) () (2,)");
    CHECK(fmt::format("{} {} {}", float32, bool_, bfloat16) == "float32 bool bfloat16");
    CHECK(fmt::format("{} {}", cpu, cuda(1)) == "cpu cuda:1");
    CHECK_THROWS_AS(fmt::format(fmt::runtime("{:.}"), x), fmt::format_error);
    CHECK_THROWS_AS(fmt::format(fmt::runtime("{:x}"), x), fmt::format_error);
    CHECK_THROWS_AS(fmt::format(fmt::runtime("{:5}"), x.shape()), fmt::format_error);
}

TEST_CASE("options that make no sense are refused") {
    const OptionsScope scope;
    const PrintOptions wrong[] = {{.precision = -1}, {.threshold = -1}, {.edge_items = 0}, {.line_width = -1}};
    for (const PrintOptions& options : wrong) {
        const int line = __LINE__ + 2;
        try {
            set_print_options(options);
            FAIL("no error");
        } catch (const ValueError& e) {
            CHECK_THAT(e.what(), Catch::StartsWith("print_test.cpp:" + std::to_string(line) + ": set_print_options: "));
        }
    }
    CHECK(print_options().precision == 4);
}

// Histograms against their definition, bucket by bucket.
#include "tapir/nn/summary/histogram_impl.h"

#include <cmath>
#include <limits>

#include "reader.h"
#include "tapir/nn/summary/summary_writer.h"
#include "tapir/tapir.h"

using namespace tapir;

namespace {

// numpy.histogram(): how many values are in [a, b), or in [a, b] for the last bucket.
std::int64_t between(const std::vector<double>& values, double a, double b, bool is_last) {
    std::int64_t count = 0;
    for (const double x : values) count += x >= a && (x < b || (is_last && x == b));
    return count;
}

void compare(const Tensor& x, const std::vector<double>& edges) {
    const std::vector<double> values = x.to_vector<double>();
    const summary::Histogram h = summary::histogram_of(x, {}, Loc::current());
    double sum = 0, squares = 0, counted = 0;
    for (const double v : values) {
        sum += v;
        squares += v * v;
    }
    CHECK(h.num == static_cast<double>(values.size()));
    CHECK(h.min == *std::min_element(values.begin(), values.end()));
    CHECK(h.max == *std::max_element(values.begin(), values.end()));
    CHECK(h.sum == Approx(sum).margin(1e-9));
    CHECK(h.sum_squares == Approx(squares).margin(1e-9));
    REQUIRE(h.limits.size() == h.counts.size());
    REQUIRE(h.limits.size() >= 2);
    CHECK(h.counts.front() == 0);
    CHECK(h.counts[1] > 0);
    CHECK(h.counts.back() > 0);
    const auto first = std::find(edges.begin(), edges.end(), h.limits.front()) - edges.begin();
    REQUIRE(static_cast<std::size_t>(first) + h.limits.size() <= edges.size());
    for (std::size_t i = 1; i < h.limits.size(); ++i) {
        const auto place = static_cast<std::size_t>(first) + i;
        CHECK(h.limits[i] == edges[place]);
        CHECK(h.counts[i] == static_cast<double>(between(values, edges[place - 1], edges[place], place + 1 == edges.size())));
        counted += h.counts[i];
    }
    CHECK(counted == h.num);
}

}  // namespace

TEST_CASE("the edges are those of PyTorch's bins='tensorflow'") {
    const std::vector<double>& edges = summary::default_edges();
    REQUIRE(edges.size() == 1549);  // len(SummaryWriter().default_bins)
    CHECK(edges[774] == 0);
    CHECK(edges[775] == 1e-12);
    CHECK(edges[776] == 1e-12 * 1.1);
    CHECK(edges[773] == -1e-12);
    CHECK(edges.back() < 1e20);
    CHECK(edges.back() * 1.1 >= 1e20);
    for (std::size_t i = 1; i < edges.size(); ++i) CHECK(edges[i] > edges[i - 1]);
}

TEST_CASE("every element is in its bucket") {
    manual_seed(3);
    const std::vector<double>& edges = summary::default_edges();
    compare(randn({1000}), edges);
    compare(randn({30, 40}, float64).transpose(0, 1), edges);
    compare(exp(randn({1000}, float64) * 9) * sign(randn({1000}, float64)), edges);
    compare(zeros({5}), edges);
    compare(tensor({-3.0, -3.0}), edges);
    compare(randn({100}).to(bfloat16), edges);
    compare(arange(-20, 50), edges);
    compare(tensor({true, false, true}), edges);
}

TEST_CASE("numbers on an edge, and beside it, are where numpy.histogram() has them") {
    const std::vector<double>& edges = summary::default_edges();
    std::vector<double> values;
    for (std::size_t i = 1; i + 1 < edges.size(); ++i) {
        values.insert(values.end(), {edges[i], std::nextafter(edges[i], -INFINITY), std::nextafter(edges[i], INFINITY)});
    }
    const summary::Histogram h = summary::histogram_of(tensor(values, float64), {}, Loc::current());
    // Every inner edge begins its bucket, which also holds the number behind it, and the one before the next edge.
    REQUIRE(h.counts.size() == edges.size());
    CHECK(h.counts[1] == 1);
    for (std::size_t i = 2; i + 1 < h.counts.size(); ++i) CHECK(h.counts[i] == 3);
    CHECK(h.counts.back() == 2);
}

TEST_CASE("numbers beyond the edges are counted too, and those that are none are not") {
    const double inf = std::numeric_limits<double>::infinity();
    const summary::Histogram h = summary::histogram_of(tensor({1e300, -1e200, inf, -inf, NAN, 0.0, 0.0}, float64), {}, Loc::current());
    CHECK(h.num == 4);
    CHECK(h.max == 1e300);
    CHECK(h.min == -1e200);
    CHECK(h.limits.front() == -1e200);
    CHECK(h.limits.back() == 1e300);
    CHECK(h.counts[1] == 1);
    CHECK(h.counts.back() == 1);
    double sum = 0;
    for (const double count : h.counts) sum += count;
    CHECK(sum == 4);
    for (const Tensor& x : {full({3}, NAN), zeros({0})}) {
        const summary::Histogram none = summary::histogram_of(x, {}, Loc::current());
        CHECK(none.num == 0);
        CHECK(none.limits.empty());
    }
}

TEST_CASE("edges of one's own") {
    const summary::Histogram h = summary::histogram_of(tensor({-1.0, 0.0, 0.5, 1.0, 2.0, 3.0, 9.0}), {-5, 0, 1, 3, 4, 5}, Loc::current());
    CHECK(h.num == 7);
    CHECK(h.max == 9);
    CHECK(h.limits == std::vector<double>{-5, 0, 1, 3, 4});
    CHECK(h.counts == std::vector<double>{0, 1, 2, 2, 1});
    CHECK(summary::histogram_of(tensor({5.0}), {0, 5}, Loc::current()).counts == std::vector<double>{0, 1});
    CHECK(summary::histogram_of(tensor({6.0}), {0, 5}, Loc::current()).counts.empty());
}

TEST_CASE("a histogram's message") {
    const files::TemporaryFolder folder;
    nn::SummaryWriter writer(folder.path().string());
    writer.add_histogram("w", tensor({-1.0, 0.5, 2.0}), 300, {-1, 0.5, 3}, 1.5);
    const std::string file = files::read_all(events::files_in(folder.path())[0]);
    const events::Contents contents = events::records(file);
    // Event(wall_time=1.5, step=300, summary=Summary(value=[Value(tag="w", histo=HistogramProto(...))])), fields as the protos have them
    const events::Fields value = events::value_of(events::Fields(contents.events.at(1)));
    CHECK(value.text(1) == "w");
    const events::Fields h = value.message(5);
    CHECK(h.real(1) == -1);
    CHECK(h.real(2) == 2);
    CHECK(h.real(3) == 3);
    CHECK(h.real(4) == 1.5);
    CHECK(h.real(5) == 5.25);
    CHECK(h.reals(6) == std::vector<double>{-1, 0.5, 3});
    CHECK(h.reals(7) == std::vector<double>{0, 1, 2});
}

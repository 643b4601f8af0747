// What a program leaves behind. ctest runs this alone and looks at what it writes at its end.
#include "check.h"

using namespace tapir;

TEST_CASE("a bad number that nothing waits for", "[.][cuda]") {
    NEEDS_CUDA;
    embedding(tensor({1, 7}).to(cuda), ones({3, 4}, cuda));
}
